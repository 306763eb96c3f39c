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

// TestNoHang: what waits for another reason than a hang is none, for however long, and in both modes.
func TestNoHang(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, pool *pgxpool.Pool) *patient{
		"idle": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			p := newPatient(t, pool, never, HandlerFunc(works))
			p.start()
			return p
		},
		"paused": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			p := newPatient(t, pool, never, HandlerFunc(works))
			p.start()
			if err := p.Pause("mail"); err != nil {
				t.Fatal(err)
			}
			execute(t, pool, insertThree)
			return p
		},
		"a destination that is down": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			called := make(chan struct{}, 100)
			p := newPatient(t, pool, never, HandlerFunc(func(context.Context, *Event) error {
				called <- struct{}{}
				return Unavailable(errors.New("away"))
			}))
			execute(t, pool, insertThree)
			p.start()
			<-called
			return p
		},
		"a destination that throttles": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			called := make(chan struct{}, 100)
			p := newPatient(t, pool, never, HandlerFunc(func(context.Context, *Event) error {
				called <- struct{}{}
				return Throttled(time.Hour, errors.New("later"))
			}))
			execute(t, pool, insertThree)
			p.start()
			<-called
			return p
		},
		"a lane full of slow handlers": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			called := make(chan struct{}, 100)
			p := newPatient(t, pool, never, HandlerFunc(func(ctx context.Context, _ *Event) error {
				called <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}), WithConcurrency(1), WithTimeout(time.Hour))
			p.settings.patience = 0
			execute(t, pool, insertThree)
			p.start()
			<-called
			return p
		},
		"events that are delayed, and others that wait for their next attempt": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			called := make(chan struct{}, 100)
			p := newPatient(t, pool, never, HandlerFunc(func(context.Context, *Event) error {
				called <- struct{}{}
				return RetryAfter(time.Hour, errors.New("no"))
			}))
			execute(t, pool, `INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id, available_at)
				SELECT 'x', '{}', 'a', '1', CASE WHEN i = 3 THEN now() + interval '1 day' END FROM generate_series(1, 3) AS i`)
			p.start()
			<-called
			return p
		},
		"events that another destination has to get": func(t *testing.T, pool *pgxpool.Pool) *patient {
			t.Helper()
			p := newPatient(t, pool, never, HandlerFunc(works))
			if err := p.Destination("other", HandlerFunc(works)); err != nil {
				t.Fatal(err)
			}
			if err := p.Route("x", "other"); err != nil {
				t.Fatal(err)
			}
			p.start()
			if err := p.Pause("other"); err != nil {
				t.Fatal(err)
			}
			execute(t, pool, insertThree)
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBothModes(t, func(t *testing.T, pool *pgxpool.Pool) {
				p := prepare(t, pool)
				if hangs := p.audited(10 * time.Minute); len(hangs) > 0 {
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
		entered, leave := make(chan struct{}, 10), make(chan struct{})
		busy := newPatient(t, pool, never, HandlerFunc(func(context.Context, *Event) error {
			entered <- struct{}{}
			<-leave
			return nil
		}), WithTimeout(time.Hour))
		busy.start()
		execute(t, pool, insertThree)
		<-entered
		idle := newPatient(t, pool, never, HandlerFunc(works), WithConcurrency(1))
		idle.run() // in a stream it is ready when the other one has given a unit away
		if hangs := append(idle.audited(30*time.Minute), busy.audited(30*time.Minute)...); len(hangs) > 0 {
			t.Errorf("%+v", hangs)
		}
		close(leave)
	})
}
