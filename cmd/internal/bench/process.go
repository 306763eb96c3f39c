package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

// EnvRelay holds the order for a process that calls [Serve]. The order is not on the
// command line because it holds a connection string.
const EnvRelay = "NOTIFYD_BENCH_RELAY"

// order is the configuration of a relay's process.
type order struct {
	URL    string `json:"url"`
	Schema string `json:"schema"`
	// Events with ids from 1 to this number will be written; 0: the number is unknown.
	Events int `json:"events"`
	// Report makes the process write a line for each delivery as it begins.
	Report bool `json:"report"`
	// Total makes the relay deliver all events one after the other, in the order of ids.
	Total bool `json:"total"`
}

// account is the result that a relay's process writes at its end.
type account struct {
	Faults

	CPU time.Duration `json:"cpu"`
	// Times are percentiles, at soakPercentiles, of the times from the moment at which an event was due to be written to
	// its delivery.
	Times []time.Duration `json:"times"`
}

func soakPercentiles() []float64 { return []float64{0.5, 0.99, 0.999, 1} }

const (
	// readyWord is the line that a relay's process writes once it listens.
	readyWord = "ready"
	// stopWithin bounds the end of a relay's process.
	stopWithin = 30 * time.Second
)

// Serve runs a relay until stdin ends. Insert, Soak and Takeover start it as a process. encoded is the value of
// [EnvRelay]. If the bench dies, its end of the pipe closes and the relay ends too.
func Serve(ctx context.Context, stdin io.Reader, stdout io.Writer, log *slog.Logger, encoded string) (err error) {
	if encoded == "" {
		return errors.New("this is started by a bench, not by hand")
	}
	var o order
	if err := json.Unmarshal([]byte(encoded), &o); err != nil {
		return fmt.Errorf("%s: %w", EnvRelay, err)
	}
	pool, err := pgxpool.New(ctx, o.URL)
	if err != nil {
		return fmt.Errorf("database url: %w", err)
	}
	defer pool.Close()
	relay, err := notifyd.New(pool, notifyd.Config{Schema: o.Schema, Logger: log})
	if err != nil {
		return err
	}
	ledger := &ledger{seen: newSightings(o.Events), times: make([]time.Duration, 0, o.Events)}
	if o.Report {
		ledger.out = stdout
	}
	var lane delivery.Lane
	if o.Total {
		lane.Order = delivery.OrderTotal
	}
	if err := relay.Handle("*", notifyd.Destination{Name: "all", Handler: delivery.HandlerFunc(ledger.deliver), Lane: lane}); err != nil {
		return err
	}

	stop, err := StartRelay(ctx, relay)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	cpu := ownCPU()
	if _, err := fmt.Fprintln(stdout, readyWord); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, stdin); err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(ledger.close(ownCPU() - cpu))
}

// ledger records the deliveries of a relay's process.
type ledger struct {
	seen *sightings
	out  io.Writer // gets a line for each delivery, unless nil

	mu    sync.Mutex
	times []time.Duration // with room for all events, so that a delivery does not wait for a copy
}

func (l *ledger) deliver(_ context.Context, e *delivery.Event) error {
	due, timed := readDue(e.Payload)
	late := time.Since(due)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen.n > 0 {
		l.seen.note(e.ID)
		if timed {
			l.times = append(l.times, late)
		}
	}
	if l.out == nil {
		return nil
	}
	_, err := fmt.Fprintf(l.out, deliveryLine, e.ID, late)
	return err
}

// deliveryLine is the line for a delivery: the event's id, and its lateness in nanoseconds.
const deliveryLine = "%d %d\n"

func (l *ledger) close(cpu time.Duration) account {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.times)
	a := account{Faults: l.seen.faults(), CPU: cpu}
	for _, p := range soakPercentiles() {
		a.Times = append(a.Times, Percentile(l.times, p))
	}
	return a
}

// The payload of a timed event begins with the time at which it was due to be written.
// The relay's process compares this with its own clock: both run on one machine.
const (
	duePrefix = `{"due":`
	dueDigits = 19
)

// dueFilling returns the part of a payload of at least n bytes after its time.
func dueFilling(n int) string {
	const around = `,"fill":}`
	return `,"fill":` + payload(n-len(duePrefix)-dueDigits-len(around)) + `}`
}

func duePayload(due time.Time, filling string) string {
	return duePrefix + strconv.FormatInt(due.UnixNano(), 10) + filling
}

func readDue(data []byte) (due time.Time, ok bool) {
	rest, found := bytes.CutPrefix(data, []byte(duePrefix))
	if !found || len(rest) < dueDigits {
		return time.Time{}, false
	}
	ns, err := strconv.ParseInt(string(rest[:dueDigits]), 10, 64)
	return time.Unix(0, ns), err == nil
}

// process is a relay in a separate process.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
	// sessions are the ids of the server's processes that work for the relay, known only for a private server.
	sessions []int
}

// startProcess starts a relay and returns once it listens. The caller calls stop, even after ctx has ended.
func (e *Env) startProcess(ctx context.Context, schema string, o order) (p *process, err error) {
	if len(e.Relay) == 0 {
		return nil, errors.New("the command line of the relay is missing")
	}
	o.URL = e.URL
	o.Schema = schema
	encoded, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	others, err := e.relaySessions(ctx)
	if err != nil {
		return nil, err
	}

	p = &process{cmd: exec.CommandContext(context.WithoutCancel(ctx), e.Relay[0], e.Relay[1:]...)}
	p.cmd.Env = append(os.Environ(), EnvRelay+"="+string(encoded))
	p.cmd.Stderr = os.Stderr
	p.stdin, err = p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(stdout)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the relay: %w", err)
	}

	// A relay that waits for the database would not notice the end of stdin.
	interrupted := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })
	line, err := p.out.ReadString('\n')
	interrupted()
	if err == nil && line != readyWord+"\n" {
		err = fmt.Errorf("it said %q", line)
	}
	if err == nil {
		p.sessions, err = e.relaySessions(ctx)
		p.sessions = slices.DeleteFunc(p.sessions, func(pid int) bool { return slices.Contains(others, pid) })
	}
	if err != nil {
		_ = p.cmd.Process.Kill() // a relay that ended early has written the reason to stderr
		_ = p.cmd.Wait()
		return nil, errors.Join(fmt.Errorf("start the relay: %w", err), context.Cause(ctx))
	}
	return p, nil
}

// relaySessions returns the processes of a private server that work for relays.
func (e *Env) relaySessions(ctx context.Context) ([]int, error) {
	if !e.Private() {
		return nil, nil
	}
	rows, err := e.Pool.Query(ctx, `SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'notifyd/%' AND application_name <> $1`, benchName)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int])
}

// stop ends the relay and returns its account.
func (p *process) stop() (a account, err error) {
	kill := time.AfterFunc(stopWithin, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	err = p.stdin.Close()
	line, readErr := p.out.ReadBytes('\n')
	if readErr == nil {
		readErr = json.Unmarshal(line, &a)
	}
	err = errors.Join(err, readErr, p.cmd.Wait())
	if err != nil {
		err = fmt.Errorf("the relay's process: %w", err)
	}
	return a, err
}
