package notifyd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// prepare waits for the database and checks the schema.
func (r *Relay) prepare(ctx context.Context) error {
	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
	for ctx.Err() == nil {
		err := r.checkSchema(ctx)
		switch {
		case err == nil:
			r.dispatcher.ReportDatabase(nil)
			return nil
		case errors.Is(err, outboxsql.ErrNotMigrated), errors.Is(err, outboxsql.ErrTooNew), errors.Is(err, outboxsql.ErrMode), errors.Is(err, ErrNeedsStream):
			return fmt.Errorf("notifyd: %w", err)
		case errors.Is(err, store.ErrPooler):
			if err := r.avoidPooler(ctx, err); err != nil {
				return err
			}
			continue
		case ctx.Err() == nil:
			r.dispatcher.ReportDatabase(err)
		}
		timer := time.NewTimer(pause.NextBackOff())
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// avoidPooler makes all connections go past a pooler that would break every part of the relay, if a
// way past it is configured, and reports it once.
func (r *Relay) avoidPooler(ctx context.Context, err error) error {
	if r.settings.listen == nil || r.avoided {
		return fmt.Errorf("notifyd: database.url: %w; a direct database.listen_url would be used for all connections", err)
	}
	r.avoided = true
	r.connector.Redirect(r.settings.listen)
	r.log.WarnContext(ctx, "database.url leads through a pooler in transaction mode: all connections of the relay use database.listen_url instead",
		"host", r.settings.listen.Host, "port", r.settings.listen.Port)
	return nil
}

func (r *Relay) checkSchema(ctx context.Context) error {
	conn, err := r.connector.Connect(ctx, "check")
	if err != nil {
		return err
	}
	defer store.Close(ctx, conn)
	if err := outboxsql.Check(ctx, conn, r.settings.schema); err != nil {
		return err
	}
	state, err := outboxsql.ReadState(ctx, conn, r.settings.schema)
	if err != nil {
		return err
	}
	if r.stream = state.Mode == outboxsql.ModeStream; r.stream {
		if r.keeper != nil { // of an attempt that has failed
			r.keeper.Close(ctx)
		}
		r.readStream()
		return r.missDestinations(ctx)
	}
	if len(r.ordered) > 0 {
		return fmt.Errorf("outbox_events of schema %q is a queue, and destinations want order (%s): %w",
			r.settings.schema, strings.Join(r.ordered, ", "), ErrNeedsStream)
	}
	if r.queue == nil {
		r.claimQueue()
	}
	if err := r.keeper.Hold(ctx); err != nil {
		return err
	}
	return r.missDestinations(ctx)
}

// missDestinations reports once the destinations that this relay does not have and for which
// deliveries wait: most likely renamed ones, or those of another relay.
func (r *Relay) missDestinations(ctx context.Context) error {
	// Before anything is delivered. A role that may not read pauses yet finds none.
	if err := r.honourPauses(ctx); err != nil && store.IsDown(err) {
		return err
	}
	names, err := r.keeper.Destinations(ctx)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, r.dispatcher.Has)
	if len(names) > 0 {
		r.log.WarnContext(ctx, "deliveries wait for destinations that this relay does not have", "destinations", names)
	}
	return nil
}

// run runs the parts until ctx ends, and stops them from the outside in: first those that hear of
// events, then those that deliver them, then those that keep their leases and the bell.
func (r *Relay) run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	inner, stopInner := context.WithCancel(context.WithoutCancel(ctx))
	defer stopInner()
	var outside, inside sync.WaitGroup
	if r.listener != nil {
		outside.Go(func() { _ = r.listener.Run(ctx) }) // returns only the cause of ctx
		inside.Go(func() { _ = r.bell.Run(inner) })    // the same
	}
	if r.purges() || r.partitions != nil {
		outside.Go(func() { r.purge(ctx) })
	}
	outside.Go(func() { r.announce(ctx) })
	outside.Go(func() { r.watchdog(ctx) })
	outside.Go(func() { r.followPauses(ctx) })
	outside.Go(func() {
		select {
		case err := <-r.refused: // the table has become a stream while the relay had no session
			stop(err)
		case <-ctx.Done():
		}
	})
	r.log.InfoContext(ctx, "relay started", "schema", r.settings.schema)

	err := r.deliver(ctx)
	stop(err) // the engine may have ended by itself: then the other parts must stop, too
	outside.Wait()
	stopInner()
	inside.Wait()
	if err == nil { // otherwise a handler may still be using a session
		for _, s := range r.sessions {
			s.Close(ctx)
		}
	}
	r.keeper.Close(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, outboxsql.ErrMode) && !errors.Is(err, outboxsql.ErrMode) {
		err = errors.Join(cause, err)
	}
	r.log.InfoContext(ctx, "relay stopped", "err", err)
	if err != nil {
		return fmt.Errorf("notifyd: %w", err)
	}
	return nil
}

// announce closes ready when both parts are ready.
func (r *Relay) announce(ctx context.Context) {
	for _, half := range []<-chan struct{}{r.listens, (*r.engine.Load()).Ready()} {
		select {
		case <-half:
		case <-ctx.Done():
			return
		}
	}
	close(r.ready)
}

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
)

// purges reports whether this loop deletes delivered events: a queue that keeps none deletes each
// with its delivery.
func (r *Relay) purges() bool { return r.settings.keep > 0 || r.stream }

// purge deletes delivered events in small batches, and maintains partitions, until ctx ends.
func (r *Relay) purge(ctx context.Context) {
	wait := purgeEvery / 10 // soon after the start, but not first thing
	for pause(ctx, wait) {
		for _, in := range r.keepPartitions(ctx) {
			r.purgeRange(ctx, in)
		}
		wait = purgeEvery
		if r.settings.keep == 0 && r.partitions == nil {
			wait = purgeSoon
		}
	}
}

// pause returns false if ctx ends before d is over.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// purgeRange deletes the expired events of one range of ids in batches.
func (r *Relay) purgeRange(ctx context.Context, in store.Range) {
	for more := r.purges(); more; {
		began := time.Now()
		var err error
		in.After, more, err = r.keeper.Purge(ctx, in, r.settings.keep, r.settings.purgeBatch)
		if err != nil {
			r.reportPurge(ctx, fmt.Errorf("delivered events: %w", err))
			return
		}
		more = more && pause(ctx, max(purgePause, purgeShare*time.Since(began)))
	}
}

func (r *Relay) reportPurge(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case store.IsDown(err): // reported once for all sessions
		r.dispatcher.ReportDatabase(err)
	default:
		r.log.WarnContext(ctx, "purging failed; it is retried", "err", err)
	}
}

// keepPartitions maintains the partitions, if configured, and returns the ranges whose events have
// to be deleted one by one.
func (r *Relay) keepPartitions(ctx context.Context) []store.Range {
	if r.partitions == nil {
		return []store.Range{store.AllIDs()}
	}
	u, err := r.partitions.Keep(ctx, time.Time{}, r.settings.keep)
	if err != nil {
		r.reportPurge(ctx, fmt.Errorf("partitions: %w", err))
	}
	for _, name := range u.Made {
		r.log.InfoContext(ctx, "partition made", "partition", name)
	}
	for _, name := range u.Dropped {
		r.log.InfoContext(ctx, "partition dropped", "partition", name)
	}
	for name, why := range u.Kept {
		r.log.InfoContext(ctx, "partition is old enough to be dropped, but is kept", "partition", name, "reason", why)
	}
	switch {
	case err != nil && !u.Partitioned: // it is unknown whether there are any
		return nil
	case !u.Partitioned:
		if !r.plain {
			r.plain = true
			r.log.WarnContext(ctx, "outbox_events is not partitioned: delivered events are deleted one by one; run `notifyd migrate --partitions daily`")
		}
		return []store.Range{store.AllIDs()}
	}
	return u.Purge
}
