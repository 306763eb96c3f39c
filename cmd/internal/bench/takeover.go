package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// Takeover kills one of two relays with SIGKILL: the one that delivered last. It measures how long events wait for the
// other relay, and counts repeated deliveries.
type Takeover struct {
	// Rate is how many transactions begin per second, during Seconds. In the middle of the run a relay is killed.
	Rate, Seconds int
	Mode          Mode
}

// Define implements [Experiment].
func (x *Takeover) Define(cmd *cobra.Command) {
	cmd.Use = "takeover"
	cmd.Short = "How long events wait when a relay is killed"
	cmd.Long = `takeover writes events at a fixed rate, each in a separate transaction, for two
relays, and in the middle kills the one that delivered last, with SIGKILL. It measures
the longest time from the moment at which an event was due to be written to the call
of the handler, and counts repeats. The exit code is 1 if an event was lost.`

	flags := cmd.Flags()
	flags.IntVar(&x.Rate, "rate", 2000, "transactions per `second`")
	flags.IntVar(&x.Seconds, "seconds", 10, "`seconds` to write for")
	addMode(flags, &x.Mode)
}

// Check implements [Experiment].
func (x *Takeover) Check() error {
	return atLeast(1, option{"rate", x.Rate}, option{"seconds", x.Seconds})
}

// Run implements [Experiment].
func (x *Takeover) Run(ctx context.Context, e *Env) (*Result, error) {
	r := &Result{}
	r.Say("events at %s/s, one of two relays killed", number(float64(x.Rate)))
	for _, mode := range x.Mode.tables() {
		t := &takeover{Env: e, want: x}
		if err := t.measure(ctx, mode); err != nil {
			return nil, err
		}
		t.report(r, r.Column(string(mode)))
	}
	return r, nil
}

type takeover struct {
	*Env
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
	schema, err := t.migrate(ctx, "takeover_"+string(mode), outboxsql.NotifyAuto, mode)
	if err != nil {
		return err
	}
	events := t.want.Rate * t.want.Seconds
	t.seen = newSightings(events)
	defer func() { err = errors.Join(err, t.end()) }()
	for i := range t.relays {
		t.relays[i], err = t.startProcess(ctx, schema, order{Report: true})
		if err != nil {
			return err
		}
		t.heard.Go(func() { t.hear(i, t.relays[i].out) })
	}

	writer := &soak{Env: t.Env, want: &Soak{Rate: t.want.Rate}, schema: schema}
	err = Together(ctx, t.kill, func(ctx context.Context) error {
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
	if err := pause(ctx, time.Duration(t.want.Seconds)*time.Second/2); err != nil {
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
		var id int64
		var late time.Duration
		if _, err := fmt.Sscanf(line, deliveryLine, &id, &late); err != nil {
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
		waitErr := r.cmd.Wait()
		if i != t.victim || t.killed.IsZero() { // the other one was killed
			err = errors.Join(err, waitErr)
		}
	}
	return err
}

func (t *takeover) report(r *Result, c *Column) {
	faults := Faults{Lost: t.seen.missing(), Duplicates: t.seen.duplicates.Load()}
	c.Set("events", float64(t.seen.n), 0)
	c.Set("longest after the kill, ms", milliseconds(t.longest), 0)
	c.Set("delivered again", float64(faults.Duplicates), 0)
	r.Count(faults)
}
