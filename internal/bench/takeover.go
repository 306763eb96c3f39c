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

// TakeoverOptions of [Takeover].
type TakeoverOptions struct {
	Options
	// Rate is how many transactions begin per second, during Seconds. In the middle of the run a relay is killed.
	Rate    int
	Seconds int
	// Mode of the table. With [ModeBoth] the stream is measured after the queue. The result is the queue's, and its field
	// Stream has the stream's.
	Mode Mode
}

// TakeoverResult is the result of [Takeover].
type TakeoverResult struct {
	Events int64 `json:"events"`
	// Resumed is the longest time of an event that was delivered after the kill, in milliseconds from the moment at which
	// it was due to be written to the call of the handler.
	Resumed float64 `json:"resumed_ms"`
	// Repeats counts deliveries of events whose delivery had begun before.
	Repeats int64 `json:"repeats"`
	Lost    int64 `json:"lost"`
	// With ModeBoth: the stream's figures.
	Stream *TakeoverResult `json:"stream,omitempty"`
}

// OK reports whether no event was lost.
func (r TakeoverResult) OK() bool { return r.Lost == 0 && (r.Stream == nil || r.Stream.OK()) }

// Takeover kills one of two relays with SIGKILL: the one that delivered last. It measures how long events wait for the
// other relay, and counts repeated deliveries.
func Takeover(ctx context.Context, o TakeoverOptions) (TakeoverResult, error) {
	if o.Rate < 1 || o.Seconds < 1 {
		return TakeoverResult{}, fmt.Errorf("rate and seconds must be at least 1, not %d and %d", o.Rate, o.Seconds)
	}
	if err := o.Mode.check(); err != nil {
		return TakeoverResult{}, err
	}
	var results []TakeoverResult
	err := within(ctx, o.Options, func(ctx context.Context, e *env) error {
		for _, mode := range o.Mode.tables() {
			one, err := (&takeover{env: e, want: o, mode: mode}).run(ctx)
			if err != nil {
				return err
			}
			results = append(results, one)
		}
		return nil
	})
	if err != nil {
		return TakeoverResult{}, err
	}
	if len(results) > 1 {
		results[0].Stream = &results[1]
	}
	return results[0], nil
}

type takeover struct {
	*env
	want   TakeoverOptions
	mode   outboxsql.Mode
	seen   *sightings
	relays [2]*process
	heard  sync.WaitGroup

	mu      sync.Mutex
	last    int       // the relay that delivered last
	victim  int       // the relay that was killed
	killed  time.Time // zero before
	longest time.Duration
}

func (t *takeover) run(ctx context.Context) (result TakeoverResult, err error) {
	schema, err := t.migrateTo(ctx, "takeover_"+string(t.mode), outboxsql.NotifyAuto, t.mode)
	if err != nil {
		return result, err
	}
	events := t.want.Rate * t.want.Seconds
	t.seen = newSightings(events)
	defer func() { err = errors.Join(err, t.end()) }()
	for i := range t.relays {
		if t.relays[i], err = t.startProcess(ctx, schema, order{Report: true}); err != nil {
			return result, err
		}
		t.heard.Go(func() { t.hear(i, t.relays[i].out) })
	}
	writer := &soak{env: t.env, want: SoakOptions{Rate: t.want.Rate}, mode: t.mode, schema: schema}
	err = together(ctx, t.kill, func(ctx context.Context) error {
		_, err := writer.write(ctx, events)
		return err
	})
	if err != nil {
		return result, err
	}
	timeout := time.NewTimer(settleWithin)
	defer timeout.Stop()
	select {
	case <-t.seen.all:
	case <-timeout.C: // missing events are counted
	case <-ctx.Done():
		return result, context.Cause(ctx)
	}
	return t.report(), nil
}

// kill kills the relay that delivered last, in the middle of the run.
func (t *takeover) kill(ctx context.Context) error {
	if err := sleepTimer(ctx, time.Duration(t.want.Seconds)*time.Second/2); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.killed, t.victim = time.Now(), t.last
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

func (t *takeover) report() TakeoverResult {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := TakeoverResult{
		Events: t.seen.n, Resumed: ms(t.longest), Repeats: t.seen.duplicates.Load(), Lost: t.seen.missing(),
	}
	t.printf("%s: %s events at %s/s, one of two relays killed; the longest that an event took after that %.0f ms; lost=%d repeats=%d\n",
		t.mode, number(float64(r.Events)), number(float64(t.want.Rate)), r.Resumed, r.Lost, r.Repeats)
	return r
}
