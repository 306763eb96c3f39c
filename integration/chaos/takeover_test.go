package chaos

import (
	"maps"
	"math"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/idset"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// takeover is a position as a relay took it over.
type takeover struct {
	at   time.Time // by the clock of the server
	head int64
	open idset.Set
}

// watchTakeovers makes the database record each position that is taken over.
func (c *cell) watchTakeovers() {
	c.t.Helper()
	c.exec(`CREATE TABLE takeovers (at timestamptz DEFAULT clock_timestamp(), head bigint, open text);
		CREATE FUNCTION takeovers() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
			INSERT INTO takeovers (head, open) VALUES (OLD.head, OLD.open::text);
			RETURN NULL;
		END $$;
		CREATE TRIGGER takeovers AFTER UPDATE ON outbox_positions FOR EACH ROW
			WHEN (NEW.destination = 'all' AND NEW.epoch <> OLD.epoch) EXECUTE FUNCTION takeovers()`)
}

// takeovers returns the records.
func (c *cell) takeovers() []takeover {
	c.t.Helper()
	rows, err := c.pool.Query(c.ctx, `SELECT at, head, open FROM takeovers ORDER BY at`)
	if err != nil {
		c.t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (t takeover, err error) {
		err = r.Scan(&t.at, &t.head, &t.open)
		return t, err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range all {
		if c.skew != 0 && time.Since(all[i].at).Abs() > c.skew.Abs()/2 {
			all[i].at = all[i].at.Add(-c.skew)
		}
	}
	return all
}

// exposed returns the events that the destination had received before the
// take-over, and that the position did not show: they were in flight, or
// acknowledged since the last write of the position. Only these may come twice.
func (t *takeover) exposed(arrivals []arrival) map[int64]bool {
	ids := make(map[int64]bool)
	for _, a := range arrivals {
		if a.At.Before(t.at) && (a.ID > t.head || t.open.Contains(a.ID)) {
			ids[a.ID] = true
		}
	}
	return ids
}

// TestTakeover removes the relay that delivers a stream: the other one continues,
// nothing is lost, nothing comes out of order, and only events that had arrived
// and were not recorded come twice.
func TestTakeover(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(*cell, *child){
		"killed":        func(c *cell, r *child) { r.signal(c.t, syscall.SIGKILL) },
		"asked to stop": func(c *cell, r *child) { r.signal(c.t, syscall.SIGTERM) },
		"frozen":        freezeInCalls,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fault{relays: 2}
			c := newCell(t, &f, outboxsql.ModeStream, shortForm())
			c.form.every = 20 * time.Millisecond // 1,000 events/s
			for range f.relays {
				c.startRelay()
			}
			c.load.steady()
			c.await("deliveries under load", func() bool { return c.place.distinct() >= 1000 })
			gone := c.deliverer()
			began := time.Now()
			away(c, gone)
			next := func(a arrival) bool { return a.By != gone.cmd.Process.Pid }
			c.await("the other relay delivers", func() bool { return slices.ContainsFunc(c.place.all(), next) })
			last := c.last()
			c.await("it has delivered the earlier events", func() bool { return c.done(last) })
			woken := c.wake(name, gone)
			c.load.insist("tail", 10, lastOnes)
			c.load.end()
			c.await("everything is done", func() bool { return c.done(math.MaxInt64) })

			r := c.count(name, kind{c.mode, steadyLoad}, began, began)
			r.check(t)
			arrivals := c.place.all()
			first := arrivals[slices.IndexFunc(arrivals, next)]
			t.Logf("resumed after %s; %d of %d events came twice, %d could have", seconds(first.At.Sub(began)), r.twice, r.written, r.bound)
			c.checkCopies(gone, woken)
			if name == "asked to stop" && r.twice > 0 {
				t.Errorf("%d came twice, though the relay had handed over", r.twice)
			}
		})
	}
}

// freezeInCalls freezes a relay while all its calls wait for an answer, so that
// none is about to begin, and then gives the answers.
func freezeInCalls(c *cell, r *child) {
	c.t.Helper()
	c.sink().set(c.t, modeBlocked)
	c.load.insist("frozen", freezeKeys, 5*freezeKeys)
	c.await("all calls wait for the destination", func() bool { return c.sink().holding() == relayConcurrency })
	r.signal(c.t, syscall.SIGSTOP)
	c.sink().set(c.t, modeUp)
}

// wake wakes a frozen relay, waits until it has noticed its losses, and returns
// that time; a time in the far future if the relay was not frozen.
func (c *cell) wake(name string, r *child) time.Time {
	c.t.Helper()
	if name != "frozen" {
		return time.Now().Add(patience)
	}
	woken := time.Now()
	r.signal(c.t, syscall.SIGCONT)
	c.await("the frozen relay has noticed", func() bool { return r.log.has("leases lost") })
	return woken
}

// checkCopies requires that each further copy is of an event that a take-over
// exposed, and that a woken relay made none.
func (c *cell) checkCopies(r *child, woken time.Time) {
	c.t.Helper()
	arrivals := c.place.all()
	may := make(map[int64]bool)
	for _, t := range c.takeovers() {
		maps.Copy(may, t.exposed(arrivals))
	}
	seen, wrong, late := make(map[int64]bool), 0, 0
	for _, a := range arrivals {
		if seen[a.ID] {
			if !may[a.ID] {
				wrong++
			}
			if a.By == r.cmd.Process.Pid && a.At.After(woken) {
				late++
			}
		}
		seen[a.ID] = true
	}
	if wrong > 0 {
		c.t.Errorf("%d events came twice that the position had", wrong)
	}
	if late > 0 {
		c.t.Errorf("%d events came again from a relay that had been frozen", late)
	}
}
