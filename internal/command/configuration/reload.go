package configuration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/internal/command"

	"github.com/notifyd/notifyd/internal/outboxes"

	"github.com/notifyd/notifyd/internal/cli"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// reloadPoll is how often the table is read for the outcome of a reload.
const reloadPoll = 200 * time.Millisecond

// NewReload returns the command reload.
func NewReload(a *command.App) *cobra.Command {
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make the relays of this host read the configuration again",
		Long: `reload checks the configuration file, sends SIGHUP to the relays on this host that
run with it, and waits for the outcome: each has taken the file, or reports why it
refused the file and continues with the previous one. It finds the relays in
outbox_relays, and names those on other hosts, which it does not reach.

It exits with 0 if every relay of this host has taken the file, 1 if not, and 78 if
the file has a mistake; then no relay is asked.`,
		Example: "  notifyd reload\n  notifyd reload -c /etc/notifyd/config.yaml --within 5m",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := reloading{App: a, within: within}
			return r.run(cmd.Context())
		},
	}
	cmd.Flags().DurationVar(&within, "within", time.Minute, "how long to wait: a relay lets running deliveries finish first")
	return cmd
}

// reloading is one run of "notifyd reload".
type reloading struct {
	*command.App

	within time.Duration
	conn   *pgx.Conn
	schema string
	mode   outboxsql.Mode
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
	all, err := r.look(ctx, c, path)
	if err != nil {
		return err
	}
	var mine []store.RelaySession
	for _, s := range all {
		switch p := s.Program; {
		case p == nil:
			r.say("session %d: not asked, its process is unknown", s.PID)
		case p.Host != store.ThisHost():
			r.say("%s, process %d: not asked, run notifyd reload there", p.Host, p.Process)
		case p.Config != whole:
			r.say("process %d: not asked, it runs with another configuration (%s)", p.Process, command.First(p.Config, "a program of its own"))
		default:
			mine = append(mine, s)
		}
	}
	if len(mine) == 0 {
		return fmt.Errorf("no relay on this host (%s) runs with %s", store.ThisHost(), whole)
	}
	return r.ask(ctx, mine)
}

// look connects, and returns the relays that live. Each of the programs that relay many outboxes relays all of them, so that
// the first outbox with a relay shows them all.
func (r *reloading) look(ctx context.Context, c *config.Config, path string) (all []store.RelaySession, err error) {
	if !c.Outboxes.Used() {
		return r.lookAt(ctx, c, path)
	}
	found, _, err := outboxes.Find(ctx, c, path)
	if err != nil {
		return nil, err
	}
	err = errors.New("there are no outboxes")
	for i := range found {
		if r.conn != nil {
			store.Close(ctx, r.conn)
			r.conn = nil
		}
		if all, err = r.lookAt(ctx, c.For(&found[i]), path); err == nil && len(all) > 0 {
			return all, nil
		}
	}
	return all, err
}

func (r *reloading) lookAt(ctx context.Context, c *config.Config, path string) ([]store.RelaySession, error) {
	db := command.FlagsOf(c, path)
	conn, err := db.Connect(ctx, r.App)
	if err != nil {
		return nil, err
	}
	r.conn = conn
	state, err := outboxsql.ReadState(ctx, r.conn, db.Schema)
	if err != nil {
		return nil, err
	}
	r.schema, r.mode = db.Schema, state.Mode
	return store.ReadLive(ctx, r.conn, r.schema, r.mode)
}

// ask sends the signal to all relays, and waits for each.
func (r *reloading) ask(ctx context.Context, all []store.RelaySession) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.within, fmt.Errorf("the outcome is unknown after %v: the relay may wait for running deliveries; see its log", r.within))
	defer cancel()
	failed := 0
	known := make(map[int64]time.Time, len(all)) // any other relay has read the new file, and one that read it later
	for _, s := range all {
		known[s.Owner] = s.Program.LoadedAt
		if err := store.NoteRefusal(ctx, r.conn, r.schema, s.Owner, ""); err != nil { // of an earlier reload
			return err
		}
	}
	var asked []int
	processes := r.processes(all)
	for _, pid := range processes {
		if err := HangUp(pid); err != nil {
			failed++
			r.say("process %d: not reloaded: %v", pid, err)
			continue
		}
		asked = append(asked, pid)
	}
	for _, pid := range asked {
		if err := r.await(ctx, pid, known); err != nil {
			failed++
			r.say("process %d: %v", pid, err)
			continue
		}
		r.say("process %d: has taken the new configuration", pid)
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
		if pid := s.Program.Process; slices.Contains(ids, pid) {
			r.say("process %d: another relay goes by this id and the name of this host, in a container perhaps: run notifyd reload there, too", pid)
		} else {
			ids = append(ids, pid)
		}
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

// HangUp sends SIGHUP to a relay. Another process may have its number by now, or in a container with
// the name of this host; the signal would end a stranger.
func HangUp(pid int) error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil { // where there is /proc
		if name := strings.TrimSuffix(filepath.Base(exe), " (deleted)"); name != strings.TrimSuffix(filepath.Base(own), " (deleted)") {
			return fmt.Errorf("the process of that number is %s, not a relay", name)
		}
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	if err := process.Signal(syscall.SIGHUP); err != nil {
		return fmt.Errorf("send SIGHUP: %w", err)
	}
	return nil
}

func (r *reloading) say(format string, args ...any) {
	_, _ = fmt.Fprintln(r.Stdout, command.Printable(fmt.Sprintf(format, args...))) // the exit code says the same
}
