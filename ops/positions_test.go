package ops_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// atHead is true when a destination has come to the last id.
const atHead = `SELECT head = outbox_last_id() AND open = '{}' FROM outbox_positions WHERE destination = `

// TestSeekBack: under a running relay, a destination receives what came since again, in order, and the
// others nothing twice.
func TestSeekBack(t *testing.T) {
	t.Parallel()
	bothPositionTables(t, func(t *testing.T, d *positionsDB) {
		t.Helper()
		s := &sink{}
		d.relay(t, s, route{"mail", "*"}, route{"audit", "*"})
		ids := d.insert("order.placed", 30)
		s.await(t, "mail", 30)
		s.await(t, "audit", 30)
		d.until(atHead + `'mail'`)
		for _, to := range []string{strconv.FormatInt(ids[10], 10), "beginning"} {
			before := len(s.of("mail"))
			m, err := d.store.Seek(t.Context(), "mail", to, ops.Action{Actor: "ann", Reason: "lost"})
			again := ids[10:]
			if to == "beginning" {
				again = ids
			}
			if err != nil || m.From != ids[29] || m.To != again[0]-1 || m.First != ids[0] || m.Last != ids[29] {
				t.Fatalf("%+v, %v", m, err)
			}
			got := s.await(t, "mail", before+len(again))[before:]
			perAggregate(t, d, got)
			if slices.Sort(got); !slices.Equal(got, again) {
				t.Errorf("to %s: received %v again", to, got)
			}
			d.until(atHead + `'mail'`)
		}
		next := d.insert("order.placed", 1)
		s.await(t, "mail", 30+20+30+1)
		if all := s.await(t, "audit", 31); len(all) != 31 || all[30] != next[0] {
			t.Errorf("the other destination has received %v", all)
		}
		want := fmt.Sprintf("seek ann mail lost %d %d", ids[29], ids[10]-1)
		if got := value[string](d, `SELECT concat_ws(' ', action, actor, destination, details->>'reason', details->>'from_head', details->>'to_head') FROM outbox_audit ORDER BY id LIMIT 1`); got != want {
			t.Errorf("audit %q, want %q", got, want)
		}
	})
}

// TestSeekForward: what is skipped is not delivered, nor taken for events without a route.
func TestSeekForward(t *testing.T) {
	t.Parallel()
	bothPositionTables(t, func(t *testing.T, d *positionsDB) {
		t.Helper()
		s := &sink{}
		stop := d.relay(t, s, route{"mail", "order.*"})
		first := d.insert("order.placed", 3)
		s.await(t, "mail", 3)
		stop()
		skipped := d.insert("order.placed", 100)
		m, err := d.store.Seek(t.Context(), "mail", "now", ops.Action{})
		if err != nil || m.From != first[2] || m.To != m.Last {
			t.Fatalf("%+v, %v", m, err)
		}
		d.says(first[2], ops.Delivered)
		d.says(skipped[0], ops.Skipped)
		d.says(skipped[99], ops.Skipped)
		one, err := d.store.Position(t.Context(), "mail")
		if err != nil || !slices.ContainsFunc(one.Routes, func(r ops.RouteSpan) bool {
			return r.Skipped && r.From == first[2] && r.Until != nil && *r.Until == skipped[99]
		}) {
			t.Errorf("%+v, %v", one, err)
		}
		d.relay(t, s, route{"mail", "order.*"})
		last := d.insert("order.placed", 2)
		s.await(t, "mail", 5)
		d.until(atHead + `'mail'`)
		d.until(atHead + `''`)
		got := s.of("mail")
		if slices.Sort(got); !slices.Equal(got, append(first, last...)) || value[int](d, `SELECT count(*) FROM outbox_deliveries`) != 0 {
			t.Errorf("received %v", got)
		}
		if _, err := d.store.Seek(t.Context(), "mail", strconv.FormatInt(skipped[50], 10), ops.Action{}); err != nil {
			t.Fatal(err)
		}
		s.await(t, "mail", 57)
		d.until(atHead + `'mail'`)
		for id, want := range map[int64]ops.State{first[0]: ops.Delivered, skipped[49]: ops.Skipped, skipped[50]: ops.Delivered, last[1]: ops.Delivered} {
			d.says(id, want)
		}
	})
}

// TestRoutesAreRemembered: what was delivered stays so when its route goes, and an event that a setting may have kept back is
// never called delivered.
func TestRoutesAreRemembered(t *testing.T) {
	t.Parallel()
	bothPositionTables(t, func(t *testing.T, d *positionsDB) {
		t.Helper()
		s := &sink{}
		stop := d.relay(t, s, route{"mail", "order.*"}, route{"mail", "user.*"})
		orders, users := d.insert("order.placed", 3), d.insert("user.gone", 3)
		s.await(t, "mail", 6)
		d.until(atHead + `'mail'`)
		d.until(atHead + `''`)
		stop()
		stop = d.relay(t, s, route{"mail", "order.*"})
		more := d.insert("order.placed", 1)
		s.await(t, "mail", 7)
		d.until(atHead + `'mail'`)
		for _, id := range []int64{orders[0], users[2], more[0]} {
			d.says(id, ops.Delivered)
		}
		stop()
		d.expires = time.Hour
		d.relay(t, s, route{"mail", "order.*"})
		old := d.insert("order.placed", 1)[0]
		s.await(t, "mail", 8)
		d.until(atHead + `'mail'`)
		d.says(users[2], ops.Delivered)
		d.says(more[0], ops.Delivered)
		if to := d.says(old, ops.Passed); !slices.Equal(to.Drops, []string{"expires_after"}) {
			t.Errorf("%+v", to)
		}
	})
}

// says fails unless the delivery of an event to mail is in a state.
func (d *positionsDB) says(id int64, want ops.State) (to ops.Destination) {
	d.Helper()
	s, err := ops.New(d.pool, ops.Config{Schema: positionSchema})
	if err != nil {
		d.Fatal(err)
	}
	e, err := s.Event(d.Context(), id)
	if err != nil {
		d.Fatal(err)
	}
	for _, to = range e.Destinations {
		if to.Name == "mail" {
			break
		}
	}
	if to.Name != "mail" || to.State != want {
		d.Errorf("event %d: %+v, want %s", id, e.Destinations, want)
	}
	return to
}

// TestSeekKeepsWhatIsInFlight: a transaction that was open before the place commits after the move; its
// event is delivered.
func TestSeekKeepsWhatIsInFlight(t *testing.T) {
	t.Parallel()
	d := newPositions(t, outboxsql.ModeStream, false)
	s := &sink{}
	d.relay(t, s, route{"mail", "*"})
	writer, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writer.Rollback(t.Context()) }() // after Commit it does nothing
	var early int64
	table := pgx.Identifier{positionSchema, "outbox_events"}.Sanitize()
	if err := writer.QueryRow(t.Context(), `INSERT INTO `+table+` (event_type, payload) VALUES ('a', '1') RETURNING id`).Scan(&early); err != nil {
		t.Fatal(err)
	}
	ids := d.insert("a", 10)
	s.await(t, "mail", 10)
	d.until(fmt.Sprintf(`SELECT head = %d AND open = int8multirange(int8range(%d, %[2]d, '[]')) FROM outbox_positions WHERE destination = 'mail'`, ids[9], early))
	if m, err := d.store.Seek(t.Context(), "mail", strconv.FormatInt(ids[5], 10), ops.Action{}); err != nil || m.To != ids[4] {
		t.Fatalf("%+v, %v", m, err)
	}
	s.await(t, "mail", 15)
	if err := writer.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.await(t, "mail", 16)
	d.until(atHead + `'mail'`)
	if got := s.of("mail"); len(got) != 16 || !slices.Contains(got, early) {
		t.Errorf("received %v", got)
	}
}

// TestSeekBesideStored: an aggregate is blocked by an event that fails. After the move everything is
// delivered, and nothing is left.
func TestSeekBesideStored(t *testing.T) {
	t.Parallel()
	d := newPositions(t, outboxsql.ModeStream, false)
	var fails atomic.Int64
	fails.Store(2)
	s := &sink{answers: func(_ string, e *delivery.Event) error {
		if e.ID == fails.Load() {
			return delivery.RetryAfter(50*time.Millisecond, errors.New("not yet"))
		}
		return nil
	}}
	d.relay(t, s, route{"mail", "*"})
	ids := d.insert("a", 30)
	s.await(t, "mail", 20) // the others wait behind the second one
	d.until(`SELECT count(*) = 10 FROM outbox_deliveries`)
	if _, err := d.store.Seek(t.Context(), "mail", "beginning", ops.Action{}); err != nil {
		t.Fatal(err)
	}
	s.await(t, "mail", 40)
	fails.Store(0)
	d.until(`SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`)
	d.until(atHead + `'mail'`)
	if got := slices.Compact(slices.Sorted(slices.Values(s.of("mail")))); !slices.Equal(got, ids) {
		t.Errorf("received %v", got)
	}
}

// TestSeekByNewRoutes: what a destination reads again it reads by the routes that it has now, and an event
// type that had no route then is delivered once.
func TestSeekByNewRoutes(t *testing.T) {
	t.Parallel()
	d := newPositions(t, outboxsql.ModeStream, false)
	s := &sink{}
	stop := d.relay(t, s, route{"mail", "order.*"}, route{"audit", "order.*"})
	orders := d.insert("order.placed", 5)
	others := d.insert("user.created", 5)
	s.await(t, "mail", 5)
	d.until(`SELECT count(*) = 5 FROM outbox_deliveries WHERE state = 'unrouted'`)
	stop()
	d.relay(t, s, route{"mail", "order.*"}, route{"mail", "user.*"}, route{"audit", "order.*"})
	s.await(t, "mail", 10)                                       // those without a route are handed to it
	d.until(`SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`) // one that is left comes again, as after a crash
	d.until(atHead + `'mail'`)
	if _, err := d.store.Seek(t.Context(), "mail", "beginning", ops.Action{}); err != nil {
		t.Fatal(err)
	}
	got := s.await(t, "mail", 20)[10:]
	d.until(atHead + `'mail'`)
	if slices.Sort(got); !slices.Equal(got, append(orders, others...)) || len(s.of("mail")) != 20 || len(s.of("audit")) != 5 {
		t.Errorf("received %v again; in all %v and %v", got, s.of("mail"), s.of("audit"))
	}
}

// TestSeekKeepsEndedRoutes: a destination loses a route while it is behind. What it has not passed comes by that route, wherever
// its position is moved to below that; what it has passed comes again by the routes of today.
func TestSeekKeepsEndedRoutes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		to   int   // which event is to come next
		want []int // events, by their number
	}{
		{"backwards", 1, []int{1, 3, 4, 5, 6, 7, 8, 9}}, // the even ones are of the type that it gets no more; 2 it has passed
		{"forwards", 7, []int{2, 7, 8, 9}},              // 2 is open
		{"back to the beginning", 0, []int{1, 2, 3, 4, 5, 6, 7, 8, 9}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newPositions(t, outboxsql.ModeStream, false)
			var ids []int64
			for range 5 {
				ids = append(append(ids, d.insert("gone", 1)...), d.insert("kept", 1)...)
			}
			open := "{}"
			if c.name != "backwards" {
				open = fmt.Sprintf("{[%d,%d]}", ids[2], ids[2])
			}
			d.in(func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), `INSERT INTO outbox_positions (destination, head, open) VALUES ('mail', $1, $3::text::int8multirange), ('', $2, '{}')`, ids[3], ids[9], open)
				if err != nil {
					return err
				}
				_, err = tx.Exec(t.Context(), `INSERT INTO outbox_routes (destination, since, patterns, head, open, until_head, handed)
					VALUES ('mail', 1, '{gone,kept}', 0, '{}', $2, true), ('mail', 2, '{kept}', $1, $3::text::int8multirange, NULL, true)`, ids[3], ids[9], open)
				return err
			})
			if _, err := d.store.Seek(t.Context(), "mail", strconv.FormatInt(ids[c.to], 10), ops.Action{}); err != nil {
				t.Fatal(err)
			}
			s := &sink{}
			d.relay(t, s, route{"mail", "kept"})
			d.until(atHead + `'mail'`)
			want := make([]int64, len(c.want))
			for i, n := range c.want {
				want[i] = ids[n]
			}
			s.await(t, "mail", len(want))
			if got := slices.Sorted(slices.Values(s.of("mail"))); !slices.Equal(got, want) {
				t.Errorf("received %v of %v, want %v", got, ids, want)
			}
			d.until(`SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`)
		})
	}
}

// TestSeekKeepsHistory: a destination was behind when it lost a route. After a move backwards the history still says what it has
// received below the new position, and the search owes it what it is owed.
func TestSeekKeepsHistory(t *testing.T) {
	t.Parallel()
	d := newPositions(t, outboxsql.ModeStream, false)
	var ids []int64
	for _, eventType := range []string{"gone", "kept", "gone", "kept", "other", "gone", "kept", "gone", "kept", "kept"} {
		ids = append(ids, d.insert(eventType, 1)...)
	}
	d.in(func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO outbox_positions (destination, head) VALUES ('mail', $1), ('', $2)`, ids[5], ids[9])
		if err != nil {
			return err
		}
		_, err = tx.Exec(t.Context(), `INSERT INTO outbox_routes (destination, since, patterns, head, until_head, handed)
			VALUES ('mail', 1, '{gone,kept}', 0, $2, true), ('mail', 2, '{kept}', $1, NULL, true)`, ids[3], ids[9])
		return err
	})
	says := func() {
		t.Helper()
		d.says(ids[0], ops.Delivered)
		d.says(ids[1], ops.Delivered)
		d.says(ids[4], ops.NotRouted)
	}
	says()
	for _, to := range []int64{ids[5], ids[4]} { // twice: a copy of what is owed does not grow
		if _, err := d.store.Seek(t.Context(), "mail", strconv.FormatInt(to, 10), ops.Action{}); err != nil {
			t.Fatal(err)
		}
		says()
		if n := value[int](d, `SELECT count(*) FROM outbox_routes`); n > 4 {
			t.Errorf("%d spans after a move to %d", n, to)
		}
	}
}

// TestSeekOwesNewRoutes: the search owes a destination an event from before its new route, which another destination reads by itself,
// also after a move backwards beside an ended route.
func TestSeekOwesNewRoutes(t *testing.T) {
	t.Parallel()
	d := newPositions(t, outboxsql.ModeStream, false)
	var ids []int64
	for _, eventType := range []string{"gone", "kept", "gone", "kept", "gone", "kept", "new", "kept", "gone", "kept"} {
		ids = append(ids, d.insert(eventType, 1)...)
	}
	open := fmt.Sprintf("{[%d,%[1]d]}", ids[2]) // in flight at an owner that crashed
	d.in(func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO outbox_positions (destination, head, open) VALUES ('mail', $1, $3::text::int8multirange), ('', $2, '{}'), ('audit', $4, '{}')`,
			ids[9], ids[5], open, ids[3])
		if err != nil {
			return err
		}
		_, err = tx.Exec(t.Context(), `INSERT INTO outbox_routes (destination, since, patterns, head, open, until_head, handed) VALUES
			('mail', 1, '{gone,kept}', 0, '{}', $1, true), ('mail', 2, '{kept,new}', $1, $2::text::int8multirange, NULL, false),
			('audit', 1, '{kept}', 0, '{}', $4, true), ('audit', 2, '{kept,new}', $3, '{}', NULL, false)`, ids[9], open, ids[3], ids[5])
		return err
	})
	if _, err := d.store.Seek(t.Context(), "mail", strconv.FormatInt(ids[8], 10), ops.Action{}); err != nil {
		t.Fatal(err)
	}
	s := &sink{}
	d.relay(t, s, route{"mail", "kept"}, route{"mail", "new"}, route{"audit", "kept"}, route{"audit", "new"})
	for _, name := range []string{"mail", "", "audit"} {
		d.until(atHead + `'` + name + `'`)
	}
	d.until(`SELECT NOT EXISTS (SELECT FROM outbox_deliveries WHERE destination = 'mail')`)
	if got, want := slices.Sorted(slices.Values(s.of("mail"))), []int64{ids[2], ids[6], ids[9]}; !slices.Equal(got, want) {
		t.Errorf("received %v of %v, want %v", got, ids, want)
	}
}

// TestSeekRefuses what is no place, and says what would be done.
func TestSeekRefuses(t *testing.T) {
	t.Parallel()
	d := newPositions(t, outboxsql.ModeStream, false)
	s := &sink{}
	d.relay(t, s, route{"mail", "*"})
	ids := d.insert("a", 3)
	s.await(t, "mail", 3)
	d.until(atHead + `'mail'`)
	for to, destination := range map[string]string{"": "mail", "auto": "mail", "yesterday": "mail", "0": "mail", "5000000": "mail", "now": ""} {
		if _, err := d.store.Seek(t.Context(), destination, to, ops.Action{}); !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("%q of %q: %v", to, destination, err)
		}
	}
	if _, err := d.store.Seek(t.Context(), "post", "now", ops.Action{}); !errors.Is(err, ops.ErrNoPosition) {
		t.Errorf("a destination that is not there: %v", err)
	}
	if _, err := d.store.Seek(t.Context(), "mail", "now", ops.Action{Reason: "a\x00"}); !errors.Is(err, ops.ErrInvalid) {
		t.Errorf("a zero byte: %v", err)
	}
	m, err := d.store.Seek(t.Context(), "mail", "beginning", ops.Action{DryRun: true})
	if err != nil || m.To != ids[0]-1 || value[int](d, `SELECT count(*) FROM outbox_audit`) != 0 || !value[bool](d, atHead+`'mail'`) {
		t.Errorf("a dry run: %+v, %v", m, err)
	}
	q := newPositions(t, outboxsql.ModeQueue, false)
	if _, err := q.store.Seek(t.Context(), "mail", "now", ops.Action{}); !errors.Is(err, ops.ErrQueue) {
		t.Errorf("a queue: %v", err)
	}
	if _, err := q.store.Positions(t.Context()); !errors.Is(err, ops.ErrQueue) {
		t.Errorf("a queue: %v", err)
	}
}

// TestForget: a destination that is gone holds nothing back any more, and one that is delivered stays.
func TestForget(t *testing.T) {
	t.Parallel()
	bothPositionTables(t, func(t *testing.T, d *positionsDB) {
		t.Helper()
		s := &sink{answers: func(destination string, _ *delivery.Event) error {
			if destination == "old" {
				return delivery.Permanent(errors.New("no"))
			}
			return nil
		}}
		stop := d.relay(t, s, route{"old", "*"}, route{"mail", "a"})
		d.insert("b", 1500)
		d.until(`SELECT count(*) = 1500 FROM outbox_deliveries WHERE destination = 'old' AND state = 'dead'`)
		if _, err := d.store.Forget(t.Context(), "old", ops.Action{}); !errors.Is(err, ops.ErrDelivered) {
			t.Errorf("while a relay has it: %v", err)
		}
		stop()
		d.relay(t, s, route{"mail", "a"})
		if f, err := d.store.Forget(t.Context(), "old", ops.Action{DryRun: true}); err != nil || f.Deliveries != 1500 {
			t.Errorf("a dry run: %+v, %v", f, err)
		}
		if f, err := d.store.Forget(t.Context(), "old", ops.Action{Actor: "ann"}); err != nil || f.Deliveries != 1500 {
			t.Errorf("%+v, %v", f, err)
		}
		if n := value[int](d, `SELECT (SELECT count(*) FROM outbox_deliveries WHERE destination = 'old') + (SELECT count(*) FROM outbox_routes WHERE destination = 'old')
			+ (SELECT count(*) FROM outbox_positions WHERE destination = 'old')`); n != 0 {
			t.Errorf("%d rows are left", n)
		}
		if got := value[string](d, `SELECT concat_ws(' ', action, actor, destination, details->>'deliveries') FROM outbox_audit`); got != "forget ann old 1500" {
			t.Errorf("audit %q", got)
		}
		if _, err := d.store.Forget(t.Context(), "old", ops.Action{}); !errors.Is(err, ops.ErrNoPosition) {
			t.Errorf("again: %v", err)
		}
		d.insert("a", 1)
		s.await(t, "mail", 1)
	})
}

// TestListAndShow: what is listed is what relays have written.
func TestListAndShow(t *testing.T) {
	t.Parallel()
	d := newPositions(t, outboxsql.ModeStream, false)
	s := &sink{}
	d.relay(t, s, route{"mail", "order.*"})
	ids := d.insert("order.placed", 3)
	s.await(t, "mail", 3)
	d.until(atHead + `'mail'`)
	all, err := d.store.Positions(t.Context())
	if err != nil || len(all) != 2 || all[0].Destination != "" || all[1].Destination != "mail" || all[1].Head != ids[2] || all[1].Lag != 0 || all[1].Session == nil {
		t.Errorf("%+v, %v", all, err)
	}
	one, err := d.store.Position(t.Context(), "mail")
	if err != nil || len(one.Parts) != 1 || one.First != ids[0] || one.Last != ids[2] || one.CreatedAt.IsZero() || len(one.Routes) != 1 || !slices.Equal(one.Routes[0].Patterns, []string{"order.*"}) {
		t.Errorf("%+v, %v", one, err)
	}
	if _, err := d.store.Position(t.Context(), "post"); !errors.Is(err, ops.ErrNoPosition) {
		t.Errorf("a destination that is not there: %v", err)
	}
}

// TestSeekShards: forwards no shard of a destination goes back, and what former shards had done stays done; backwards all go.
func TestSeekShards(t *testing.T) {
	t.Parallel()
	d := newPositions(t, outboxsql.ModeStream, false)
	exec := func(sql string) {
		t.Helper()
		d.in(func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), sql)
			return err
		})
	}
	exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 1000)`)
	exec(`INSERT INTO outbox_positions (destination, shard, shards, layout, head, former) SELECT 'sharded', shard, 2, '2 x', 100 + 800 * shard, '[[{"head": 950, "open": "{}"}]]' FROM generate_series(0, 1) AS shard`)
	exec(`INSERT INTO outbox_routes (destination, since, patterns, head) VALUES ('sharded', 1, '{a}', 0), ('sharded', 2, '{b}', 900)`)
	exec(`UPDATE outbox_routes SET until_head = 900 WHERE destination = 'sharded' AND since = 1`)
	for _, step := range []struct{ to, want, ranges string }{
		{"501", "500 900 former", "1 2"}, // the routes stay as they are
		{"951", "950 950 former", "1 2"},
		{"301", "300 300", "1 5"},
	} {
		if _, err := d.store.Seek(t.Context(), "sharded", step.to, ops.Action{}); err != nil {
			t.Fatal(err)
		}
		got := value[string](d, `SELECT concat_ws(' ', string_agg(head::text, ' ' ORDER BY shard), CASE WHEN bool_and(former <> '[]') THEN 'former' END) FROM outbox_positions WHERE destination = 'sharded'`)
		ranges := value[string](d, `SELECT string_agg(since::text, ' ' ORDER BY since) FROM outbox_routes WHERE destination = 'sharded' AND past IS NULL`)
		if got != step.want || ranges != step.ranges {
			t.Errorf("to %s: heads %s, want %s; routes %s, want %s", step.to, got, step.want, ranges, step.ranges)
		}
	}
	exec(`INSERT INTO outbox_replays (destination, from_id, to_id, head, number, created_by) VALUES ('sharded', 1, 100, 0, 1000, 'test')`)
	if _, err := d.store.Seek(t.Context(), "sharded", "beginning", ops.Action{}); !errors.Is(err, ops.ErrReplayRunning) {
		t.Errorf("backwards beside a replay: %v", err)
	}
}
