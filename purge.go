package notifyd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	sessions "github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// purgeEvery is how often expired events are purged, and partitions maintained.
	purgeEvery = time.Minute
	// purgeSoon is the same for a stream that keeps nothing: events are purged soon after their
	// delivery. A queue deletes them itself.
	purgeSoon = 5 * time.Second
	// purgePause and purgeShare keep the purge from monopolising the database: the pause after a
	// batch is at least purgePause, and at least purgeShare times as long as the batch took.
	purgePause = 50 * time.Millisecond
	purgeShare = 4
	// purgeRest is the pause after all batches, in multiples of the time that the last one took: with an old snapshot it
	// reads all events that are deleted already.
	purgeRest = 20
)

// purger deletes the delivered events that have been kept long enough, and maintains partitions. One
// goroutine uses it.
type purger struct {
	*Relay

	deletes    bool              // a queue that keeps no events deletes each with its delivery
	partitions *store.Partitions // nil unless the relay maintains them
	plain      bool              // the lack of partitions has been reported
	removed    *removed
	refused    refusedEvents
	lastBatch  time.Duration // how long the last batch took
	once       chan struct{} // closed after the first round, or if there is nothing to do
}

func newPurger(r *Relay) *purger {
	p := &purger{
		Relay:   r,
		deletes: r.config.Retention.Keep > 0 || r.stream,
		once:    make(chan struct{}),
		removed: newRemoved(r.dispatcher.Has),
	}

	if r.config.Retention.Daily() {
		p.partitions = store.NewPartitions(r.connector)
	}
	return p
}

// run deletes delivered events in small batches, and maintains partitions, until ctx ends.
func (p *purger) run(ctx context.Context) {
	done := sync.OnceFunc(func() { close(p.once) })
	if !p.deletes && p.partitions == nil {
		done()
		return
	}

	wait := purgeEvery / 10 // soon after the start, but not first thing
	if p.config.UntilIdle {
		wait = idlePause
	}

	for sleep.For(ctx, wait) {
		p.purgeAll(ctx)
		p.lookForRemoved(ctx)
		done()

		wait = purgeEvery
		if p.config.Retention.Keep == 0 && p.partitions == nil {
			wait = purgeSoon
		}

		wait = max(wait, purgeRest*p.lastBatch)
	}
}

// purgeAll maintains partitions, and deletes the expired events. Those of a stream are deleted on a connection that lasts
// as long as there are some: a batch would take one from those that read, and an event would wait for another.
func (p *purger) purgeAll(ctx context.Context) {
	session := p.session
	if p.stream {
		session = store.NewSession(p.connector, store.SessionOptions{Mode: outboxsql.ModeStream})
		defer session.Close(ctx)
	}

	for _, in := range p.keepPartitions(ctx) {
		p.purgeRange(ctx, session, in)
	}

	p.reportRefused(ctx)
}

// purgeRange deletes the expired events of one range of ids in batches. After a refusal that may be of one event, it
// deletes fewer at once, down to the one event, and passes that.
func (p *purger) purgeRange(ctx context.Context, session *store.Session, in store.Range) {
	most := p.config.Retention.Batch
	batch := most
	for more := p.deletes; more; {
		began := time.Now()
		next, rest, ignored, err := session.Purge(ctx, in, p.config.Retention.Keep, batch, p.refused.ids()...)
		p.lastBatch = time.Since(began)
		if len(ignored) > 0 {
			err = p.refused.addIgnored(ignored)
		}

		switch {
		case err == nil:
			in.After = next
			more = rest || batch < most
			batch = min(2*batch, most)

		case sessions.IsOfRow(err) && batch > 1:
			batch /= 2
		case sessions.IsOfRow(err) && p.refused.hasRoom():
			id, ferr := session.First(ctx, in)
			if ferr != nil {
				p.report(ctx, fmt.Errorf("delivered events: %w", errors.Join(err, ferr)))
				return
			}

			p.refused.add(id, err)
			in.After = id

		default:
			p.report(ctx, fmt.Errorf("delivered events: %w", err))
			return
		}

		more = more && sleep.For(ctx, max(purgePause, purgeShare*time.Since(began)))
	}
}

const (
	// refusedAgain is how long an event is passed whose deletion was refused.
	refusedAgain = time.Hour
	// maxRefused bounds these events: with more, the purge ends at the next one.
	maxRefused = 10_000
)

// refusedEvents are the events whose deletion the database refuses, for example because a foreign key references them.
type refusedEvents struct {
	until map[int64]time.Time
	err   error
	first int64 // the event of the error
	isNew bool  // there is one that is not reported
}

// ids returns the events to pass.
func (r *refusedEvents) ids() []int64 { return slices.Collect(maps.Keys(r.until)) }

func (r *refusedEvents) hasRoom() bool { return len(r.until) < maxRefused }

// add adds an event.
func (r *refusedEvents) add(id int64, err error) {
	if r.until == nil {
		r.until = make(map[int64]time.Time)
	}

	r.until[id] = time.Now().Add(refusedAgain)
	r.first = id
	r.err = err
	r.isNew = true
}

// addIgnored adds events whose deletion a trigger ignores. It returns an error if there are too many.
func (r *refusedEvents) addIgnored(ids []int64) error {
	ignored := sessions.CheckChanged("purge delivered events", 0, int64(len(ids)))
	for _, id := range ids {
		if !r.hasRoom() {
			return ignored
		}
		r.add(id, ignored)
	}

	return nil
}

// reportRefused logs that events cannot be deleted, once for all that a round has found. It forgets events that are to be
// tried again.
func (p *purger) reportRefused(ctx context.Context) {
	r := &p.refused
	if r.isNew && ctx.Err() == nil {
		p.log.WarnContext(ctx, "delivered events cannot be deleted",
			"events", len(r.until), "event_id", r.first, "err", r.err, "cure", store.CureOf(r.err))
	}

	r.isNew = false
	now := time.Now()
	maps.DeleteFunc(r.until, func(_ int64, until time.Time) bool { return now.After(until) })
}

func (p *purger) report(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case store.IsDown(err): // reported once for all sessions
		p.dispatcher.ReportDatabase(err)
	default:
		p.log.WarnContext(ctx, "purge failed", "err", err, "cure", store.CureOf(err))
	}
}

// keepPartitions maintains the partitions, if configured, and returns the ranges whose events have
// to be deleted one by one.
func (p *purger) keepPartitions(ctx context.Context) []store.Range {
	if p.partitions == nil {
		return []store.Range{store.AllIDs()}
	}

	u, err := p.partitions.Keep(ctx, time.Time{}, p.config.Retention.Keep)
	if err != nil {
		p.report(ctx, fmt.Errorf("partitions: %w", err))
	}
	for _, name := range u.Made {
		p.log.InfoContext(ctx, "partition created", "partition", name)
	}
	for _, name := range u.Dropped {
		p.log.InfoContext(ctx, "partition dropped", "partition", name)
	}

	for name, why := range u.Kept {
		p.log.InfoContext(ctx, "partition is old enough to be dropped, but is kept", "partition", name, "reason", why)
	}

	switch {
	case err != nil && !u.Partitioned: // it is unknown whether there are any
		return nil
	case !u.Partitioned:
		if !p.plain {
			p.plain = true
			p.log.WarnContext(ctx, "outbox_events is not partitioned: run `notifyd migrate --partitions daily` to purge by partitions")
		}
		return []store.Range{store.AllIDs()}
	}

	return u.Purge
}

// lookForRemoved raises an incident for each destination that is gone and holds back the purge.
func (p *purger) lookForRemoved(ctx context.Context) {
	if !p.stream {
		return
	}

	var all []observe.Position
	err := p.session.Do(ctx, "find positions that hold back the purge", func(ctx context.Context, conn *sessions.Conn) error {
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
			all, err = store.ListPositions(ctx, tx, p.connector.Schema)
			return err
		})
	})
	if err != nil {
		p.report(ctx, fmt.Errorf("positions: %w", err))
		return
	}

	for _, i := range p.removed.look(time.Now(), all) {
		p.log.WarnContext(ctx, "removed destination holds back the purge", "destination", i.Destination, "err", i.Err)
		p.dispatcher.Observe(i)
	}
}

// removedAfter is how long the position of a destination that no relay has must have held back the purge
// before that is an incident: relays are restarted one after the other, and some have other destinations.
const removedAfter = 5 * time.Minute

// removed watches the positions of destinations that are gone.
type removed struct {
	known func(destination string) bool // of this relay
	since map[string]time.Time
	told  map[string]bool
}

func newRemoved(known func(string) bool) *removed {
	return &removed{known: known, since: make(map[string]time.Time), told: make(map[string]bool)}
}

// look returns the incidents of positions that no relay has and that keep events from being purged: one for each,
// until it moves, is forgotten, or has a relay again.
func (w *removed) look(now time.Time, all []observe.Position) (news []delivery.Incident) {
	held := make(map[string]bool)
	for i := range all {
		p := &all[i]
		isHeld := p.Session != nil || w.known(p.Destination)
		if p.Destination == "" || isHeld || !p.HoldsBack {
			continue
		}

		held[p.Destination] = true
		if w.since[p.Destination].IsZero() {
			w.since[p.Destination] = now
		}
		if w.told[p.Destination] || now.Sub(w.since[p.Destination]) < removedAfter {
			continue
		}

		w.told[p.Destination] = true
		news = append(news, delivery.Incident{
			Kind:        delivery.IncidentHeldBack,
			Time:        now,
			Destination: p.Destination,
			Err: fmt.Errorf("no relay has it, and its position keeps the events above %d from being purged: "+
				"put it back, or notifyd positions forget %q", p.Lowest, p.Destination),
		})
	}

	for name := range w.since {
		if !held[name] {
			delete(w.since, name)
			delete(w.told, name)
		}
	}

	return news
}
