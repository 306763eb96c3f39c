package notifyd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// Pause stops the deliveries to a destination at all relays of the tables, until Resume is called:
// it is stored, and lasts through restarts. Running calls end as usual, the destination's events
// wait in the table, and no attempt is counted. This relay honours it at once, the others
// within about a second. by is who pauses, and reason why, for people who
// find it paused: up to 1,000 bytes each; reason may be empty. Pausing again replaces both. The
// error wraps [ErrDestination] if this relay has no destination of that name. It uses the pool that
// was given to [New].
func (r *Relay) Pause(ctx context.Context, destination, by, reason string) error {
	if err := r.has(destination); err != nil {
		return err
	}
	r.pauses.mu.Lock() // or what pauses.follow has read before would end the pause
	defer r.pauses.mu.Unlock()
	ctx, cancel := answeredSoon(ctx)
	defer cancel()
	if err := store.SetPause(ctx, r.pool, r.settings.schema, destination, observe.Pause{By: by, Reason: reason}); err != nil {
		return fmt.Errorf("notifyd: %w", err)
	}
	return r.dispatcher.Pause(destination) //nolint:wrapcheck // there is a destination of that name
}

// Resume ends a pause, at all relays. It does nothing if the destination is not paused. The error
// wraps [ErrDestination] if this relay has no destination of that name.
func (r *Relay) Resume(ctx context.Context, destination string) error {
	if err := r.has(destination); err != nil {
		return err
	}
	r.pauses.mu.Lock()
	defer r.pauses.mu.Unlock()
	ctx, cancel := answeredSoon(ctx)
	defer cancel()
	if _, err := store.ClearPause(ctx, r.pool, r.settings.schema, destination); err != nil {
		return fmt.Errorf("notifyd: %w", err)
	}
	return r.dispatcher.Resume(destination) //nolint:wrapcheck // there is a destination of that name
}

// ReloadRefused records that the program goes on with this relay, because it has refused a new
// configuration: `notifyd status` and `notifyd reload` say so, and why. An empty why records the opposite: the
// program has taken the configuration, which changes nothing for this relay. It uses the pool that was given
// to [New].
func (r *Relay) ReloadRefused(ctx context.Context, why string) error {
	ctx, cancel := answeredSoon(ctx)
	defer cancel()
	if why == "" {
		if err := store.NoteReload(ctx, r.pool, r.settings.schema, r.owner); err != nil {
			return fmt.Errorf("notifyd: %w", err)
		}
		return nil
	}
	if err := store.NoteRefusal(ctx, r.pool, r.settings.schema, r.owner, why); err != nil {
		return fmt.Errorf("notifyd: %w", err)
	}
	return nil
}

// answeredSoon bounds a statement through the pool, which itself waits for as long as ctx lasts: for a
// connection, and for a server that has vanished.
func answeredSoon(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, store.RoundTripTimeout, fmt.Errorf("the database did not answer within %v", store.RoundTripTimeout))
}

func (r *Relay) has(destination string) error {
	if !r.dispatcher.Has(destination) {
		return fmt.Errorf("notifyd: %w %q: there is no destination of that name", ErrDestination, destination)
	}
	return nil
}

// pausePoll is how often relays look for pauses: it bounds how late a pause of another relay, or of a person, is honoured.
const pausePoll = time.Second

// pauses honours the stored pauses of destinations.
type pauses struct {
	relay *Relay
	mu    sync.Mutex // held while pauses are read or written, and honoured
}

// honour honours what is stored, once.
func (p *pauses) honour(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	paused, confirmed, now, err := p.relay.keeper.Paused(ctx)
	if err != nil {
		return err
	}
	p.relay.dispatcher.SetPaused(paused)
	p.relay.dispatcher.SetClock(now, time.Now())
	if confirmed {
		return nil
	}
	return p.relay.keeper.Confirm(ctx, paused)
}

// follow honours what is stored until ctx ends. While the database does not answer, what was
// read last holds.
func (p *pauses) follow(ctx context.Context) {
	failing := false
	for pause(ctx, pausePoll) {
		err := p.honour(ctx)
		switch {
		case err == nil, ctx.Err() != nil:
		case store.IsDown(err): // reported once for all sessions
			p.relay.dispatcher.ReportDatabase(err)
		case !failing:
			p.relay.log.WarnContext(ctx, "pauses of destinations cannot be read: those that are known hold", "err", err)
		}
		failing = err != nil
	}
}
