package bench

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// openWriters is how many writers write while a transaction stays open, each at openPace.
	openWriters = 4
	openPace    = 20 * time.Millisecond
)

// opens measures the effect of each kind of open transaction.
func (c *compare) opens(ctx context.Context, who contender, column *Column) error {
	for _, foreign := range Foreigns() {
		at := openFigure(foreign)
		err := c.trial(ctx, who, 1, column, at, func(ctx context.Context, t *trial) error {
			t.written = make([]int64, openWriters*keysOfWriter+1)
			return t.withWorkers(ctx, openWriters+1, func(ctx context.Context, w *workers, all []*author) error {
				p := &pending{trial: t, workers: w, holder: all[openWriters], first: make(chan struct{}), over: make(chan struct{})}
				if err := p.run(ctx, all[:openWriters], foreign); err != nil {
					return err
				}
				column.set(at+"longest silence, s", p.silent.Seconds(), 2)
				column.set(at+"longest commit, ms", milliseconds(p.longest), 1)
				return nil
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// openFigure returns the prefix of figures that are measured while a transaction is open.
func openFigure(foreign string) string { return "open, written " + foreign + ": " }

// pending is a trial with an open transaction.
type pending struct {
	*trial
	workers *workers
	holder  *author
	first   chan struct{} // closed with the first delivery
	over    chan struct{} // closed when writers are to end

	mu      sync.Mutex
	arrived []time.Time
	longest time.Duration // longest commit since the transaction was opened
	silent  time.Duration // longest time without a delivery while it was open
	from    time.Time     // when it was opened
}

func (p *pending) run(ctx context.Context, all []*author, foreign string) (err error) {
	client, err := p.consume()
	if err != nil {
		return err
	}
	defer client.Close()
	reader := start(ctx, func(ctx context.Context) error { return p.listen(ctx, client) })
	tasks := []func(context.Context) error{func(ctx context.Context) error {
		defer close(p.over)
		to, err := p.hold(ctx, foreign)
		p.silent = p.silence(to)
		return err
	}}
	for i, a := range all {
		tasks = append(tasks, func(ctx context.Context) error { return p.write(ctx, i, a) })
	}
	err = together(ctx, tasks...)
	if err == nil {
		err = p.caughtUp(ctx, p.workers)
	}
	return errors.Join(err, reader.stop())
}

// listen records the time of each delivery.
func (p *pending) listen(ctx context.Context, client *kgo.Client) error {
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		if fetches.Empty() {
			continue
		}
		p.mu.Lock()
		if p.arrived = append(p.arrived, time.Now()); len(p.arrived) == 1 {
			close(p.first)
		}
		p.mu.Unlock()
	}
	return nil
}

// hold opens a transaction once events arrive, and returns when it has closed it.
func (p *pending) hold(ctx context.Context, foreign string) (to time.Time, err error) {
	wait, cancel := context.WithTimeoutCause(ctx, settleWithin, errors.New("no event has arrived"))
	defer cancel()
	select {
	case <-p.first:
	case <-wait.Done():
		return to, context.Cause(wait)
	}
	conn := p.holder.conn
	if _, err := conn.Exec(ctx, foreignWrite); err != nil {
		return to, err
	}
	key := len(p.written) - 1 // of nobody else
	if foreign == ForeignHere {
		var flight pgx.Batch
		p.holder.queue(&flight, key)
		if err := conn.SendBatch(ctx, &flight).Close(); err != nil {
			return to, err
		}
	}
	p.mu.Lock()
	p.from = time.Now()
	p.mu.Unlock()
	if err := sleepTimer(ctx, time.Duration(p.want.OpenSeconds)*time.Second); err != nil {
		return to, err
	}
	to = time.Now()
	if _, err := conn.Exec(ctx, "COMMIT"); err != nil {
		return to, err
	}
	if foreign == ForeignHere {
		p.written[key]++
	}
	return to, sleepTimer(ctx, time.Second) // as things are again
}

// write commits events, at a rate that every variant sustains.
func (p *pending) write(ctx context.Context, i int, a *author) error {
	tick := time.NewTicker(openPace)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-p.over:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		began := time.Now()
		if err := a.commit(ctx, i+openWriters*(n%keysOfWriter)); err != nil {
			return err
		}
		p.mu.Lock()
		if !p.from.IsZero() {
			p.longest = max(p.longest, time.Since(began))
		}
		p.mu.Unlock()
	}
}

// silence returns the longest time without a delivery while the transaction was open.
func (p *pending) silence(to time.Time) (longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.from
	for _, at := range append(slices.Clone(p.arrived), to) {
		if at.Before(last) {
			continue
		}
		if at.After(to) {
			at = to
		}
		longest, last = max(longest, at.Sub(last)), at
	}
	return longest
}
