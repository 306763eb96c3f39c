package integration

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/observe"
)

// aliveOwner is the number of a relay that is alive, according to its lock, and
// does not renew.
const aliveOwner = `(1853122159::bigint << 32 | 7)`

// leaseHistory records the changes of leases, by the clock of the database.
const leaseHistory = `
CREATE TABLE lease_history (event_id bigint, renewed boolean, at timestamptz, old_until timestamptz, until timestamptz);
CREATE FUNCTION note_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO lease_history VALUES (NEW.event_id, NEW.state = 'running', clock_timestamp(), OLD.lease_until, NEW.lease_until);
	RETURN NULL;
END $$;
CREATE TRIGGER note_lease AFTER UPDATE ON outbox_deliveries FOR EACH ROW WHEN (OLD.state = 'running') EXECUTE FUNCTION note_lease()`

// leaseTrial is a delivery that takes longer than its lease, at one of two relays.
type leaseTrial struct {
	*env

	lease  time.Duration
	slow   *recorder
	others *recorder
	relays []*running
	// release lets the slow handler answer.
	release func()
}

// tryLease starts the relays, whose leases have the given length.
func (e *env) tryLease(lease time.Duration) *leaseTrial {
	e.t.Helper()
	answer := make(chan struct{})
	l := &leaseTrial{env: e, lease: lease, slow: newRecorder(e.t), others: newRecorder(e.t), release: sync.OnceFunc(func() { close(answer) })}
	l.slow.answer = func(ctx context.Context, _ *delivery.Event) error {
		select {
		case <-answer:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	l.others.answer = func(_ context.Context, event *delivery.Event) error {
		if event.Type == "again" && event.Attempt == 1 {
			return errors.New("later")
		}
		return nil
	}
	for range 2 {
		l.relays = append(l.relays, e.relay(func(r *notifyd.Relay) {
			err := errors.Join(
				r.Add(notifyd.Destination{Name: "slow", Handler: l.slow, Lane: delivery.Lane{Timeout: time.Hour}}), r.Add(notifyd.Destination{Name: "others", Handler: l.others, Lane: delivery.Lane{Backoff: quick()}}),
				r.Route("slow", "slow"), r.Route("again", "others"), r.Route("unrenewed", "others"))
			if err != nil {
				e.t.Fatal(err)
			}
		}, notifyd.Config{Lease: lease, PollInterval: 100 * time.Millisecond}))
	}
	e.t.Cleanup(l.release) // before the relays are stopped
	return l
}

// sum adds up a figure of the leases of both relays.
func (l *leaseTrial) sum(figure func(observe.LeaseStats) uint64) (n uint64) {
	for _, r := range l.relays {
		n += figure(r.Stats().Leases)
	}
	return n
}

// outlive runs a delivery for three times its lease, next to a lease of the same
// length that no relay renews: when the latter has been taken over, the other one
// must be untouched. It reports false if this machine stalled for the length of a
// lease.
func (l *leaseTrial) outlive() bool {
	l.t.Helper()
	length := l.lease.Microseconds()
	id := l.insert("slow", "1")
	l.slow.next()
	l.until("the delivery under a lease", `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE event_id = $1 AND lease_until > clock_timestamp())
		OR EXISTS (SELECT FROM lease_history WHERE event_id = $1)`, id)
	unrenewed := scan[int64](l.env, `WITH e AS (INSERT INTO outbox_events (event_type, payload, state) VALUES ('unrenewed', '1', 'deferred') RETURNING id, event_type)
		INSERT INTO outbox_deliveries (event_id, destination, event_type, state, lease_owner, lease_token, lease_until)
		SELECT id, 'others', event_type, 'running', `+aliveOwner+`, 1, clock_timestamp() + 3 * $1::bigint * interval '1 microsecond' FROM e
		RETURNING event_id`, length)
	for l.others.next().ID != unrenewed {
	}

	early := scan[int](l.env, `SELECT count(*) FROM lease_history WHERE NOT renewed AND event_id IN ($1, $2) AND at < old_until`, id, unrenewed)
	lost := scan[int](l.env, `SELECT count(*) FROM lease_history WHERE NOT renewed AND event_id = $1`, id)
	renewed := scan[int](l.env, `SELECT count(*) FROM lease_history WHERE renewed AND event_id = $1 AND until > old_until
		AND until BETWEEN at - interval '10 min' AND at + $2::bigint * interval '1 microsecond'`, id, length)
	if early > 0 {
		l.t.Errorf("%d leases were taken over before their end", early)
	}
	if lost > 0 || slices.ContainsFunc(l.relays, (*running).lostClaim) {
		l.t.Logf("a lease of %v was not renewed in time, after %d renewals", l.lease, renewed)
		l.finish()
		return false
	}
	if renewed < 3 || !scan[bool](l.env, `SELECT max(until) - min(old_until) >= 2 * $2::bigint * interval '1 microsecond'
		FROM lease_history WHERE event_id = $1`, id, length) {
		l.t.Errorf("%d renewals have not moved the end of the lease by twice its length", renewed)
	}
	testenv.Await(l.t, "the renewals counted", func() bool {
		return l.sum(func(s observe.LeaseStats) uint64 { return s.Renewed }) >= 3
	})
	testenv.Await(l.t, "the lease that was taken over counted", func() bool {
		return l.sum(func(s observe.LeaseStats) uint64 { return s.TakenOver }) > 0
	})
	l.finish()
	if n := l.slow.times(id); n != 1 {
		l.t.Errorf("the slow delivery began %d times", n)
	}
	return true
}

// finish lets the handlers answer, waits until all is done and stops the relays.
func (l *leaseTrial) finish() {
	l.t.Helper()
	l.release()
	l.untilDone()
	for _, r := range l.relays {
		if err := r.end(); err != nil {
			l.t.Error(err)
		}
	}
}

// untilOutlived retries with longer leases if the machine stalls for the length
// of the shorter ones. Leases that are not renewed are lost, whatever their
// length.
func (e *env) untilOutlived() {
	e.t.Helper()
	for _, lease := range []time.Duration{time.Second, 5 * time.Second, 20 * time.Second} {
		if e.tryLease(lease).outlive() || e.t.Failed() {
			return
		}
	}
	e.t.Error("leases were not renewed in time, whatever their length")
}

// withLeases prepares the database for trials.
func (e *env) withLeases() {
	e.t.Helper()
	e.exec(leaseHistory)
	conn, err := e.pool.Acquire(e.ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(conn.Release)
	if _, err := conn.Exec(e.ctx, `SELECT pg_advisory_lock`+aliveOwner); err != nil {
		e.t.Fatal(err)
	}
}

// TestHandlerThatOutlivesItsLease: as long as its relay renews the lease, no
// other relay takes over the delivery.
func TestHandlerThatOutlivesItsLease(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.withLeases()
	e.untilOutlived()
}

// TestClocksThatDiffer: only the database's clock compares and writes times, so the clocks of relays may differ. A Go
// program cannot have a separate clock, but the server can. The test runs with a server clock ahead of the relays, and
// with one behind. A relay's time in a statement would be too early in one case, and too late in the other.
func TestClocksThatDiffer(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	server, set := testenv.ClockPostgres(t, nil)
	set(time.Hour)
	e := envAt(t, server.URL(""))
	e.withLeases()
	for _, offset := range []time.Duration{time.Hour, -time.Hour} {
		set(offset)
		e.until("the clock of the server", `SELECT abs(extract(epoch FROM clock_timestamp() - $1)) < 1800`, time.Now().Add(offset))
		e.exec(`TRUNCATE lease_history`)
		id := e.insert("again", "1")
		e.untilOutlived()
		if !scan[bool](e, `SELECT processed_at BETWEEN created_at AND clock_timestamp() FROM outbox_events WHERE id = $1`, id) {
			t.Errorf("%v: the event was not done by the clock of the server", offset)
		}
	}
}

// TestAnswerThatACrashTookBack: the commit of a leased delivery's answer does not
// wait for the disk, so a crash of the server may restore the lease of a live
// relay that has forgotten it. The delivery does not wait for the end of the
// lease, and the relay's current deliveries are untouched.
func TestAnswerThatACrashTookBack(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	slow, others, answer := newRecorder(t), newRecorder(t), make(chan struct{})
	release := sync.OnceFunc(func() { close(answer) })
	slow.answer = func(context.Context, *delivery.Event) error {
		<-answer
		return nil
	}
	relay := e.relay(func(r *notifyd.Relay) {
		err := errors.Join(r.Add(notifyd.Destination{Name: "slow", Handler: slow, Lane: delivery.Lane{Timeout: time.Hour}}), r.Add(notifyd.Destination{Name: "others", Handler: others, Lane: delivery.Lane{Backoff: quick()}}),
			r.Route("slow", "slow"), r.Route("lost", "others"))
		if err != nil {
			t.Fatal(err)
		}
	}, notifyd.Config{Lease: time.Hour})
	t.Cleanup(release)
	id := e.insert("slow", "1")
	slow.next()
	e.until("the delivery under a lease", `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE event_id = $1 AND state = 'running')`, id)
	// As after the crash: a token that the relay has used, or skipped.
	lost := scan[int64](e, `WITH e AS (INSERT INTO outbox_events (event_type, payload, state) VALUES ('lost', '1', 'deferred') RETURNING id, event_type)
		INSERT INTO outbox_deliveries (event_id, destination, event_type, state, lease_owner, lease_token, lease_until)
		SELECT e.id, 'others', e.event_type, 'running', d.lease_owner, d.lease_token - 1, d.lease_until FROM e, outbox_deliveries AS d
		RETURNING event_id`)
	if n := scan[int](e, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE application_name = 'notifyd/maintenance' AND datname = current_database()`); n != 1 {
		t.Fatalf("%d sessions of the maintenance session", n)
	}
	if got := others.next(); got.ID != lost {
		t.Errorf("event %d was delivered, not %d", got.ID, lost)
	}
	release()
	e.untilDone()
	if err := relay.end(); err != nil {
		t.Error(err)
	}
	if n, m := slow.times(id), others.times(lost); n != 1 || m != 1 {
		t.Errorf("the slow delivery began %d times, the one that came back %d times", n, m)
	}
	if n := relay.Stats().Fenced; n != 0 {
		t.Errorf("%d answers were refused", n)
	}
}
