package listener

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// silent reports whether a relay suppresses the trigger, as the notify trigger finds out.
const silent = `SELECT NOT (pg_try_advisory_lock_shared(` + lockKey + `) AND pg_advisory_unlock_shared(` + lockKey + `))`

func newTrigger(tb testing.TB, url string) (*Trigger, *dialer, func()) {
	tb.Helper()
	d := &dialer{url: url}
	b := NewTrigger(d.connect, slog.New(&logbook{}))
	return b, d, start(tb, b.Run)
}

// until repeats the query until the answer is want; go test's timeout bounds it.
func until(tb testing.TB, conn *pgx.Conn, query string, want bool) {
	tb.Helper()
	for testdb.One[bool](tb, conn, query) != want {
		if tb.Context().Err() != nil {
			tb.Fatal(tb.Context().Err())
		}
	}
}

// held reports whether a session holds the lock. Unlike silent it does not disturb other sessions.
const held = `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND objsubid = 1
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND classid = 1853122162::oid AND objid = 'outbox_events'::regclass::oid)`

func mustRelease(tb testing.TB, b *Trigger) uint64 {
	tb.Helper()
	xid, err := b.Release(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return xid
}

func TestNotify(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	b, d, stop := newTrigger(t, url)
	until(t, conn, silent, false)
	if xid := mustRelease(t, b); xid == 0 {
		t.Error("no transaction id from a trigger that was never suppressed")
	}
	for range 3 {
		b.Suppress()
		b.Suppress()
		until(t, conn, held, true)
		if !testdb.One[bool](t, conn, silent) {
			t.Error("the trigger is not silent")
		}
		testdb.Exec(t, conn, `BEGIN`)
		testdb.Exec(t, conn, insert, 1)
		before := testdb.One[uint64](t, conn, `SELECT pg_current_xact_id()::text::bigint`)
		xid := mustRelease(t, b)
		if testdb.One[bool](t, conn, held) || testdb.One[bool](t, conn, silent) {
			t.Error("silent after the ring")
		}
		after := testdb.One[uint64](t, testdb.Connect(t, url), `SELECT pg_current_xact_id()::text::bigint`)
		if xid <= before || xid >= after {
			t.Errorf("ring returned %d between %d, silent, and %d, later", xid, before, after)
		}
		testdb.Exec(t, conn, `COMMIT`)
	}
	// The session ends, and with it the suppression, until Run notices.
	b.Suppress()
	until(t, conn, held, true)
	d.terminate(t, conn)
	until(t, conn, held, true)
	d.terminate(t, conn)
	for {
		if xid, err := b.Release(t.Context()); err == nil {
			if before := testdb.One[uint64](t, conn, `SELECT pg_current_xact_id()::text::bigint`); xid == 0 || xid >= before {
				t.Errorf("ring returned %d before %d", xid, before)
			}
			break
		}
	}
	b.Suppress()
	until(t, conn, held, true)
	stop()
	until(t, conn, held, false)
}

// TestRingEndsWithItsContext: also while Run does not run.
func TestRingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := NewTrigger((&dialer{}).connect, slog.New(&logbook{}))
	b.Suppress()
	b.Suppress() // never blocks
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Release(ctx); err == nil {
		t.Error("rang")
	}
}

// TestRunOfTheTriggerEnds: Run ends while the trigger waits for the lock.
func TestRunOfTheTriggerEnds(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	// A writer that never releases the lock, so that the trigger queues again and again.
	testdb.Exec(t, conn, `SELECT pg_advisory_lock_shared(`+lockKey+`)`)
	b, _, stop := newTrigger(t, url)
	b.Suppress()
	until(t, conn, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`, true)
	stop()
}

// TestTwoTriggers: the second one does not wait for the first, and takes over.
func TestTwoTriggers(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	first, d1, _ := newTrigger(t, url)
	second, d2, _ := newTrigger(t, url)
	first.Suppress()
	until(t, conn, held, true)
	second.Suppress()
	until(t, conn, `SELECT true`, true)
	// The second one always answers, and its ring does not end the silence of the first.
	for range 5 {
		second.Suppress()
		mustRelease(t, second)
	}
	if !testdb.One[bool](t, conn, held) {
		t.Error("the release by the second relay ended the suppression by the first")
	}
	holder := func() int64 {
		return testdb.One[int64](t, conn, `SELECT coalesce(max(pid), 0)::bigint FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
			AND classid = 1853122162::oid AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	}
	pid := func(d *dialer) int64 {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.pids[len(d.pids)-1]
	}
	if holder() != pid(d1) {
		t.Error("the first relay does not hold the lock")
	}
	mustRelease(t, first)
	second.Suppress()
	until(t, conn, held, true)
	if holder() != pid(d2) {
		t.Error("the second relay did not take over")
	}
	// And back, by the death of the second; either relay may have requested suppression.
	first.Suppress()
	d2.terminate(t, conn)
	until(t, conn, held, true)
	if got := holder(); got != pid(d1) && got != pid(d2) {
		t.Error("neither the first relay nor the second, risen again, took over")
	}
}

// TestTriggerUnderLoad: writers test the lock by taking it for a moment, all the time. The trigger must
// fall silent all the same, and the ring must return an id above those of all silent writers.
func TestTriggerUnderLoad(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	b, _, _ := newTrigger(t, url)
	testdb.Exec(t, conn, `CREATE TABLE said (id bigint, xid bigint, silent boolean)`)
	var rounds atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 16 {
		writer := testdb.Connect(t, url)
		wg.Go(func() {
			for ctx.Err() == nil {
				// The trigger's test, next to the transaction's own id. The test comes last, so that
				// its result still holds when the id has been drawn.
				if _, err := writer.Exec(t.Context(), `WITH x AS MATERIALIZED (SELECT pg_current_xact_id()::text::bigint AS xid)
					INSERT INTO said SELECT $1::bigint, xid, NOT (pg_try_advisory_lock_shared(`+lockKey+`) AND pg_advisory_unlock_shared(`+lockKey+`)) FROM x`,
					rounds.Load()); err != nil {
					t.Errorf("writer: %v", err)
					return
				}
			}
		})
	}
	quiet := 0
	for round := range 20 {
		rounds.Store(int64(round))
		b.Suppress()
		until(t, conn, held, true)
		xid := mustRelease(t, b)
		// Transactions below xid may still be open; those above were not silent, unless because of
		// a later silence.
		until(t, conn, `SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint > `+strconv.FormatUint(xid, 10), true)
		if n := testdb.One[int](t, conn, `SELECT count(*) FROM said WHERE silent AND xid >= $1::bigint`, int64(xid)); n != 0 {
			t.Fatalf("round %d: %d writers were silent with an id above the ring's", round, n)
		}
		quiet = testdb.One[int](t, conn, `SELECT count(*) FROM said WHERE silent`)
	}
	cancel()
	wg.Wait()
	if quiet == 0 {
		t.Error("no writer was ever silent")
	}
}

// TestHolderThatHasEnded: a session that ends between the reads of pg_locks and of pg_stat_activity is no holder.
func TestHolderThatHasEnded(t *testing.T) {
	t.Parallel()
	url, other := database(t)
	testdb.Exec(t, other, `SELECT pg_advisory_lock(7)`)
	conn := testdb.Connect(t, url)
	if by, found, err := holderOf(t.Context(), conn, `l.objid = 7`); err != nil || !found || by.user == "" {
		t.Fatalf("found %v %+v, %v", found, by, err)
	}

	testdb.Exec(t, conn, `CREATE TEMP VIEW pg_stat_activity AS SELECT * FROM pg_catalog.pg_stat_activity WHERE application_name = 'nobody'`)
	testdb.Exec(t, conn, `SET search_path = pg_temp, pg_catalog`)
	if by, found, err := holderOf(t.Context(), conn, `l.objid = 7`); err != nil || found {
		t.Errorf("found %v %+v, %v", found, by, err)
	}
}

// TestForeignHolderOfTheTrigger: a session that is not a relay, and suppresses the trigger, is logged once.
func TestForeignHolderOfTheTrigger(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	log := &logbook{}
	b := NewTrigger((&dialer{url: url}).connect, slog.New(log))
	start(t, b.Run)
	mustRelease(t, b)
	log.expect(t)
	testdb.Exec(t, conn, `SET application_name = 'notifyd/notify'`)
	testdb.Exec(t, conn, `SELECT pg_advisory_lock(`+lockKey+`)`)
	mustRelease(t, b)
	log.expect(t) // another relay
	testdb.Exec(t, conn, `SET application_name = 'psql'`)
	for range 3 {
		mustRelease(t, b)
	}
	log.expect(t, "WARN session that is not a relay suppresses the trigger")
}
