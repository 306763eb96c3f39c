package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// meanwhile measures the times of live events while past events are delivered.
type meanwhile struct {
	*env
	schema        string
	mode          outboxsql.Mode
	kinds         []string // types of the live events, in turns
	rate, seconds int
	seen          *sightings   // events of the past
	last          []int64      // by aggregate: the last event; one worker has an aggregate at a time
	wrong         atomic.Int64 // past events delivered after a later one, in a stream

	mu      sync.Mutex
	entered map[int64]time.Time // live events
}

// times are the sorted times, by the kind of the event.
type times [][]time.Duration

// expect prepares for a number of past events and of their aggregates.
func (b *meanwhile) expect(events, keys int) {
	b.seen, b.last, b.entered = newSightings(events), make([]int64, keys), make(map[int64]time.Time)
}

// live records the first arrival of a live event.
func (b *meanwhile) live(e *delivery.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.entered[e.ID].IsZero() {
		b.entered[e.ID] = time.Now()
	}
}

// past records the delivery of a past event.
func (b *meanwhile) past(e *delivery.Event) error {
	var key int
	if _, err := fmt.Sscanf(e.AggregateID, "key-%d", &key); err != nil {
		return err
	}
	if b.mode == outboxsql.ModeStream {
		if e.ID < b.last[key] {
			b.wrong.Add(1)
		}
		b.last[key] = e.ID
	}
	b.seen.note(e.ID)
	return nil
}

// compared are the times of live events without the work and during it, and the duration of the work.
type compared struct {
	alone, busy times
	took        time.Duration
}

// around measures live events before work, during it, and after it.
func (b *meanwhile) around(ctx context.Context, relay *notifyd.Relay, work func(context.Context) error) (c compared, err error) {
	run := start(ctx, relay.Run)
	defer func() { err = errors.Join(err, run.stop()) }()
	if err := run.ready(ctx, relay.Ready()); err != nil {
		return c, err
	}
	quietly := func(ctx context.Context) error { return sleepTimer(ctx, time.Duration(b.seconds)*time.Second) }
	if c.alone, err = b.measure(ctx, quietly); err != nil {
		return c, err
	}
	began := time.Now()
	if c.busy, err = b.measure(ctx, work); err != nil {
		return c, err
	}
	c.took = time.Since(began)
	// Measure once more without work: other load on the machine may have changed meanwhile.
	again, err := b.measure(ctx, quietly)
	if err != nil {
		return c, err
	}
	for i := range c.alone {
		c.alone[i] = append(c.alone[i], again[i]...)
		slices.Sort(c.alone[i])
	}
	return c, nil
}

// measure writes live events until work has ended, and returns the time of each.
func (b *meanwhile) measure(ctx context.Context, work func(context.Context) error) (times, error) {
	conn, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer closeAll(ctx, []*pgx.Conn{conn})
	over := make(chan struct{})
	committed := make([]map[int64]time.Time, len(b.kinds))
	for i := range committed {
		committed[i] = make(map[int64]time.Time)
	}
	err = together(ctx, func(ctx context.Context) error {
		defer close(over)
		return work(ctx)
	}, func(ctx context.Context) error {
		data, begin := payload(payloadBytes), time.Now()
		for i, at := 0, steadily(b.rate); ; i++ {
			select {
			case <-over:
				return nil
			default:
			}
			if err := sleepTimer(ctx, time.Until(begin.Add(at(i)))); err != nil {
				return err
			}
			var id int64
			kind := i % len(b.kinds)
			if err := conn.QueryRow(ctx, `INSERT INTO `+table(b.schema)+` (event_type, payload) VALUES ($1, $2) RETURNING id`, b.kinds[kind], data).Scan(&id); err != nil {
				return err
			}
			committed[kind][id] = time.Now()
		}
	})
	if err != nil {
		return nil, err
	}
	return b.arrivals(ctx, committed)
}

// arrivals waits for the live events, and returns the time of each.
func (b *meanwhile) arrivals(ctx context.Context, committed []map[int64]time.Time) (times, error) {
	if err := b.drained(ctx, b.schema, b.mode); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	took := make(times, len(committed))
	for i := range committed {
		for id, at := range committed[i] {
			entered, ok := b.entered[id]
			if !ok {
				return nil, fmt.Errorf("live event %d is lost", id)
			}
			took[i] = append(took[i], entered.Sub(at))
		}
		slices.Sort(took[i])
	}
	return took, nil
}

// relayWith returns a relay with the destination letters, and another one whose events are live.
func (b *meanwhile) relayWith(letters delivery.HandlerFunc) (*notifyd.Relay, error) {
	relay, err := notifyd.New(b.pool, notifyd.Config{Schema: b.schema, Logger: b.Log})
	if err != nil {
		return nil, err
	}
	other := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		b.live(e)
		return nil
	})
	return relay, errors.Join(relay.Handle("letter", notifyd.Destination{Name: "letters", Handler: letters}),
		relay.Handle(eventType, notifyd.Destination{Name: "other", Handler: other}))
}
