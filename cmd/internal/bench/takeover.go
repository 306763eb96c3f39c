package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// Takeover kills one of two relays with SIGKILL: the one that delivered last. It measures how long events wait for the
// other relay, and counts repeated deliveries.
type Takeover struct {
	// Rate is how many transactions begin per second, during Seconds. In the middle of the run a relay is killed.
	Rate    int
	Seconds int
	// Mode of the table. With [ModeBoth] the stream is measured after the queue.
	Mode Mode
}

// Check implements [Experiment].
func (x *Takeover) Check() error {
	return atLeast(1, option{"rate", x.Rate}, option{"seconds", x.Seconds})
}

func (x *Takeover) run(ctx context.Context, e *env) (*Result, error) {
	r := &Result{}
	r.say("events at %s/s, one of two relays killed", number(float64(x.Rate)))
	for _, mode := range x.Mode.tables() {
		t := &takeover{env: e, want: x}
		if err := t.measure(ctx, mode); err != nil {
			return nil, err
		}
		t.report(r, r.column(string(mode)))
	}
	return r, nil
}

type takeover struct {
	*env
	want   *Takeover
	seen   *sightings
	relays [2]*process
	heard  sync.WaitGroup

	mu      sync.Mutex
	last    int       // the relay that delivered last
	victim  int       // the relay that was killed
	killed  time.Time // zero before
	longest time.Duration
}

func (t *takeover) measure(ctx context.Context, mode outboxsql.Mode) (err error) {
	schema, err := t.migrateTo(ctx, "takeover_"+string(mode), outboxsql.NotifyAuto, mode)
	if err != nil {
		return err
	}
	events := t.want.Rate * t.want.Seconds
	t.seen = newSightings(events)
	defer func() { err = errors.Join(err, t.end()) }()
	for i := range t.relays {
		if t.relays[i], err = t.startProcess(ctx, schema, order{Report: true}); err != nil {
			return err
		}
		t.heard.Go(func() { t.hear(i, t.relays[i].out) })
	}

	writer := &soak{env: t.env, want: &Soak{Rate: t.want.Rate}, schema: schema}
	err = together(ctx, t.kill, func(ctx context.Context) error {
		_, err := writer.write(ctx, events)
		return err
	})
	if err != nil {
		return err
	}
	return t.seen.wait(ctx, nil)
}

// kill kills the relay that delivered last, in the middle of the run.
func (t *takeover) kill(ctx context.Context) error {
	if err := sleepTimer(ctx, time.Duration(t.want.Seconds)*time.Second/2); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.killed = time.Now()
	t.victim = t.last
	return t.relays[t.last].cmd.Process.Kill()
}

// hear reads the lines of a relay until its end.
func (t *takeover) hear(relay int, out *bufio.Reader) {
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			return // an incomplete line does not count
		}
		id, late, ok := parseTold(line)
		if !ok {
			continue // not a delivery: the account at the end
		}
		t.mu.Lock()
		before := t.seen.distinct.Load()
		t.seen.note(id)
		t.last = relay
		if !t.killed.IsZero() && t.seen.distinct.Load() > before {
			t.longest = max(t.longest, late)
		}
		t.mu.Unlock()
	}
}

// writeDelivery writes the line for a delivery: the event's id, and its lateness.
func writeDelivery(out io.Writer, id int64, late time.Duration) error {
	_, err := fmt.Fprintf(out, "%d %d\n", id, late)
	return err
}

func parseTold(line string) (id int64, late time.Duration, ok bool) {
	first, second, found := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	id, err := strconv.ParseInt(first, 10, 64)
	ns, lateErr := strconv.ParseInt(second, 10, 64)
	return id, time.Duration(ns), found && err == nil && lateErr == nil
}

// end ends the remaining relays.
func (t *takeover) end() (err error) {
	for _, r := range t.relays {
		if r != nil {
			err = errors.Join(err, r.stdin.Close())
		}
	}
	t.heard.Wait()
	for i, r := range t.relays {
		if r == nil {
			continue
		}
		if waitErr := r.cmd.Wait(); i != t.victim || t.killed.IsZero() { // the other one was killed
			err = errors.Join(err, waitErr)
		}
	}
	return err
}

func (t *takeover) report(r *Result, c *Column) {
	faults := Faults{Lost: t.seen.missing(), Duplicates: t.seen.duplicates.Load()}
	c.set("events", float64(t.seen.n), 0)
	c.set("longest after the kill, ms", milliseconds(t.longest), 0)
	c.set("delivered again", float64(faults.Duplicates), 0)
	r.count(faults)
}
