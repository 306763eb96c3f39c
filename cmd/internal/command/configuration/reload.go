package configuration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/cmd/internal/outboxes"

	"github.com/notifyd/notifyd/internal/cli"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// reloadPoll is how often the table is read for the outcome of a reload.
const reloadPoll = 200 * time.Millisecond

// NewReload returns the command reload.
func NewReload(a *command.App) *cobra.Command {
	var timeout command.Duration
	var yes bool
	var form *cli.OneOf
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make the relays of this host read the configuration again",
		Long: `reload checks the configuration file, sends SIGHUP to the relays on this host that
run with it, and waits for the outcome, --timeout at most: each has taken the file, or reports why it
refused the file and continues with the previous one. A relay lets running deliveries
finish first. It finds the relays in
outbox_relays, and names those on other hosts, which it does not reach.

It asks before a destination of a stream gets kept events, because of its start_from,
or because it comes back and continues at its position: old mails may go out. Without a
terminal it needs --yes.

It exits with 0 if every relay of this host has taken the file, 1 if not, and 78 if
the file has a mistake; then no relay is asked.`,
		Example: "  notifyd reload\n  notifyd reload --yes\n  notifyd reload -c /etc/notifyd/config.yaml --timeout 5m",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := reloading{
				App:      a,
				timeout:  time.Duration(timeout),
				progress: command.StartProgress(cmd, command.Connecting),
				printer:  command.NewPrinter(cmd, form.Value == "json"),
			}
			defer r.progress.Stop()

			if !yes {
				r.agree = func(what string) error {
					return command.Agree(cmd, r.progress, false, what, "--yes says that it is to get them; "+
						"start_from: now leaves them out for a new destination, and notifyd positions seek NAME now for one that comes back")
				}
			}

			return r.run(cmd.Context())
		},
	}

	form = command.AddFormat(cmd)
	command.AddTimeout(cmd, &timeout, time.Minute)
	command.AddYes(cmd, &yes)

	return cmd
}

// reloading is one run of "notifyd reload".
type reloading struct {
	*command.App

	timeout  time.Duration
	progress *command.Progress
	printer  command.BasePrinter
	agree    func(what string) error // nil with --yes
	results  []ReloadResult
	conn     *pgx.Conn
	schema   string
	mode     outboxsql.Mode
}

// ReloadResult is the result of reload for one relay, as JSON.
type ReloadResult struct {
	// Process and Host are zero for a relay behind a pooler, or of another schema. Then Session is the id of its server process.
	Process int    `json:"process,omitempty"`
	Host    string `json:"host,omitempty"`
	Session int32  `json:"session,omitempty"`
	// Reloaded reports that the relay has taken the new configuration, and Asked that it was sent the signal.
	Reloaded bool `json:"reloaded"`
	Asked    bool `json:"asked"`
	// Text is the result for people.
	Text string `json:"text"`
}

func (r *reloading) run(ctx context.Context) error {
	c, path, err := r.Load()
	if err != nil {
		return err
	}

	whole, err := filepath.Abs(path)
	if err != nil {
		return err
	}

	defer func() {
		if r.conn != nil {
			store.Close(ctx, r.conn)
		}
	}()

	all, err := r.look(ctx, c)
	if err != nil {
		return err
	}

	if err := r.askForHistory(ctx, c); err != nil {
		return err
	}

	var own []store.RelaySession
	for _, s := range all {
		switch p := s.Program; {
		case p == nil:
			r.result(ReloadResult{Session: s.PID}, "not asked, its process is unknown")
		case p.Host != store.ThisHost():
			r.result(ReloadResult{Process: p.Process, Host: p.Host}, "not asked, run notifyd reload there")
		case p.Config != whole:
			r.result(mine(p.Process), "not asked, it runs with another configuration (%s)",
				command.First(p.Config, "a program of its own"))
		default:
			own = append(own, s)
		}
	}

	if len(own) == 0 {
		err = fmt.Errorf("no relay on this host (%s) runs with %s", store.ThisHost(), whole)
	} else {
		err = r.ask(ctx, own)
	}

	if r.printer.JSON {
		return errors.Join(err, r.printer.Encode(append([]ReloadResult{}, r.results...)))
	}
	return err
}

// mine is the result for a process of this host.
func mine(process int) ReloadResult {
	return ReloadResult{Process: process, Host: store.ThisHost()}
}

// look connects, and returns the relays that live. Each of the programs that relay many outboxes relays all of them, so that
// the first outbox with a relay shows them all.
func (r *reloading) look(ctx context.Context, c *config.Config) (all []store.RelaySession, err error) {
	if !c.Outboxes.Used() {
		return r.lookAt(ctx, c)
	}

	found, _, err := outboxes.Find(ctx, c)
	if err != nil {
		return nil, err
	}

	err = errors.New("there are no outboxes")
	for i := range found {
		if r.conn != nil {
			store.Close(ctx, r.conn)
			r.conn = nil
		}

		all, err = r.lookAt(ctx, c.For(&found[i]))
		if err == nil && len(all) > 0 {
			return all, nil
		}
	}
	return all, err
}

func (r *reloading) lookAt(ctx context.Context, c *config.Config) ([]store.RelaySession, error) {
	db := command.FlagsOf(c)
	conn, err := db.Connect(ctx, r.App)
	if err != nil {
		return nil, err
	}

	r.conn = conn
	state, err := outboxsql.ReadState(ctx, r.conn, db.Schema)
	if err != nil {
		return nil, err
	}

	r.schema = db.Schema
	r.mode = state.Mode
	return store.ReadLive(ctx, r.conn, r.schema, r.mode)
}

// askForHistory asks before a destination of a stream gets kept events: a new one with a start_from, or one that comes
// back. New destinations without a start_from begin with the next event where relays run.
func (r *reloading) askForHistory(ctx context.Context, c *config.Config) error {
	if r.agree == nil {
		return nil
	}
	if !c.Outboxes.Used() {
		begins, err := beginsOf(ctx, c)

		return errors.Join(err, r.agreeTo("", begins))
	}

	found, _, err := outboxes.Find(ctx, c)
	if err != nil {
		return err
	}

	chosen := slices.ContainsFunc(c.Destinations, func(d config.Destination) bool {
		start, err := engine.ParseStart(d.StartFrom)

		return err == nil && start.Kind != engine.StartDefault && start.Kind != engine.StartNow
	})

	for i := range found {
		in := "outbox " + found[i].Name + ": "
		begins, err := beginsOf(ctx, c.For(&found[i]))
		if err != nil && !chosen { // nothing is known to be new; the relays deliver from the others meanwhile
			continue
		}
		if err != nil {
			err = r.agree(fmt.Sprintf("%swhether new destinations get kept events is not known: %v", in, err))
		}

		if err := errors.Join(err, r.agreeTo(in, begins)); err != nil {
			return err
		}
	}

	return nil
}

// beginsOf connects, and returns where the destinations of one outbox begin, or continue.
func beginsOf(ctx context.Context, c *config.Config) ([]planBegin, error) {
	conn, err := outboxes.OpenTable(ctx, c, "reload")
	if err != nil {
		return nil, err
	}
	defer store.Close(ctx, conn.Conn)

	return readBegins(ctx, conn, nil, c, defaultPlanScan)
}

// agreeTo asks for each destination that gets kept events.
func (r *reloading) agreeTo(in string, begins []planBegin) error {
	for i := range begins {
		if begins[i].Count+begins[i].Waiting == 0 {
			continue
		}
		if err := r.agree(command.Printable(in + begins[i].String())); err != nil {
			return err
		}
	}

	return nil
}

// ask sends the signal to all relays, and waits for each.
func (r *reloading) ask(ctx context.Context, all []store.RelaySession) error {
	errLate := fmt.Errorf("the outcome is unknown after %v: the relay may wait for running deliveries; see its log", r.timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout, errLate)
	defer cancel()

	known := make(map[int64]time.Time, len(all)) // any other relay has read the new file, and one that read it later
	for _, s := range all {
		known[s.Owner] = s.Program.LoadedAt
		if err := store.NoteRefusal(ctx, r.conn, r.schema, s.Owner, ""); err != nil { // of an earlier reload
			return err
		}
	}

	failed := 0
	var asked []int
	processes := r.processes(all)
	for _, pid := range processes {
		if err := HangUp(pid); err != nil {
			failed++
			r.result(mine(pid), "not reloaded: %v", err)
			continue
		}
		asked = append(asked, pid)
	}

	for i, pid := range asked {
		r.progress.Say("waiting for process %d to reload, %d of %d", pid, i+1, len(asked))
		result := mine(pid)
		result.Asked = true
		if err := r.await(ctx, pid, known); err != nil {
			failed++
			r.result(result, "%v", err)
			continue
		}

		result.Reloaded = true
		r.result(result, "has taken the new configuration")
	}

	if failed > 0 {
		return fmt.Errorf("%s of %d not reloaded", cli.Count(failed, "relay"), len(processes))
	}
	return nil
}

// processes returns the ids of the processes of relays on this host, each once. Containers may go by
// the name of this host, and then have processes of the same ids.
func (r *reloading) processes(all []store.RelaySession) (ids []int) {
	for _, s := range all {
		pid := s.Program.Process
		if !slices.Contains(ids, pid) {
			ids = append(ids, pid)
			continue
		}
		r.result(mine(pid), "another relay goes by this id and the name of this host, in a container perhaps: "+
			"run notifyd reload there, too")
	}
	return ids
}

// await waits until a process of this host has a relay that is not known, or has refused.
func (r *reloading) await(ctx context.Context, pid int, known map[int64]time.Time) error {
	tick := time.NewTicker(reloadPoll)
	defer tick.Stop()

	for {
		all, err := store.ReadLive(ctx, r.conn, r.schema, r.mode)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}

		for _, s := range all {
			switch p := s.Program; {
			case p == nil || p.Host != store.ThisHost() || p.Process != pid:
			case !known[s.Owner].Equal(p.LoadedAt):
				return nil
			case p.Refused != "":
				return errors.New("refused, it continues with the previous configuration: " + p.Refused)
			}
		}

		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// HangUp sends SIGHUP to the process of a relay. The number comes from a row of outbox_relays, which the relay's role
// may write: it is used only for a process that runs this program. The process is held before it is examined, so
// that the number cannot pass to another one in between.
func HangUp(pid int) error {
	if pid < 1 { // kill(2) would signal a process group, or all processes
		return fmt.Errorf("%d is not the number of a process: outbox_relays has been changed", pid)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	defer func() { _ = process.Release() }()

	own, err := os.Executable()
	if err != nil {
		return err
	}

	name, err := programOf(pid)
	if err != nil {
		return fmt.Errorf("the program of that process is not known, and it may be no relay: "+
			"run notifyd reload as the user of the relay, or send SIGHUP to it: %w", err)
	}
	if name != strings.TrimSuffix(filepath.Base(own), deleted) {
		return fmt.Errorf("the process of that number is %s, not a relay", name)
	}

	if err := heedsHangUp(pid); err != nil {
		return err
	}

	if err := process.Signal(syscall.SIGHUP); err != nil {
		return fmt.Errorf("send SIGHUP: %w", err)
	}
	return nil
}

// heedsHangUp returns an error if the process would not answer a SIGHUP: it ignores the signal, or it is stopped. Only Linux
// shows that; elsewhere the outcome stays unknown until the timeout.
func heedsHangUp(pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil // the signal is sent, and the answer awaited
	}

	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch name {
		case "State":
			if strings.HasPrefix(value, "T") {
				return fmt.Errorf("it is stopped: continue it with kill -CONT %d, and repeat the command", pid)
			}
		case "SigIgn":
			ignored, err := strconv.ParseUint(value, 16, 64)
			if err == nil && ignored>>(syscall.SIGHUP-1)&1 == 1 {
				return errors.New("it ignores SIGHUP, as under nohup: restart it without nohup, for example by systemd or setsid")
			}
		}
	}

	return nil
}

// deleted is what Linux adds to the path of a program that was replaced since it was started.
const deleted = " (deleted)"

// programOf returns the name of the program that a process runs.
func programOf(pid int) (string, error) {
	if runtime.GOOS == "linux" {
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return strings.TrimSuffix(filepath.Base(path), deleted), err
	}

	out, err := exec.Command("ps", "-p", strconv.Itoa(pid), "-o", "comm=").Output() //nolint:noctx // it answers at once
	return filepath.Base(strings.TrimSpace(string(out))), err
}

// result records the outcome for a relay, and prints it unless the output is JSON.
func (r *reloading) result(one ReloadResult, format string, args ...any) {
	one.Text = fmt.Sprintf(format, args...)
	r.results = append(r.results, one)
	if r.printer.JSON {
		return
	}

	who := fmt.Sprintf("process %d", one.Process)
	switch {
	case one.Host == "":
		who = fmt.Sprintf("session %d", one.Session)
	case one.Host != store.ThisHost():
		who = one.Host + ", " + who
	}

	_, _ = fmt.Fprintln(r.printer.Out, command.Printable(who+": "+one.Text)) // the exit code says the same
}
