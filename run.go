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
	const start = "start of the relay"
	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
	for ctx.Err() == nil {
		err := r.checkSchema(ctx)
		switch {
		case err == nil:
			store.Report(r.dispatcher, start, nil)
			return nil
		case errors.Is(err, outboxsql.ErrNotMigrated), errors.Is(err, outboxsql.ErrTooNew), errors.Is(err, outboxsql.ErrMode), errors.Is(err, outboxsql.ErrStream), errors.Is(err, ErrNeedsStream):
			return fmt.Errorf("notifyd: %w", err)
		case errors.Is(err, store.ErrPooler):
			if err := r.avoidPooler(ctx, err); err != nil {
				return err
			}
			continue
		case ctx.Err() == nil:
			store.Report(r.dispatcher, start, err)
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

// avoidPooler makes all connections go past a pooler that would break every part of a relay of a queue, if a
// way past it is configured, and reports it once.
func (r *Relay) avoidPooler(ctx context.Context, err error) error {
	if r.settings.listen == nil || r.connector.Redirected() {
		return fmt.Errorf("notifyd: database.url: %w; a direct database.listen_url would be used for all connections", err)
	}
	r.connector.Redirect(r.settings.listen)
	r.log.WarnContext(ctx, "database.url leads through a pooler in transaction mode: all connections of the relay use database.listen_url instead",
		"host", r.settings.listen.Host, "port", r.settings.listen.Port)
	return nil
}

// sharePooler prepares a stream whose connections lead through a pooler, and reports that once. Where LISTEN has no direct way
// either, the trigger is never kept silent: nobody hears it.
func (r *Relay) sharePooler(ctx context.Context) {
	if r.shared.CompareAndSwap(false, true) {
		r.log.InfoContext(ctx, "database.url leads through a pooler in transaction mode: only LISTEN needs a direct database.listen_url")
	}
	if r.bell == nil {
		return
	}
	conn, err := r.connectBell(ctx)
	switch {
	case err == nil:
		store.Close(ctx, conn)
	case errors.Is(err, store.ErrPooler):
		r.bell = nil
	}
}

func (r *Relay) checkSchema(ctx context.Context) error {
	conn, err := r.connector.Open(ctx, "check")
	if err != nil {
		return err
	}
	defer store.Close(ctx, conn.Conn)
	if err := outboxsql.Check(ctx, conn, r.settings.schema); err != nil {
		return err
	}
	state, err := outboxsql.ReadState(ctx, conn, r.settings.schema)
	if err != nil {
		return err
	}
	if r.stream = state.Mode == outboxsql.ModeStream; r.stream {
		if err := outboxsql.CheckIDs(ctx, conn, r.settings.schema); err != nil {
			return err
		}
		if r.keeper != nil { // of an attempt that has failed
			r.keeper.Close(ctx)
		}
		if conn.IsShared() {
			r.sharePooler(ctx)
		}
		r.readStream()
		return r.missDestinations(ctx)
	}
	if len(r.needy) > 0 {
		return fmt.Errorf("outbox_events of schema %q is a queue, and destinations want more (%s): %w",
			r.settings.schema, strings.Join(r.needy, ", "), ErrNeedsStream)
	}
	if conn.IsShared() {
		return store.ErrPooler
	}
	if r.queue.Load() == nil {
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
	// Before anything is delivered. A role that may not read pauses yet finds none, for which no waiting would help.
	if err := r.pauses.honour(ctx); err != nil && !store.IsDenied(err) {
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

// run runs the parts until ctx ends, or the relay is idle where that ends it, and stops them from the outside in: first
// those that hear of events, then those that deliver them, then those that keep their leases and the bell.
func (r *Relay) run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	inner, stopInner := context.WithCancel(context.WithoutCancel(ctx))
	defer stopInner()
	var outside, inside sync.WaitGroup
	if r.listener != nil {
		outside.Go(func() { _ = r.listener.Run(ctx) }) // returns only the cause of ctx
	}
	if r.bell != nil {
		inside.Go(func() { _ = r.bell.Run(inner) }) // the same
	}
	purger := newPurger(r)
	outside.Go(func() { purger.run(ctx) })
	if r.settings.untilIdle {
		outside.Go(func() {
			if r.awaitIdle(ctx, purger.once) {
				r.log.InfoContext(ctx, "the relay is idle")
				stop(nil)
			}
		})
	}
	outside.Go(func() { r.announce(ctx) })
	outside.Go(func() { r.watchdog(ctx) })
	outside.Go(func() { r.pauses.follow(ctx) })
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
		r.limits.Close(ctx)
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
