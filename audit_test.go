package notifyd

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/engine"
)

// never is a second of a watch whose time a test makes pass.
const never = time.Hour

// audited returns what looks for work that is due have found after the given time, in which the relay may do what it wants.
func (p *patient) audited(long time.Duration) (hangs []engine.Hang) {
	p.Helper()
	a := newAudit(p.Relay)
	for range long / auditEvery {
		hangs = a.look(p.Context())
		for range auditEvery / time.Second {
			p.pulse.Tick()
		}
	}
	return append(hangs, a.look(p.Context())...)
}

const insertThree = `INSERT INTO outbox_events (event_type, payload) SELECT 'x', '{}' FROM generate_series(1, 3)`

// errands is a handler that tells the test of each call.
func errands(answer func(ctx context.Context) error) (h Handler, called chan struct{}) {
	called = make(chan struct{}, 100)
	return HandlerFunc(func(ctx context.Context, _ *Event) error {
		called <- struct{}{}
		return answer(ctx)
	}), called
}

// busy starts a relay over events for which the handler is called.
func busy(t *testing.T, pool *pgxpool.Pool, insert string, answer func(ctx context.Context) error, options ...HandleOption) *patient {
	t.Helper()
	h, called := errands(answer)
	p := newPatient(t, pool, never, h, options...)
	p.settings.patience = 0
	execute(t, pool, insert)
	p.start()
	<-called
	return p
}

// paused starts a relay with events for a destination that is paused, and which gets all, or those of a type.
func paused(t *testing.T, pool *pgxpool.Pool, name string) *patient {
	t.Helper()
	p := newPatient(t, pool, never, HandlerFunc(works))
	if name != "mail" {
		if err := errors.Join(p.Destination(name, HandlerFunc(works)), p.Route("x", name)); err != nil {
			t.Fatal(err)
		}
	}
	p.start()
	if err := p.Pause(t.Context(), name, "a test", ""); err != nil {
		t.Fatal(err)
	}
	execute(t, pool, insertThree)
	return p
}

// TestNoHang: what waits for another reason than a hang is none, for however long, and in both modes.
func TestNoHang(t *testing.T) {
	t.Parallel()
	const later = `INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id, available_at)
		SELECT 'x', '{}', 'a', '1', CASE WHEN i = 3 THEN now() + interval '1 day' END FROM generate_series(1, 3) AS i`
	for name, prepare := range map[string]func(t *testing.T, pool *pgxpool.Pool) *patient{
		"idle": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			p := newPatient(t, pool, never, HandlerFunc(works))
			p.start()
			return p
		},
		"paused": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return paused(t, pool, "mail")
		},
		"events that another destination has to get": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return paused(t, pool, "other")
		},
		"a destination that is down": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return busy(t, pool, insertThree, func(context.Context) error { return Unavailable(errors.New("away")) })
		},
		"a destination that throttles": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return busy(t, pool, insertThree, func(context.Context) error { return Throttled(time.Hour, errors.New("later")) })
		},
		"a lane full of slow handlers": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return busy(t, pool, insertThree, func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			}, WithConcurrency(1), WithTimeout(time.Hour))
		},
		"events that are delayed, and others that wait for their next attempt": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			return busy(t, pool, later, func(context.Context) error { return RetryAfter(time.Hour, errors.New("no")) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
				t.Helper()
				if hangs := prepare(t, pool).audited(10 * time.Minute); len(hangs) > 0 {
					t.Errorf("%+v", hangs)
				}
			})
		})
	}
}

// TestOtherRelayDoesTheWork: a relay without anything to do, beside one that does all, does not hang.
func TestOtherRelayDoesTheWork(t *testing.T) {
	t.Parallel()
	inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		entered, leave := make(chan struct{}, 10), make(chan struct{})
		worker := newPatient(t, pool, never, HandlerFunc(func(context.Context, *Event) error {
			entered <- struct{}{}
			<-leave
			return nil
		}), WithTimeout(time.Hour))
		worker.start()
		execute(t, pool, insertThree)
		<-entered
		idle := newPatient(t, pool, never, HandlerFunc(works), WithConcurrency(1))
		idle.run()
		<-idle.listens // in a stream it is ready only when the other one has given a unit away
		if hangs := append(idle.audited(30*time.Minute), worker.audited(30*time.Minute)...); len(hangs) > 0 {
			t.Errorf("%+v", hangs)
		}
		close(leave)
	})
}
