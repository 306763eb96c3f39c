package queue

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/wire"
)

func ref(id int64, destination string) deliveries.Ref {
	return deliveries.Ref{EventID: id, Destination: destination}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.Insert("a", 6)
	o := options()
	s := d.session(o)
	d.sweep(s, 10)
	running := entry(3, "y", deliveries.Running)
	running.Token = 7
	retry := entry(3, "x", deliveries.Retry)
	retry.Failures, retry.Delay, retry.Class, retry.Err = 2, time.Hour, "event", "boom"
	dead := entry(2, "x", deliveries.Dead)
	dead.Failures, dead.Class, dead.Err = 20, "event", "refused"
	d.settle(s, &Settlement{
		Done: []int64{1}, DeadLettered: []int64{2}, Deferred: []int64{3, 4},
		Put: []deliveries.Entry{dead, retry, running, entry(4, "", deliveries.Unrouted)},
	})
	d.expect("events", events, "1 done t", "2 done t", "3 deferred f", "4 deferred f", "5 fresh f", "6 fresh f")
	d.expect("deliveries", stored, "2/x dead 20", "3/x retry 2", "3/y running 0", "4/ unrouted 0")
	d.expect("what is known of them", `SELECT format('%s %s %s %s %s', event_id, destination, event_type, error_class, last_error) FROM outbox_deliveries ORDER BY 1`,
		"2 x a event refused", "3 x a event boom", "3 y a  ", "4  a  ")
	d.expect("the lease", `SELECT format('%s %s %s', lease_owner = `+fmt.Sprint(o.Owner)+`, lease_token, lease_until BETWEEN now() + interval '55 s' AND now() + interval '65 s')
		FROM outbox_deliveries WHERE state = 'running'`, "t 7 t")
	d.expect("the rest has none", `SELECT format('%s', event_id) FROM outbox_deliveries WHERE state <> 'running' AND num_nonnulls(lease_owner, lease_token, lease_until) > 0`)
	d.expect("when", `SELECT format('%s', event_id) FROM outbox_deliveries WHERE available_at BETWEEN now() + interval '59 min' AND now() + interval '61 min'`, "3")

	// A second failure keeps the values that it does not replace, and a repetition is harmless.
	d.Exec(`UPDATE outbox_deliveries SET available_at = now() WHERE event_id = 3 AND destination = 'x'`)
	if got := ids(d.claim(s, dueFor("x"))); len(got) != 1 {
		t.Fatalf("due %v", got)
	}
	again := entry(3, "x", deliveries.Retry)
	again.Failures = 3
	for range 2 {
		d.settle(s, &Settlement{Put: []deliveries.Entry{again}})
	}
	d.expect("again", `SELECT format('%s %s %s %s', attempts, error_class, last_error, available_at <= clock_timestamp()) FROM outbox_deliveries WHERE event_id = 3 AND destination = 'x'`, "3 event boom t")

	// One destination after the other is settled.
	d.claim(s, dueFor("x"))
	d.settle(s, &Settlement{Remove: []deliveries.Ref{ref(3, "x")}})
	d.expect("one is left", events, "1 done t", "2 done t", "3 deferred f", "4 deferred f", "5 fresh f", "6 fresh f")
	died := entry(3, "y", deliveries.Dead)
	d.settle(s, &Settlement{Put: []deliveries.Entry{died}})
	d.expect("the last one is dead", events, "1 done t", "2 done t", "3 done t", "4 deferred f", "5 fresh f", "6 fresh f")
	d.expect("no lease is left", `SELECT format('%s', event_id) FROM outbox_deliveries WHERE lease_owner IS NOT NULL`)

	// Put splits the undecided row: it removes that row, and inserts a row per destination.
	d.Exec(`UPDATE outbox_deliveries SET state = 'retry' WHERE event_id = 4`)
	d.claim(s, dueFor(""))
	d.settle(s, &Settlement{Remove: []deliveries.Ref{ref(4, "")}, Put: []deliveries.Entry{entry(4, "x", deliveries.Retry), entry(4, "y", deliveries.Retry)}})
	d.expect("split up", `SELECT format('%s/%s', event_id, destination) FROM outbox_deliveries WHERE event_id = 4 ORDER BY 1`, "4/x", "4/y")
	d.expect("split up", `SELECT state FROM outbox_events WHERE id = 4`, "deferred")
}

// TestRefusalUnlocksNothing: a row of a settlement is refused, where that is likely: because of a foreign key, or shortly after
// another refusal. No other relay can claim the rest of the claim, whose events are delivered, before it is recorded.
func TestRefusalUnlocksNothing(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]bool{"by a trigger": false, "by a foreign key": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t)
			d.Insert("a", 5)
			refuse := "IF OLD.id IN (1, 3) THEN RAISE 'not this one'; END IF;"
			if remove {
				d.Exec(`CREATE TABLE invoices (event bigint REFERENCES outbox_events)`)
				d.Exec(`INSERT INTO invoices VALUES (3)`)
				refuse = ""
			}
			// Each write of event 2 waits for a lock of its own, of which the test has the third: the second is for all rows again.
			d.Exec(`CREATE SEQUENCE writes`)
			d.Exec(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				IF OLD.id = 2 THEN PERFORM pg_advisory_xact_lock(nextval('writes')); END IF;
				` + refuse + `
				RETURN coalesce(NEW, OLD);
			END $$`)
			d.Exec(`CREATE TRIGGER wait BEFORE UPDATE OR DELETE ON outbox_events FOR EACH ROW EXECUTE FUNCTION wait()`)
			d.Exec(`SELECT pg_advisory_lock(3)`)

			o := options()
			o.Delete = remove
			s, other := d.session(o), d.session(o)
			first := d.sweep(s, 1)
			if refused, err := s.Settle(t.Context(), &Settlement{Done: first}); err != nil || len(refused) == 1 == remove {
				t.Fatalf("the first event: refused %v, %v", refused, err)
			}
			claimed := ids(d.claim(s, Query{Source: SourceSweep, After: 1, Limit: 10}))
			var refused []Refused
			settled := make(chan error, 1)
			go func() {
				var err error
				refused, err = s.Settle(t.Context(), &Settlement{Done: claimed})
				settled <- err
			}()
			for !testdb.One[bool](d, d.Conn, `SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) {
				<-time.After(5 * time.Millisecond)
			}
			if got := ids(d.claim(other, Query{Source: SourceSweep, After: 1, Limit: 10})); len(got) > 0 {
				t.Errorf("another relay has claimed %v", got)
			}

			d.Exec(`SELECT pg_advisory_unlock(3)`)
			if err := <-settled; err != nil {
				t.Fatal(err)
			}
			switch {
			case remove:
				d.expect("the referenced event stays", events, "3 done t")
			case len(refused) != 1 || refused[0].Item.EventID != 3:
				t.Errorf("refused %v", refused)
			default:
				d.expect("the others are recorded", events, "1 fresh f", "2 done t", "3 fresh f", "4 done t", "5 done t")
			}
		})
	}
}

// TestSettlementLeavesNoMultixact: a settlement that is not refused leaves the rows to index scans, which then remove their
// entries.
func TestSettlementLeavesNoMultixact(t *testing.T) {
	t.Parallel()
	url := testenv.OwnPostgres(t, nil).URL("postgres")
	d := &db{testdb.At(t, url, testdb.Tables{}), connector(t, url)}
	s := d.session(options())
	d.Insert("a", 50)
	before := testdb.One[int64](d, d.Conn, `SELECT next_multixact_id::text::bigint FROM pg_control_checkpoint()`)
	for range 5 {
		d.settle(s, &Settlement{Done: d.sweep(s, 10)})
	}
	d.Exec(`CHECKPOINT`)
	if after := testdb.One[int64](d, d.Conn, `SELECT next_multixact_id::text::bigint FROM pg_control_checkpoint()`); after != before {
		t.Errorf("%d multixacts", after-before)
	}
}

func TestSettleDeletes(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.Insert("a", 5)
	o := options()
	o.Delete = true
	s := d.session(o)
	d.sweep(s, 10)
	d.settle(s, &Settlement{Done: []int64{1}, DeadLettered: []int64{2}, Deferred: []int64{3, 4, 5}, Put: []deliveries.Entry{
		entry(2, "x", deliveries.Dead), entry(3, "x", deliveries.Retry), entry(4, "x", deliveries.Retry), entry(4, "y", deliveries.Dead),
		entry(5, "x", deliveries.Retry), entry(5, "y", deliveries.Retry),
	}})
	d.expect("delivered events go, those with dead letters stay", events, "2 done t", "3 deferred f", "4 deferred f", "5 deferred f")
	d.claim(s, dueFor("x"))
	d.settle(s, &Settlement{Remove: []deliveries.Ref{ref(3, "x"), ref(4, "x"), ref(5, "x")}})
	d.expect("the last delivery of some", events, "2 done t", "4 done t", "5 deferred f")
	d.expect("dead letters stay", stored, "2/x dead 0", "4/y dead 0", "5/y retry 0")
}

// TestLastTwoDestinations of one event are settled by two sessions at the same moment: one of them
// must see that no delivery is left.
func TestLastTwoDestinations(t *testing.T) {
	t.Parallel()
	for _, remove := range []bool{false, true} {
		t.Run(fmt.Sprintf("retain 0 is %t", remove), func(t *testing.T) {
			t.Parallel()
			d := newDB(t)
			o := options()
			o.Delete = remove
			const rounds, width = 60, 5
			names := []string{"x", "y"}
			sessions := []*Session{d.session(o), d.session(o)}
			maintenance := d.maintenance(o)
			for round := range rounds {
				all := d.Insert("a", width)
				d.Exec(`UPDATE outbox_events SET state = 'deferred' WHERE state = 'fresh'`)
				d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT e, n, 'a', 'retry' FROM unnest($1::bigint[]) e, unnest($2::text[]) n`, all, names)
				var wg sync.WaitGroup
				errs := make([]error, 3)
				if round%3 == 0 { // a third way to end: the maintenance session, for a slow delivery
					d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, lease_owner, lease_token, lease_until)
						SELECT e, 'slow', 'a', 'running', $2::bigint, e, now() + interval '1 min' FROM unnest($1::bigint[]) e`, all, o.Owner)
					var done []deliveries.Entry
					for _, id := range all {
						slow := entry(id, "slow", deliveries.Running)
						slow.Token = id
						done = append(done, slow)
					}
					wg.Go(func() {
						fenced, err := maintenance.Finish(t.Context(), done, nil)
						if err == nil && fenced > 0 {
							err = fmt.Errorf("%d fenced off", fenced)
						}
						errs[2] = err
					})
				}
				for i, s := range sessions {
					wg.Go(func() {
						c, err := s.Claim(t.Context(), dueFor(names[i]))
						if err == nil && len(c.Work) != width {
							err = fmt.Errorf("claimed %v of %v", ids(c), all)
						}
						settlement := &Settlement{}
						for _, w := range c.Work {
							if (round+i)%4 == 0 {
								settlement.Put = append(settlement.Put, entry(w.Event.ID, names[i], deliveries.Dead))
							} else {
								settlement.Remove = append(settlement.Remove, ref(w.Event.ID, names[i]))
							}
						}
						_, serr := s.Settle(t.Context(), settlement)
						errs[i] = errors.Join(err, serr)
					})
				}
				wg.Wait()
				if err := errors.Join(errs...); err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				if n := testdb.One[int](d, d.Conn, `SELECT count(*) FROM outbox_events WHERE state <> 'done'`); n != 0 {
					t.Fatalf("round %d: %d events are not done", round, n)
				}
				if remove && testdb.One[int](d, d.Conn, `SELECT count(*) FROM outbox_events AS e WHERE NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = e.id)`) != 0 {
					t.Fatalf("round %d: delivered events are still there", round)
				}
			}
		})
	}
}

// TestLostClaim: deliveries are recorded although the claim was lost, and nothing else is.
func TestLostClaim(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.Insert("a", 5)
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (5, 'x', 'a', 'retry')`)
	d.Exec(`UPDATE outbox_events SET state = 'deferred' WHERE id = 5`)
	s := d.session(options())

	d.sweep(s, 10)
	d.terminate(s.conn)
	settlement := &Settlement{
		Done: []int64{1, 2}, DeadLettered: []int64{3}, Deferred: []int64{4},
		Put: []deliveries.Entry{entry(3, "x", deliveries.Dead), entry(4, "x", deliveries.Retry)},
	}
	_, err := s.Settle(t.Context(), settlement)
	if err == nil {
		t.Fatal("settled although the claim was lost")
	}
	d.expect("nothing is written with an error", events, "1 fresh f", "2 fresh f", "3 fresh f", "4 fresh f", "5 deferred f")
	// Another relay has deferred one of them in the meantime.
	d.Exec(`UPDATE outbox_events SET state = 'deferred' WHERE id = 2`)
	d.settle(s, settlement)
	d.expect("salvaged", events, "1 done t", "2 deferred f", "3 fresh f", "4 fresh f", "5 deferred f")
	d.expect("failures are not", stored, "5/x retry 0")

	d.claim(s, dueFor("x"))
	d.terminate(s.conn)
	settlement = &Settlement{Remove: []deliveries.Ref{ref(5, "x")}}
	if _, err := s.Settle(t.Context(), settlement); err == nil {
		t.Fatal("settled although the claim was lost")
	}
	d.settle(s, settlement)
	d.expect("salvaged a delivery", events, "1 done t", "2 deferred f", "3 fresh f", "4 fresh f", "5 done t")
	d.settle(s, &Settlement{})

	// The session continues on a new connection.
	if got := d.sweep(s, 10); len(got) != 2 {
		t.Errorf("claimed %v", got)
	}
	d.terminate(s.conn)
	if _, err := s.Claim(t.Context(), dueFor("x")); err == nil {
		t.Error("claimed on a dead connection")
	}
	if got := d.sweep(s, 10); len(got) != 2 {
		t.Errorf("claimed %v after a reconnect", got)
	}
}

// TestMissing: a delivery whose event is not in the table does not end: its partition may be attached again.
func TestMissing(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (77, 'x', 'a', 'retry'), (77, '', 'a', 'retry')`)
	s := d.session(options())
	c := d.claim(s, dueFor("x", ""))
	if len(c.Work) != 2 || !c.Work[0].Missing || !c.Work[1].Missing {
		t.Errorf("claimed %+v", c.Work)
	}
	if refused, err := s.Settle(t.Context(), &Settlement{Remove: []deliveries.Ref{ref(77, "x"), ref(77, "")}}); err != nil || len(refused) != 1 {
		t.Errorf("refused %v, %v", refused, err)
	}
	d.expect("orphans", stored, "77/ retry 0", "77/x retry 0")
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	o := options()
	s, k := d.session(o), d.maintenance(o)
	for i, text := range []string{
		"a\x00b", "\xff\xfe broken \xc3", strings.Repeat("ü", 5000), strings.Repeat("x", 999) + "€€€", "\\ ' \" { } , NULL", "\x00", "line\nanother",
	} {
		id := int64(i + 1)
		d.Insert("a", 1)
		d.sweep(s, 10)
		e := entry(id, "x", deliveries.Running)
		e.Err, e.Class, e.Token = text, "event", 1
		d.settle(s, &Settlement{Deferred: []int64{id}, Put: []deliveries.Entry{e}})
		e.State = deliveries.Retry
		if fenced, err := k.Finish(t.Context(), nil, []deliveries.Entry{e}); err != nil || fenced != 0 {
			t.Errorf("%.20q: %d fenced, %v", text, fenced, err)
		}
		got := testdb.One[*string](d, d.Conn, `SELECT last_error FROM outbox_deliveries WHERE event_id = $1`, id)
		if got == nil {
			if text != "\x00" {
				t.Errorf("%.20q: no text", text)
			}
			continue
		}
		if len(*got) > wire.MaxErrorBytes+len("...") || !utf8.ValidString(*got) || *got == "" {
			t.Errorf("%.20q became %d bytes %.20q", text, len(*got), *got)
		}
		if utf8.ValidString(text) && !strings.Contains(text, "\x00") && len(text) <= wire.MaxErrorBytes && *got != text {
			t.Errorf("%q became %q", text, *got)
		}
	}
}

// TestExtremeDelays are bounded rather than refused.
func TestExtremeDelays(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	s := d.session(options())
	for _, delay := range []time.Duration{-time.Hour, 0, 1<<63 - 1} {
		id := d.Insert("a", 1)[0]
		d.sweep(s, 1)
		e := entry(id, "x", deliveries.Retry)
		e.Delay = delay
		d.settle(s, &Settlement{Deferred: []int64{id}, Put: []deliveries.Entry{e}})
	}
	if got := ids(d.claim(s, dueFor("x"))); len(got) != 2 {
		t.Errorf("due are %v", got)
	}
}

func TestConnections(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	name := d.Config.Database
	d.Exec(`ALTER DATABASE "` + name + `" SET default_transaction_isolation = 'serializable'`)
	d.Exec(`ALTER DATABASE "` + name + `" SET synchronous_commit = 'on'`)
	d.Exec(`ALTER DATABASE "` + name + `" SET search_path = 'nowhere'`)
	d.Exec(`ALTER DATABASE "` + name + `" SET TimeZone = 'Asia/Kolkata'`)
	for _, timeout := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"} {
		d.Exec(`ALTER DATABASE "` + name + `" SET ` + timeout + ` = '1min'`)
	}
	conn, err := d.Connect(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close(t.Context(), conn)
	var got string
	if err := conn.QueryRow(t.Context(), `SELECT concat_ws(' ', current_setting('application_name'), current_setting('transaction_isolation'),
		current_setting('synchronous_commit'), current_schema(), current_setting('TimeZone'), current_setting('plan_cache_mode'))`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if want := "notifyd/test read committed off public UTC force_generic_plan"; got != want {
		t.Errorf("session: %s, want %s", got, want)
	}
	if err := conn.QueryRow(t.Context(), `SELECT concat_ws(' ', current_setting('statement_timeout'), current_setting('lock_timeout'),
		current_setting('idle_in_transaction_session_timeout'), current_setting('idle_session_timeout'))`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if want := "10s 5s 5s 0"; got != want {
		t.Errorf("timeouts: %s, want %s", got, want)
	}
}

// TestStandby: a server that is read-only counts as unavailable.
func TestStandby(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, nil)
	standby(t, server)
	c := connector(t, server.URL(""))
	conn, err := c.Connect(t.Context(), "claim")
	if err == nil {
		store.Close(t.Context(), conn)
	}
	if !errors.Is(err, pgconn.ErrReadOnlyConnection) || !strings.Contains(err.Error(), "standby") {
		t.Errorf("connected to a standby: %v", err)
	}
	s := NewSession(c, options())
	defer s.Close(t.Context())
	if _, err := s.Claim(t.Context(), dueFor("x")); !errors.Is(err, pgconn.ErrReadOnlyConnection) {
		t.Errorf("claimed from a standby: %v", err)
	}
}

// terminate ends the server side of a session and waits until it is gone.
func (d *db) terminate(c *pgx.Conn) {
	d.Helper()
	if !testdb.One[bool](d, d.Conn, `SELECT pg_terminate_backend($1, 60000)`, int64(c.PgConn().PID())) {
		d.Fatal("the session does not end")
	}
}
