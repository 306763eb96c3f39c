package relaytest

import (
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// stranger is a transaction that has written events, and stays open.
type stranger struct {
	ids    map[string]int64 // its events, one of each type
	commit func()
}

// strangers are the kinds of transactions that stay open.
var strangers = map[string]func(r *routing, types ...string) stranger{"open": (*routing).openTransaction, "prepared": (*routing).preparedTransaction}

// insertStranger writes one event of each type, each in an aggregate of its own.
func (r *routing) insertStranger(tx pgx.Tx, types []string) map[string]int64 {
	r.t.Helper()
	ids := make(map[string]int64)
	for _, eventType := range types {
		var id int64
		err := tx.QueryRow(r.t.Context(), `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ($1, 'stranger', 's', '{}') RETURNING id`, eventType).Scan(&id)
		if err != nil {
			r.t.Fatal(err)
		}
		ids[eventType] = id
	}
	return ids
}

func (r *routing) openTransaction(types ...string) stranger {
	r.t.Helper()
	tx := testdb.Begin(r.t, r.pool, pgx.TxOptions{})
	ids := r.insertStranger(tx, types)
	return stranger{ids, func() {
		if err := tx.Commit(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
	}}
}

func (r *routing) preparedTransaction(types ...string) stranger {
	r.t.Helper()
	tx := testdb.Begin(r.t, r.pool, pgx.TxOptions{})
	ids := r.insertStranger(tx, types)
	testdb.Exec(r.t, tx, `PREPARE TRANSACTION 'stranger'`)
	_ = tx.Rollback(r.t.Context()) // the session is in no transaction any more
	return stranger{ids, func() { testdb.Exec(r.t, r.pool, `COMMIT PREPARED 'stranger'`) }}
}

// newPreparedRouting is a stream on a server that allows prepared transactions.
func newPreparedRouting(t *testing.T) *routing {
	t.Helper()
	server := testenv.OwnPostgres(t, map[string]string{"max_prepared_transactions": "5"})
	testdb.At(t, server.URL(""), testdb.Tables{Mode: outboxsql.ModeStream, Notify: outboxsql.NotifyOff}) // a transaction that notifies cannot be prepared
	pool, err := pgxpool.New(t.Context(), server.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return newRoutingIn(t, pool)
}

// besideStrangers runs a test beside a transaction that stays open, and beside a prepared one.
func besideStrangers(t *testing.T, test func(t *testing.T, r *routing, begin func(types ...string) stranger)) {
	t.Helper()
	for kind, begin := range strangers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newPreparedRouting(t)
			test(t, r, func(types ...string) stranger { return begin(r, types...) })
		})
	}
}

// TestNewDestinationBesideOpenTransaction: a new destination begins while another session's transaction stays open. It
// gets the events that had no route, and all later ones. When the transaction commits, its events reach all
// destinations of their routes, once.
func TestNewDestinationBesideOpenTransaction(t *testing.T) {
	t.Parallel()
	besideStrangers(t, func(_ *testing.T, r *routing, begin func(types ...string) stranger) {
		stop := r.start(map[string][]string{"a": {"one"}})
		before := r.write(50, "a", "late")
		r.has("one", before["a"])
		r.until("the rest waits for a route", `SELECT count(*) = 50 FROM outbox_deliveries WHERE state = 'unrouted'`)
		open := begin("a", "late", "nowhere")
		between := r.write(50, "a", "late")
		r.has("one", before["a"], between["a"])
		r.until("the rest waits for a route", `SELECT count(*) = 100 FROM outbox_deliveries WHERE state = 'unrouted'`)
		stop()
		stop = r.start(map[string][]string{"a": {"one", "two"}, "late": {"two"}})
		r.until("two has begun", `SELECT count(*) > 0 FROM outbox_positions WHERE destination = 'two'`)
		after := r.write(50, "a", "late")
		r.has("one", before["a"], between["a"], after["a"])
		r.has("two", before["late"], between["late"], after["a"], after["late"])
		stop()
		stop = r.start(map[string][]string{"a": {"one", "two"}, "late": {"two"}})
		open.commit()
		r.has("one", before["a"], between["a"], after["a"], []int64{open.ids["a"]})
		r.has("two", before["late"], between["late"], after["a"], after["late"], []int64{open.ids["a"], open.ids["late"]})
		r.until("one event has no route", `SELECT coalesce(array_agg(event_id) = $1, false) FROM outbox_deliveries`, []int64{open.ids["nowhere"]})
		stop()
	})
}

// TestGainedTypeBesideOpenTransaction: a destination gains a type while a transaction stays open, also one that began
// beside it, and one that lost the type before.
func TestGainedTypeBesideOpenTransaction(t *testing.T) {
	t.Parallel()
	besideStrangers(t, func(_ *testing.T, r *routing, begin func(types ...string) stranger) {
		without, with := map[string][]string{"a": {"one"}}, map[string][]string{"a": {"one"}, "late": {"one"}}
		stop := r.start(with)
		first := r.write(50, "a", "late")
		r.has("one", first["a"], first["late"])
		r.until("all is read", everythingRead, []string{"", "one"})
		stop()
		stop = r.start(without) // it loses the type
		r.until("the routes have ended", `SELECT count(*) = 1 FROM outbox_routes WHERE until_head IS NOT NULL`)
		second := r.write(50, "a", "late")
		r.has("one", first["a"], first["late"], second["a"])
		open := begin("a", "late")
		third := r.write(50, "a", "late")
		r.has("one", first["a"], first["late"], second["a"], third["a"])
		r.until("the rest waits for a route", `SELECT count(*) = 100 FROM outbox_deliveries WHERE state = 'unrouted'`)
		stop()
		stop = r.start(with) // the type returns
		fourth := r.write(50, "a", "late")
		all := [][]int64{first["a"], first["late"], second["a"], second["late"], third["a"], third["late"], fourth["a"], fourth["late"]}
		r.has("one", all...)
		open.commit()
		r.has("one", append(all, []int64{open.ids["a"], open.ids["late"]})...)
		r.until("nothing is left", `SELECT count(*) = 0 FROM outbox_deliveries`)
		stop()
	})
}

// TestBegunBesideOpenTransactionGainsType: a destination that began beside an open transaction gains a type, and loses
// it again, while that transaction is still open.
func TestBegunBesideOpenTransactionGainsType(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	besideStrangers(t, func(_ *testing.T, r *routing, begin func(types ...string) stranger) {
		stop := r.start(map[string][]string{"a": {"one"}})
		before := r.write(50, "a", "late")
		r.has("one", before["a"])
		open := begin("a", "late")
		stop()
		stop = r.start(map[string][]string{"a": {"one", "two"}})
		r.until("two has begun", `SELECT count(*) > 0 FROM outbox_positions WHERE destination = 'two'`)
		after := r.write(50, "a", "late")
		r.has("two", after["a"])
		r.until("the rest waits for a route", `SELECT count(*) = 100 FROM outbox_deliveries WHERE state = 'unrouted'`)
		stop()
		stop = r.start(map[string][]string{"a": {"one", "two"}, "late": {"two"}})
		more := r.write(50, "a", "late")
		r.has("two", after["a"], before["late"], after["late"], more["a"], more["late"])
		stop()
		stop = r.start(map[string][]string{"a": {"one", "two"}})
		r.until("two has lost the type", `SELECT patterns = '{a}' FROM outbox_routes WHERE destination = 'two' AND until_head IS NULL AND since > 0`)
		last := r.write(50, "a", "late")
		r.has("two", after["a"], before["late"], after["late"], more["a"], more["late"], last["a"])
		open.commit()
		r.has("one", before["a"], after["a"], more["a"], last["a"], []int64{open.ids["a"]})
		// The route has ended, and the event was not written while it stood: it waits for a route, like the last ones.
		r.has("two", after["a"], before["late"], after["late"], more["a"], more["late"], last["a"], []int64{open.ids["a"]})
		r.until("the rest waits for a route", `SELECT coalesce(array_agg(event_id ORDER BY event_id) = $1, false) FROM outbox_deliveries`, append([]int64{open.ids["late"]}, last["late"]...))
		stop()
	})
}

// TestShardsBesideOpenTransaction: a destination changes its number of shards, and gains a type, while a transaction
// stays open.
func TestShardsBesideOpenTransaction(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	besideStrangers(t, func(_ *testing.T, r *routing, begin func(types ...string) stranger) {
		stop := r.start(map[string][]string{"a": {"one"}})
		before := r.write(50, "a", "late")
		r.has("one", before["a"])
		open := begin("a", "late")
		between := r.write(50, "a", "late")
		r.has("one", before["a"], between["a"])
		r.until("the rest waits for a route", `SELECT count(*) = 100 FROM outbox_deliveries WHERE state = 'unrouted'`)
		stop()
		r.shards = 3
		stop = r.start(map[string][]string{"a": {"one"}, "late": {"one"}})
		after := r.write(50, "a", "late")
		all := [][]int64{before["a"], before["late"], between["a"], between["late"], after["a"], after["late"]}
		r.has("one", all...)
		open.commit()
		r.has("one", append(all, []int64{open.ids["a"], open.ids["late"]})...)
		stop()
	})
}

// TestStopWithManyRanges: beside an open transaction, thousands of ids were rolled back or are open one by one. A relay
// that stops repeats no event, and its log says once that a crash would.
func TestStopWithManyRanges(t *testing.T) {
	t.Parallel()
	r := newRouting(t)
	var log lines
	r.logs = io.MultiWriter(&log, t.Output())
	to := map[string][]string{"a": {"x"}}
	stop := r.start(to)
	start := r.write(50, "a")
	r.has("x", start["a"])
	open := r.openTransaction("a")
	// Each second id is drawn and not used.
	const events = 6000
	testdb.Exec(t, r.pool, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT 'a', 'a', (g % 7)::text, '{}' FROM generate_series(1, $1) AS g WHERE nextval(pg_get_serial_sequence('outbox_events', 'id')) > 0`, events)
	var more []int64
	err := r.pool.QueryRow(t.Context(), `SELECT array_agg(id ORDER BY id) FROM outbox_events WHERE id > $1`, open.ids["a"]).Scan(&more)
	if err != nil || len(more) != events {
		t.Fatal(err, len(more))
	}
	r.has("x", start["a"], more)
	stop()
	for _, name := range []string{"", "x"} {
		r.until("all ranges are written", `SELECT head >= $2 AND (SELECT count(*) FROM unnest(open)) BETWEEN $3 AND $4 FROM outbox_positions WHERE destination = $1`, name, more[events-1], events, events+1)
	}
	for range 2 {
		stop = r.start(to)
		next := r.write(50, "a")
		more = append(more, next["a"]...)
		r.has("x", start["a"], more)
		stop()
	}
	stop = r.start(to)
	open.commit()
	r.exactly("x", start["a"], more, []int64{open.ids["a"]})
	stop()
	if n := strings.Count(log.String(), "a position has many open ranges"); n == 0 || n > 4 {
		t.Errorf("%d warnings of 4 relays", n)
	}
}
