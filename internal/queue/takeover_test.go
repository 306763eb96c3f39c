package queue

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/internal/deliveries"
)

// none are the leases of a new relay.
func none() deliveries.Tokens { return deliveries.Tokens{} }

func (d *db) takeOver(k *Maintenance) int {
	d.Helper()
	n, err := k.TakeOver(d.Context(), none)
	if err != nil {
		d.Fatal(err)
	}
	return n
}

func TestTakeOver(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	a, b, c := options(), options(), options()
	alive, other := d.maintenance(a), d.maintenance(b)
	d.hold(alive)
	d.hold(other)
	d.lease(a.Owner, 1, soon)                     // its owner is alive
	d.lease(b.Owner, 1, soon)                     // the other one's own
	d.lease(a.Owner, 2, `now() - interval '1 s'`) // not renewed
	if n := d.takeOver(other); n != 1 {
		t.Errorf("%d taken over, want the one that was not renewed", n)
	}
	d.expect("first", stored, "1/x running 2", "2/x running 2", "3/x retry 2")
	if n := d.takeOver(other); n != 0 {
		t.Errorf("%d taken over from the living", n)
	}
	d.lease(c.Owner, 1, soon) // an owner that never existed
	if n := d.takeOver(other); n != 1 {
		t.Errorf("%d taken over from the one that never existed", n)
	}
	d.end(a.Owner)
	if n := d.takeOver(other); n != 1 {
		t.Errorf("%d taken over from the dead", n)
	}
	d.expect("all", stored, "1/x retry 2", "2/x running 2", "3/x retry 2", "4/x retry 2")
	d.expect("reason", `SELECT DISTINCT error_class FROM outbox_deliveries WHERE state = 'retry'`, "relay")
	d.expect("due at once", `SELECT format('%s', event_id) FROM outbox_deliveries WHERE state = 'retry' AND available_at > clock_timestamp()`)

	// A relay that only lost its connection for a moment is alive and can finish the leases that
	// were not taken over.
	if err := alive.Renew(t.Context(), []int64{1}); err == nil {
		t.Error("renewed on a dead connection")
	}
	d.hold(alive)
	d.lease(a.Owner, 7, soon)
	if n := d.takeOver(other); n != 0 {
		t.Errorf("%d taken over from the one that is back", n)
	}
	// A relay that stops in order is gone at once.
	alive.Close(t.Context())
	d.Exec(`SELECT pg_advisory_lock($1)`, a.Owner) // waits for the server to notice
	d.Exec(`SELECT pg_advisory_unlock($1)`, a.Owner)
	if n := d.takeOver(other); n != 1 {
		t.Errorf("%d taken over from the one that has stopped", n)
	}
	// The same number in another database belongs to another relay.
	elsewhere := newDB(t)
	stranger := elsewhere.maintenance(c)
	elsewhere.hold(stranger)
	d.lease(c.Owner, 9, soon)
	if n := d.takeOver(other); n != 1 {
		t.Errorf("%d taken over while its number is in use elsewhere", n)
	}
}

// TestTakeOverOfOnesOwn: a lease that a crash of the database brought back is due again; live
// leases are not.
func TestTakeOverOfOnesOwn(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	mine, theirs := options(), options()
	k, other := d.maintenance(mine), d.maintenance(theirs)
	d.hold(k)
	d.hold(other)
	for token := range int64(4) {
		d.lease(mine.Owner, token+1, soon)
	}
	d.lease(theirs.Owner, 1, soon)
	asked := 0
	take := func(k *Maintenance, live ...int64) int {
		t.Helper()
		n, err := k.TakeOver(t.Context(), func() deliveries.Tokens {
			asked++
			return deliveries.Tokens{Live: live, Last: 3} // token 4 is given out during the call
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := take(k, 2); n != 2 {
		t.Errorf("%d taken back, want 2", n)
	}
	d.expect("taken back", stored, "1/x retry 2", "2/x running 2", "3/x retry 2", "4/x running 2", "5/x running 2")
	d.expect("why", `SELECT DISTINCT error_class || ': ' || last_error FROM outbox_deliveries WHERE state = 'retry'`, "relay: the database lost the outcome of the delivery")
	if n := take(k); n != 0 || asked != 1 {
		t.Errorf("%d taken back on the same session, asked %d times", n, asked)
	}
	d.end(mine.Owner)
	if _, err := k.TakeOver(t.Context(), func() deliveries.Tokens { t.Error("asked without a session"); return none() }); err == nil {
		t.Error("the loss of the session was not noticed")
	}
	if n := take(k); n != 1 || asked != 2 {
		t.Errorf("%d taken back on the next session, asked %d times", n, asked)
	}
	d.expect("all", stored, "1/x retry 2", "2/x retry 2", "3/x retry 2", "4/x running 2", "5/x running 2")
	// The first call takes over this relay's own leases and those without an owner.
	d.lease(options().Owner, 1, soon)
	if n := take(other); n != 2 {
		t.Errorf("%d taken, want one of its own and one without an owner", n)
	}
	d.expect("the other's", stored, "1/x retry 2", "2/x retry 2", "3/x retry 2", "4/x running 2", "5/x retry 2", "6/x retry 2")
}

// TestLockedByARelayThatDies: the watermarks pass rows that another relay has locked. When that relay dies, its
// events are found at once, and not by the next full sweep, which is half a minute away while there
// is a backlog, and here an hour.
func TestLockedByARelayThatDies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		cfg.PollInterval = time.Hour
		db := newFakeDB()
		r := newRelay(t, db, 1, cfg)
		var c calls
		r.to(t, "a", c.handler(nil), testLane(), "x")
		dead := &fakeSession{db: db, owner: 2, lease: cfg.Lease}
		db.alive[2] = true
		ids := db.write("x", 100)
		if got, err := dead.Claim(t.Context(), Query{Source: SourceSweep, Upto: math.MaxInt64, Limit: 100}); err != nil || len(got.Work) != 100 {
			t.Fatalf("%d events are locked, %v", len(got.Work), err)
		}
		r.start()
		after(time.Minute)
		ids = append(ids, db.write("x", 3)...)
		eventually(t, "the others are delivered", func() bool { return c.n() == 3 })
		after(time.Minute)
		dead.lose()
		db.set(func() { delete(db.alive, 2) })
		after(2 * houseEvery)
		if n := db.unfinished(); n > 0 {
			t.Errorf("%d events wait two rounds of housekeeping after the death of the relay that had locked them", n)
		}
		c.once(t, ids)
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestClaimersAreListed while their sessions last.
func TestClaimersAreListed(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	k, s := d.maintenance(options()), d.session(options())
	d.sweep(s, 1)
	listed := func() bool {
		t.Helper()
		pids, err := k.Claimers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(pids, int32(s.conn.PgConn().PID()))
	}
	if !listed() {
		t.Error("a session that claims is not listed")
	}
	d.Exec(`SELECT pg_terminate_backend($1, 60000)`, s.conn.PgConn().PID())
	if listed() {
		t.Error("a session that has ended is listed")
	}
}
