package ops_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/ops"
)

func TestReplayDeadLetters(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.bury(1, 3, "mail", "a", "bad")
	d.bury(2, 1, "audit", "a", "bad")
	d.exec(`DELETE FROM outbox_events WHERE id = 3`)
	d.exec(`UPDATE outbox_events SET state = 'deferred', processed_at = NULL WHERE id = 2`)
	ear, err := d.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer ear.Release()
	if _, err := ear.Exec(t.Context(), "LISTEN "+pgx.Identifier{pgschema.Channel(letterSchema)}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	a := ops.BulkAction{Actor: "ann", Reason: "fixed"}
	r, err := d.store.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{Destination: "mail"}, a)
	if err != nil || r != (ops.BulkResult{Matched: 3, Done: 2, Orphans: 1}) {
		t.Fatalf("%+v, %v", r, err)
	}
	if n, err := ear.Conn().WaitForNotification(t.Context()); err != nil || n.Payload != "deliveries" {
		t.Errorf("notification %+v, %v; want one about deliveries", n, err)
	}
	d.expect("deliveries", deliveries, "1/mail retry 0 r1 order/1", "2/audit dead 3 r0 order/2", "2/mail retry 0 r1 order/2", "3/mail dead 3 r0 order/3")
	d.expect("due", `SELECT bool_and(available_at <= now())::text FROM outbox_deliveries WHERE state = 'retry'`, "true")
	d.expect("events", events, "1 deferred f", "2 deferred f")
	d.expect("audit", audit, "replay ann 1 mail fixed 1", "replay ann 2 mail fixed 1")

	if r, err := d.store.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{Destination: "mail", Events: []int64{1, 2}}, a); err != nil || r != (ops.BulkResult{}) {
		t.Errorf("again: %+v, %v", r, err)
	}
	d.exec(`UPDATE outbox_deliveries SET state = 'dead' WHERE event_id = 1`)
	if r, err := d.store.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{Events: []int64{1}}, ops.BulkAction{}); err != nil || r.Done != 1 {
		t.Errorf("after another death: %+v, %v", r, err)
	}
	d.expect("replays", `SELECT replays::text FROM outbox_deliveries WHERE event_id = 1`, "2")
	d.expect("audit", `SELECT (actor = session_user AND details->>'replay' = '2')::text FROM outbox_audit ORDER BY id DESC LIMIT 1`, "true")
}

// TestDiscardMissing: of the deliveries whose events are missing all are discarded, dead or not, and no other.
func TestDiscardMissing(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.bury(1, 6, "mail", "a", "bad")
	d.exec(`UPDATE outbox_deliveries SET state = 'retry' WHERE event_id IN (2, 3)`)
	d.exec(`UPDATE outbox_deliveries SET state = 'running', lease_owner = 1, lease_token = 1, lease_until = now() WHERE event_id = 6`)
	d.exec(`DELETE FROM outbox_events WHERE id > 2`)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (3, '', 'a', 'unrouted')`)
	missing := ops.DeadLetterFilter{Missing: true}
	page, err := d.store.DeadLetters(t.Context(), missing, ops.DeliveryRef{}, 3)
	if err != nil || len(page.Letters) != 3 || page.Next == nil || *page.Next != (ops.DeliveryRef{Destination: "mail", EventID: 4}) {
		t.Errorf("%+v, %v", page, err)
	}
	if _, err := d.store.ReplayDeadLetters(t.Context(), missing, ops.BulkAction{}); !errors.Is(err, ops.ErrInvalid) {
		t.Errorf("a replay of what is missing: %v", err)
	}
	r, err := d.store.DiscardDeadLetters(t.Context(), missing, ops.BulkAction{Actor: "ann", Batch: 1})
	if err != nil || r != (ops.BulkResult{Matched: 4, Done: 4}) {
		t.Fatalf("%+v, %v", r, err)
	}
	d.expect("deliveries", `SELECT event_id || ' ' || state FROM outbox_deliveries ORDER BY 1`, "1 dead", "2 retry", "6 running")
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		deletes bool
		want    []string
	}{
		{false, []string{"1 done t", "2 deferred f", "3 done t", "4 done t", "6 fresh f"}},
		{true, []string{"2 deferred f", "3 done t", "6 fresh f"}},
	} {
		t.Run(fmt.Sprint(c.deletes), func(t *testing.T) {
			t.Parallel()
			d := newLetters(t, c.deletes)
			d.bury(1, 5, "mail", "a", "bad")
			d.bury(3, 1, "audit", "a", "bad")
			d.exec(`UPDATE outbox_events SET state = 'deferred', processed_at = NULL WHERE id IN (2, 4)`)
			d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key) VALUES (2, 'log', 'a', 'retry', 'order/2')`)
			d.exec(`DELETE FROM outbox_events WHERE id = 5`)
			d.exec(`INSERT INTO outbox_events (id, event_type, payload) VALUES (6, 'a', '1')`)
			r, err := d.store.DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{Destination: "mail"}, ops.BulkAction{Actor: "ann", Batch: 2})
			if err != nil || r != (ops.BulkResult{Matched: 5, Done: 5}) {
				t.Fatalf("%+v, %v", r, err)
			}
			d.expect("events", events, c.want...)
			d.expect("deliveries", deliveries, "2/log retry 0 r0 order/2", "3/audit dead 3 r0 order/3")
			d.expect("audit", audit, "discard ann 1 mail", "discard ann 2 mail", "discard ann 3 mail", "discard ann 4 mail", "discard ann 5 mail")
		})
	}
}

// TestDiscardReferenced: an event that a foreign key references stays, and the others are deleted, also if the key is checked at
// the COMMIT.
func TestDiscardReferenced(t *testing.T) {
	t.Parallel()
	for _, deferred := range []string{"", " DEFERRABLE INITIALLY DEFERRED"} {
		t.Run("queue"+deferred, func(t *testing.T) {
			t.Parallel()
			d := newLetters(t, true)
			d.bury(1, 4, "mail", "a", "bad")
			d.exec(`CREATE TABLE orders (event bigint REFERENCES outbox_events` + deferred + `)`)
			d.exec(`INSERT INTO orders VALUES (2)`)
			if r, err := d.store.DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{}); err != nil || r.Done != 4 {
				t.Fatalf("%+v, %v", r, err)
			}
			d.expect("events", events, "2 done t")
		})
		t.Run("stream"+deferred, func(t *testing.T) {
			t.Parallel()
			d := newStream(t, true, false)
			d.letters(1, 4, "mail")
			d.exec(`UPDATE outbox_positions SET head = 4, open = '{}'`)
			d.exec(`CREATE TABLE orders (event bigint REFERENCES outbox_events` + deferred + `)`)
			d.exec(`INSERT INTO orders VALUES (2)`)
			if r, err := d.store.DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{}); err != nil || r.Done != 4 {
				t.Fatalf("%+v, %v", r, err)
			}
			d.expect("events", events, "2 fresh f")
		})
	}
}

// TestTwoAtOnce: no letter is replayed by two operators.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	const n = 3000
	d.bury(1, n, "mail", "a", "bad")
	d.bury(1, n, "audit", "a", "bad")
	var wg sync.WaitGroup
	results, errs := make([]ops.BulkResult, 6), make([]error, 6)
	for i := range results {
		f := []ops.DeadLetterFilter{{All: true}, {Destination: "mail"}, {Destination: "audit"}}[i%3]
		wg.Go(func() { results[i], errs[i] = d.store.ReplayDeadLetters(t.Context(), f, ops.BulkAction{Batch: 50 + i}) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	var done int64
	for _, r := range results {
		done += r.Done
	}
	if done != 2*n {
		t.Errorf("%d were done by all operators together, want %d: %+v", done, 2*n, results)
	}
	d.expect("replays", `SELECT format('%s %s %s', state, replays, count(*)) FROM outbox_deliveries GROUP BY state, replays`, fmt.Sprintf("retry 1 %d", 2*n))
	d.expect("audit", `SELECT count(*)::text FROM outbox_audit`, fmt.Sprint(2*n))
}

// TestReplayAgainstDiscard: each letter is either replayed or discarded.
func TestReplayAgainstDiscard(t *testing.T) {
	t.Parallel()
	d := newLetters(t, true)
	const n = 3000
	d.bury(1, n, "mail", "a", "bad")
	var wg sync.WaitGroup
	var replayed, discarded ops.BulkResult
	var errs [2]error
	wg.Go(func() {
		replayed, errs[0] = d.store.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{Batch: 10})
	})
	wg.Go(func() {
		discarded, errs[1] = d.store.DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{Batch: 10})
	})
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	if replayed.Done+discarded.Done != n {
		t.Errorf("replayed %+v, discarded %+v of %d", replayed, discarded, n)
	}
	d.expect("left", `SELECT format('%s %s %s', count(*), count(*) FILTER (WHERE d.state = 'retry'), count(*) FILTER (WHERE e.state = 'deferred'))
		FROM outbox_events e FULL JOIN outbox_deliveries d ON d.event_id = e.id`, fmt.Sprintf("%d %d %d", replayed.Done, replayed.Done, replayed.Done))
}

// TestManyPagedAndReplayed: 10,000 dead letters.
func TestManyPagedAndReplayed(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	const n = 10_000
	d.bury(1, n, "mail", "a", "order % is bad")
	seen := map[int64]bool{}
	var after ops.DeliveryRef
	for pages := 1; ; pages++ {
		page, err := d.store.DeadLetters(t.Context(), ops.DeadLetterFilter{Type: "a"}, after, 777)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids(page.Letters) {
			if seen[id] {
				t.Fatalf("event %d is on two pages", id)
			}
			seen[id] = true
		}
		if page.Next == nil {
			if len(seen) != n || pages != n/777+1 {
				t.Errorf("%d letters on %d pages", len(seen), pages)
			}
			break
		}
		after = *page.Next
	}
	var last ops.BulkResult
	steps := 0
	r, err := d.store.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{Rate: 5000, Progress: func(r ops.BulkResult) {
		if r.Done-last.Done > 500 {
			t.Errorf("%d at a time", r.Done-last.Done)
		}
		last = r
		steps++
	}})
	if err != nil || r != (ops.BulkResult{Matched: n, Done: n}) || last != r || steps < n/500 {
		t.Errorf("%+v in %d steps, %v", r, steps, err)
	}
	d.expect("deliveries", `SELECT format('%s %s', state, count(*)) FROM outbox_deliveries GROUP BY state`, fmt.Sprintf("retry %d", n))
}

// TestInterrupted: the result counts exactly the committed letters.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.bury(1, 100, "mail", "a", "bad")
	stopped := errors.New("stopped by the test")
	ctx, cancel := context.WithCancelCause(t.Context())
	r, err := d.store.ReplayDeadLetters(ctx, ops.DeadLetterFilter{All: true}, ops.BulkAction{Batch: 10, Progress: func(r ops.BulkResult) {
		if r.Done == 30 {
			cancel(stopped)
		}
	}})
	if !errors.Is(err, stopped) || r != (ops.BulkResult{Matched: 100, Done: 30}) {
		t.Errorf("%+v, %v", r, err)
	}
	d.expect("deliveries", `SELECT format('%s %s', state, count(*)) FROM outbox_deliveries GROUP BY state ORDER BY 1`, "dead 70", "retry 30")
}

// cutAtCommit ends a context when the first COMMIT is about to be sent.
type cutAtCommit struct {
	ops.DB

	cut context.CancelFunc
}

func (c cutAtCommit) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	tx, err := c.DB.BeginTx(ctx, options)
	if options.AccessMode == pgx.ReadWrite && err == nil {
		tx = cutTx{tx, c.cut}
	}
	return tx, err
}

type cutTx struct {
	pgx.Tx

	cut context.CancelFunc
}

func (t cutTx) Commit(ctx context.Context) error {
	t.cut()
	return t.Tx.Commit(ctx)
}

// TestInterruptedAtCommit: the result counts what was committed.
func TestInterruptedAtCommit(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.bury(1, 5, "mail", "a", "bad")
	ctx, cancel := context.WithCancel(t.Context())
	store, err := ops.New(cutAtCommit{d.pool, cancel}, ops.Config{Schema: letterSchema})
	if err != nil {
		t.Fatal(err)
	}
	r, err := store.ReplayDeadLetters(ctx, ops.DeadLetterFilter{All: true}, ops.BulkAction{Batch: 2})
	if !errors.Is(err, context.Canceled) || r != (ops.BulkResult{Matched: 5, Done: 2}) {
		t.Errorf("%+v, %v", r, err)
	}
	d.expect("deliveries", `SELECT format('%s %s', state, count(*)) FROM outbox_deliveries GROUP BY state ORDER BY 1`, "dead 3", "retry 2")
}

// TestWhatDiesMeanwhileIsLeft: otherwise a replay of deliveries that die again at once would not
// end.
func TestWhatDiesMeanwhileIsLeft(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.bury(1, 10, "mail", "a", "bad")
	next := 11
	r, err := d.store.ReplayDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{Batch: 1, Progress: func(ops.BulkResult) {
		if next < 100 { // or the test would not end either
			d.bury(next, 1, "mail", "a", "bad")
			next++
		}
	}})
	if err != nil || r != (ops.BulkResult{Matched: 10, Done: 10}) {
		t.Errorf("%+v, %v", r, err)
	}
	d.expect("left", `SELECT format('%s %s', min(event_id), count(*)) FROM outbox_deliveries WHERE state = 'dead'`, fmt.Sprintf("11 %d", next-11))
}

// TestDiscardBesideASettlement: a relay is settling the last other delivery of the event. It still
// sees the dead letter, and the discard must not read the event before the relay has committed:
// each would leave the event to the other.
func TestDiscardBesideASettlement(t *testing.T) {
	t.Parallel()
	d := newLetters(t, true)
	d.bury(1, 1, "mail", "a", "bad")
	d.exec(`UPDATE outbox_events SET state = 'deferred', processed_at = NULL`)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (1, 'log', 'a', 'retry')`)
	relay, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = relay.Rollback(t.Context()) }()
	for _, sql := range []string{
		`DELETE FROM outbox_deliveries WHERE destination = 'log'`,
		`SELECT FROM outbox_events WHERE id = 1 FOR UPDATE`,
		`DELETE FROM outbox_events AS e WHERE e.id = 1 AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = e.id)`,
		`UPDATE outbox_events AS e SET state = 'done', processed_at = now() WHERE e.id = 1 AND e.state = 'deferred'
			AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = e.id AND d.state <> 'dead')`,
	} {
		if _, err := relay.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	d.discardBeside(t, relay, func() {})
	d.expect("events", events)
	d.expect("deliveries", deliveries)
}

// discardBeside discards all letters during another transaction, which commits once the discard has
// been called and waits for it.
func (d *lettersDB) discardBeside(t *testing.T, other pgx.Tx, meanwhile func()) {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := d.store.DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{})
		ended <- err
	}()
	d.untilWaits(t, ended)
	meanwhile()
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// untilWaits waits until a session waits for a lock, or the call has ended.
func (d *lettersDB) untilWaits(t *testing.T, ended chan error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for waits := false; !waits; {
		select {
		case err := <-ended: // it did not wait: the remaining rows show whether that was right
			ended <- err
			waits = true
		case <-tick.C:
			err := d.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestDiscardBesideWhatIsStored: a relay writes the first row behind the letter after the discard
// has looked for it, and before the discard commits.
func TestDiscardBesideWhatIsStored(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.bury(1, 1, "mail", "a", "bad")
	d.exec(`UPDATE outbox_deliveries SET ordering_key = 't/1'`)
	d.exec(`INSERT INTO outbox_events (id, event_type, payload, state) VALUES (2, 'a', '1', 'deferred')`)
	other, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(t.Context()) }()
	if _, err := other.Exec(t.Context(), `SELECT FROM outbox_events WHERE id = 1 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	d.discardBeside(t, other, func() {
		d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key) VALUES (2, 'mail', 'a', 'parked', 't/1')`)
	})
	d.expect("deliveries", deliveries, "2/mail retry 0 r0 t/1")
}

// TestDiscardLetsItsAggregateGoOn: only the row that was parked behind the letter becomes due.
func TestDiscardLetsItsAggregateGoOn(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.bury(1, 2, "mail", "a", "bad")
	d.exec(`UPDATE outbox_deliveries SET ordering_key = 't/1'`)
	d.exec(`INSERT INTO outbox_events (id, event_type, payload, state) SELECT i, 'a', '1', 'deferred' FROM generate_series(3, 5) i`)
	d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key)
		VALUES (3, 'mail', 'a', 'parked', 't/1'), (4, 'mail', 'a', 'parked', 't/1'), (5, 'mail', 'a', 'parked', 't/2'), (4, 'log', 'a', 'parked', 't/1')`)
	rest := []string{"4/log parked 0 r0 t/1", "4/mail parked 0 r0 t/1", "5/mail parked 0 r0 t/2"}
	for _, c := range []struct {
		id   int64
		want []string
	}{
		{1, append([]string{"2/mail dead 3 r0 t/1", "3/mail parked 0 r0 t/1"}, rest...)},
		{2, append([]string{"3/mail retry 0 r0 t/1"}, rest...)},
	} {
		r, err := d.store.DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{Events: []int64{c.id}}, ops.BulkAction{})
		if err != nil || r.Done != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		d.expect("deliveries", deliveries, c.want...)
	}
}

// TestDeadlock: a batch that PostgreSQL ends, because it and another transaction wait for each other, is repeated.
func TestDeadlock(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	d.bury(1, 3, "mail", "a", "bad")
	other, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec(t.Context(), `SET LOCAL deadlock_timeout = '10min'; SELECT FROM outbox_events WHERE id = 1 FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		r, err := d.store.DiscardDeadLetters(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{})
		if err == nil && (r.Matched != 3 || r.Done != 3) {
			err = fmt.Errorf("%+v", r)
		}
		done <- err
	}()
	d.until(`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`)
	if _, err := other.Exec(t.Context(), `UPDATE outbox_deliveries SET attempts = attempts WHERE event_id = 1`); err != nil {
		t.Fatal(err) // the batch was not ended for it
	}
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	d.expect("deliveries", deliveries)
}
