package relaytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// idsTest is a stream whose sequence is tampered with. Writers note the payloads that they commit, because ids
// may be given out twice.
type idsTest struct {
	t    *testing.T
	pool *pgxpool.Pool

	mu      sync.Mutex
	written []string
	got     map[string]int
	news    chan struct{} // capacity 1
}

func newIDsTest(t *testing.T) *idsTest {
	t.Helper()
	return &idsTest{t: t, pool: streamPool(t), got: make(map[string]int), news: make(chan struct{}, 1)}
}

// exec runs statements, one after the other.
func (i *idsTest) exec(statements ...string) {
	i.t.Helper()
	for _, sql := range statements {
		if _, err := i.pool.Exec(i.t.Context(), sql); err != nil {
			i.t.Fatalf("%s: %v", sql, err)
		}
	}
}

// writer returns a session that writes one event per call. The event has the given id unless that is 0.
func (i *idsTest) writer() func(id int64) {
	i.t.Helper()
	conn, err := pgx.ConnectConfig(i.t.Context(), i.pool.Config().ConnConfig.Copy())
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(i.t.Context())) })
	return func(id int64) {
		i.t.Helper()
		if err := i.write(conn, id); err != nil {
			i.t.Fatal(err)
		}
	}
}

func (i *idsTest) write(conn *pgx.Conn, id int64) error {
	i.mu.Lock()
	payload := fmt.Sprintf("%d", len(i.written))
	i.written = append(i.written, payload)
	i.mu.Unlock()
	var err error
	if id == 0 {
		_, err = conn.Exec(i.t.Context(), `INSERT INTO outbox_events (event_type, payload) VALUES ('a', $1)`, payload)
	} else {
		_, err = conn.Exec(i.t.Context(), `INSERT INTO outbox_events (id, event_type, payload) VALUES ($2, 'a', $1)`, payload, id)
	}
	return err
}

// idsRelay is a running relay.
type idsRelay struct {
	i    *idsTest
	stop context.CancelFunc
	done chan error
}

// start starts a relay.
func (i *idsTest) start() *idsRelay {
	i.t.Helper()
	relay, err := notifyd.New(i.pool, notifyd.Config{Logger: slog.New(slog.DiscardHandler), PollInterval: 20 * time.Millisecond})
	if err != nil {
		i.t.Fatal(err)
	}
	err = relay.Handle("a", notifyd.Destination{Name: "d", Handler: delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.got[string(e.Payload)]++
		select {
		case i.news <- struct{}{}:
		default:
		}
		return nil
	})})
	if err != nil {
		i.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(i.t.Context())
	r := &idsRelay{i: i, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- relay.Run(ctx) }()
	return r
}

// refused waits until the relay stops, and returns its error.
func (r *idsRelay) refused(want error, texts ...string) string {
	r.i.t.Helper()
	var err error
	select {
	case err = <-r.done:
	case <-time.After(settleWithin):
		r.i.t.Fatalf("the relay goes on; of %d not delivered: %v", len(r.i.written), r.i.missing())
	}
	if !errors.Is(err, want) {
		r.i.t.Fatalf("%v, want %v", err, want)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			r.i.t.Fatalf("%v\ndoes not say %q", err, text)
		}
	}
	return err.Error()
}

// missing returns the written events that have not arrived.
func (i *idsTest) missing() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(i.written), func(payload string) bool { return i.got[payload] > 0 })
}

// settle waits until the relay has delivered all that was written.
func (r *idsRelay) settle() {
	r.i.t.Helper()
	end := time.NewTimer(settleWithin)
	defer end.Stop()
	for len(r.i.missing()) > 0 {
		select {
		case <-r.i.news:
		case err := <-r.done:
			r.i.t.Fatalf("the relay has ended, and %d of %d are missing: %v", len(r.i.missing()), len(r.i.written), err)
		case <-end.C:
			r.i.t.Fatalf("of %d never delivered: %v", len(r.i.written), r.i.missing())
		}
	}
}

// end settles, and stops the relay.
func (r *idsRelay) end() {
	r.i.t.Helper()
	r.settle()
	r.halt()
}

func (r *idsRelay) halt() {
	r.i.t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		r.i.t.Error(err)
	}
}

// cureOf returns the statement that a message ends with.
func cureOf(t *testing.T, text string) string {
	t.Helper()
	cure := regexp.MustCompile(`(ALTER SEQUENCE|ALTER SUBSCRIPTION|SELECT setval\().*$`).FindString(text)
	if cure == "" {
		t.Fatalf("%s\nhas no cure", text)
	}
	return cure
}

// TestStreamOddSequence: a relay refuses a table whose ids do not prove the order of their drawing, at each start and
// while it runs, as long as the cause holds. What was written meanwhile is delivered after the cure, also by sessions
// that had ids in advance.
func TestStreamOddSequence(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ spoil, want string }{
		"cache":        {`ALTER SEQUENCE outbox_events_id_seq CACHE 50`, "CACHE"},
		"increment":    {`ALTER SEQUENCE outbox_events_id_seq INCREMENT BY 3`, "INCREMENT"},
		"cycle":        {`ALTER SEQUENCE outbox_events_id_seq CYCLE`, "NO CYCLE"},
		"subscription": {"", "subscription"},
	} {
		for _, when := range []string{"stopped", "running"} {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				i := newIDsTest(t)
				one, two := i.writer(), i.writer()
				r := i.start()
				one(0)
				two(0)
				r.settle()
				spoil, cure := []string{c.spoil}, ""
				if name == "subscription" {
					sub := "s_" + when + "_" + i.pool.Config().ConnConfig.Database
					spoil = []string{
						fmt.Sprintf(`CREATE SUBSCRIPTION %q CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false, slot_name = NONE)`, sub),
						fmt.Sprintf(`INSERT INTO pg_subscription_rel SELECT oid, 'outbox_events'::regclass, 'r' FROM pg_subscription WHERE subname = '%s'`, sub),
					}
					cure = fmt.Sprintf(`DROP SUBSCRIPTION %q`, sub)
				}
				if when == "stopped" {
					r.end()
				}
				i.exec(spoil...)
				for range 10 {
					one(0)
					two(0)
				}
				if when == "stopped" {
					r = i.start()
				}
				text := r.refused(outboxsql.ErrStream, c.want)
				for range 5 {
					one(0)
					two(0)
				}
				i.start().refused(outboxsql.ErrStream, c.want) // by a supervisor
				if cure == "" {
					cure = cureOf(t, text)
				}
				i.exec(cure)
				r = i.start()
				for range 5 {
					two(0)
					one(0)
				}
				r.end()
			})
		}
	}
}

// TestStreamChosenID: an event with an id above the sequence does not end the ids below it. The relay refuses as long as
// it is there, and each cure loses nothing.
func TestStreamChosenID(t *testing.T) {
	t.Parallel()
	const chosen = 1_000_000_000
	for name, cure := range map[string]string{
		"as printed": "",
		"renumbered": fmt.Sprintf(`UPDATE outbox_events SET id = DEFAULT WHERE id >= %d`, chosen),
		"deleted":    fmt.Sprintf(`DELETE FROM outbox_events WHERE id >= %d`, chosen),
	} {
		for _, when := range []string{"stopped", "running"} {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				i := newIDsTest(t)
				write := i.writer()
				r := i.start()
				for range 12 {
					write(0)
				}
				r.settle()
				if when == "stopped" {
					r.end()
				}
				write(chosen)
				for range 12 {
					write(0)
				}
				if when == "stopped" {
					r = i.start()
				}
				text := r.refused(outboxsql.ErrStream, fmt.Sprintf("event %d", chosen))
				for range 12 {
					write(0)
				}
				i.start().refused(outboxsql.ErrStream, fmt.Sprintf("event %d", chosen))
				if cure == "" {
					i.exec(cureOf(t, text))
				} else {
					i.exec(cure)
				}
				if name == "deleted" {
					i.written = slices.Delete(i.written, 12, 13)
				}
				r = i.start()
				for range 12 {
					write(0)
				}
				r.end()
			})
		}
	}
}

// seek does what a message about ids that begin again asks for. to is where the destination goes.
func (i *idsTest) seek(text, to string) {
	i.t.Helper()
	cure := regexp.MustCompile(`stop all relays, (?:(SELECT setval\(E?'[^']+', \d+\)), )?then, for each destination, notifyd positions seek DESTINATION (?:beginning|\d+), `).FindStringSubmatch(text)
	if cure == nil {
		i.t.Fatalf("%s\nhas no cure", text)
	}
	if cure[1] != "" {
		i.exec(cure[1])
		i.start().refused(notifyd.ErrIDs, "seek DESTINATION ") // events written meanwhile are still not delivered
	}
	s, err := ops.New(i.pool, ops.Config{Schema: "public"})
	if err != nil {
		i.t.Fatal(err)
	}
	if _, err := s.Seek(i.t.Context(), "d", to, ops.Action{}); err != nil {
		i.t.Fatal(err)
	}
}

// TestStreamIDsAgain: delivered ids are assigned again, while no relay is connected or while one runs. The sequence
// passes the position before the relay checks it, or after the relay was refused. The relay refuses until a person has
// moved the position, and then delivers the events with such ids.
func TestStreamIDsAgain(t *testing.T) {
	t.Parallel()
	const restart, back = `TRUNCATE outbox_events RESTART IDENTITY`, `SELECT setval('outbox_events_id_seq', 1, false)`
	for name, c := range map[string]struct {
		partitioned    bool
		reset          []string
		before, behind int    // events before the relay looks, and after it was refused
		then           string // after the first of them
	}{
		"truncated":              {reset: []string{restart}, before: 150},
		"truncated, behind":      {reset: []string{restart}, before: 50, behind: 100},
		"truncated, far ahead":   {reset: []string{restart}, before: 10, then: `SELECT setval('outbox_events_id_seq', 1000)`},
		"truncated, partitioned": {reset: []string{restart}, before: 150, partitioned: true},
		"set back":               {reset: []string{`DELETE FROM outbox_events`, back}, before: 150},
		"set back, partitioned":  {reset: []string{`DELETE FROM outbox_events`, back}, before: 150, partitioned: true},
		"set back, behind":       {reset: []string{`DELETE FROM outbox_events WHERE id < 60`, back}, before: 20},
		"another sequence": {reset: []string{
			`DELETE FROM outbox_events`, `CREATE OR REPLACE VIEW outbox_last_id AS SELECT NULL::bigint AS id`,
			`ALTER TABLE outbox_events ALTER COLUMN id DROP IDENTITY`, `ALTER TABLE outbox_events ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY`,
			`CREATE OR REPLACE VIEW outbox_last_id AS SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END AS id FROM outbox_events_id_seq`,
		}, before: 10, then: `SELECT setval('outbox_events_id_seq', 1000)`},
	} {
		for _, when := range []string{"stopped", "running"} {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				if name != "truncated" {
					testenv.Long(t)
				}
				i := newIDsTest(t)
				if c.partitioned {
					i.partition()
				}
				write := i.writer()
				r := i.start()
				for range 100 {
					write(0)
				}
				r.settle()
				if when == "stopped" {
					r.end()
				}
				i.exec(c.reset...)
				for range c.before {
					write(0)
				}
				if c.then != "" {
					i.exec(c.then)
				}
				if when == "stopped" {
					r = i.start()
				}
				r.refused(position.ErrIDs, "positions seek DESTINATION")
				for range c.behind {
					write(0)
				}
				text := i.start().refused(position.ErrIDs, "positions seek DESTINATION")
				i.seek(text, "beginning")
				r = i.start()
				for range 10 {
					write(0)
				}
				r.end()
			})
		}
	}
}

// TestStreamForgottenSequence: the sequence of a logical copy begins anew. The relay names the id after its head, and
// nothing is delivered twice.
func TestStreamForgottenSequence(t *testing.T) {
	t.Parallel()
	i := newIDsTest(t)
	write := i.writer()
	r := i.start()
	for range 20 {
		write(0)
	}
	r.end()
	i.exec(`SELECT setval('outbox_events_id_seq', 1, false)`)
	i.seek(i.start().refused(position.ErrIDs, "outbox_events_id_seq', 20)", "seek DESTINATION 21, the id after its head"), "21")
	r = i.start()
	write(0)
	r.end()
	for payload, n := range i.got {
		if n != 1 {
			t.Errorf("event %s was delivered %d times", payload, n)
		}
	}
}

// TestStreamIDsBelowOne: a sequence may assign ids where no stream reads. The cure that the relay prints loses nothing.
func TestStreamIDsBelowOne(t *testing.T) {
	t.Parallel()
	i := newIDsTest(t)
	i.exec(`ALTER SEQUENCE outbox_events_id_seq MINVALUE -10 RESTART WITH -3`)
	write := i.writer()
	for range 3 {
		write(0)
	}
	text := i.start().refused(outboxsql.ErrStream, "event -3 has an id below 1")
	i.exec(strings.Split(cureOf(t, text), ", then ")...)
	r := i.start()
	write(0)
	r.end()
}

// TestTruncateBesideWaitingReads: a relay locks the table before the sequence of its ids, as TRUNCATE ... RESTART IDENTITY does:
// neither ends as the victim of a deadlock.
func TestTruncateBesideWaitingReads(t *testing.T) {
	t.Parallel()
	i := newIDsTest(t)
	write := i.writer()
	r := i.start()
	write(0)
	r.settle()
	tx, err := i.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	testdb.Exec(t, tx, `LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE`)
	// The shards read, and the ids are checked once a second.
	testenv.Await(t, "statements of the relay wait, and the check of the ids among them", func() bool {
		return testdb.One[bool](t, i.pool, `SELECT count(*) >= 3 AND bool_or(query LIKE '%subscription%' OR query LIKE '%last FROM l)%') FROM pg_stat_activity
			WHERE datname = current_database() AND application_name LIKE 'notifyd/%' AND wait_event_type = 'Lock'`)
	})
	testdb.Exec(t, tx, `TRUNCATE outbox_events RESTART IDENTITY`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(0)
	r.refused(position.ErrIDs, "positions seek DESTINATION")
}

// partition gives the table partitions.
func (i *idsTest) partition() {
	i.t.Helper()
	conn, err := i.pool.Acquire(i.t.Context())
	if err != nil {
		i.t.Fatal(err)
	}
	defer conn.Release()
	if err := outboxsql.Partition(i.t.Context(), conn.Conn(), "public", outboxsql.PartitionOptions{}); err != nil {
		i.t.Fatal(err)
	}
}

// TestStreamIDsGoOn: rows with a new transaction id, or new files of the sequence and the table, do not mean that ids
// were assigned again. New files prove nothing until a check has seen events, so a relay has stored its position before.
func TestStreamIDsGoOn(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, change := range map[string]func(i *idsTest){
		"sequence altered": func(i *idsTest) { i.exec(`ALTER SEQUENCE outbox_events_id_seq CACHE 1`) },
		"rows rewritten":   func(i *idsTest) { i.exec(`UPDATE outbox_events SET headers = '{}'`) },
		"table rewritten": func(i *idsTest) {
			i.exec(`VACUUM FULL outbox_events`, `ALTER TABLE outbox_events ADD COLUMN more double precision DEFAULT random()`)
		},
		"table and sequence have new files": func(i *idsTest) {
			i.exec(`VACUUM FULL outbox_events`, `ALTER SEQUENCE outbox_events_id_seq NO CYCLE`)
		},
		"clustered, and a cured sequence": func(i *idsTest) {
			i.exec(`CLUSTER outbox_events USING outbox_events_pkey`, `ALTER SEQUENCE outbox_events_id_seq INCREMENT BY 1 CACHE 1 NO CYCLE`)
		},
		"unlogged and back": func(i *idsTest) {
			i.exec(`ALTER TABLE outbox_events SET UNLOGGED`, `ALTER TABLE outbox_events SET LOGGED`)
		},
		// As if the clock of the server had been set back since the events were written.
		"rows from before a step of the clock rewritten": func(i *idsTest) {
			i.exec(`UPDATE outbox_events SET created_at = created_at + interval '1 hour'`)
		},
		"new files after a step of the clock": func(i *idsTest) {
			i.exec(`UPDATE outbox_events SET created_at = created_at + interval '1 hour'`, `VACUUM FULL outbox_events`, `ALTER TABLE outbox_events SET UNLOGGED`)
		},
		"partitioned": (*idsTest).partition,
		"ids jump":    func(i *idsTest) { i.exec(`SELECT setval('outbox_events_id_seq', 100000)`) },
		"emptied":     func(i *idsTest) { i.exec(`TRUNCATE outbox_events`) },
		"a new stream": func(i *idsTest) {
			i.exec(`DELETE FROM outbox_events; DELETE FROM outbox_positions; DELETE FROM outbox_routes`)
		},
		"late writers": func(i *idsTest) { i.late() },
	} {
		for _, when := range []string{"stopped", "running"} {
			if when == "running" && name == "a new stream" {
				continue // a relay that runs has lost its positions
			}
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				i := newIDsTest(t)
				write := i.writer()
				r := i.start()
				for range 100 {
					write(0)
				}
				r.settle()
				i.passed(100)
				r.halt()
				if when == "running" {
					// Its anchor is the stored position, after the events.
					r = i.start()
					write(0)
					r.settle()
				}
				change(i)
				for range 50 {
					write(0)
				}
				if when == "stopped" {
					r = i.start()
				}
				r.settle()
				i.exec(`SELECT pg_sleep(0.1)`) // several checks
				for range 50 {
					write(0)
				}
				r.end()
			})
		}
	}
}

// passed waits until each position, and that of the unrouted scanner, has passed an id.
func (i *idsTest) passed(id int64) {
	i.t.Helper()
	testenv.Await(i.t, fmt.Sprintf("all positions have passed %d", id), func() bool {
		return testdb.One[bool](i.t, i.pool, `SELECT count(*) >= 2 AND bool_and(head >= $1) FROM outbox_positions`, id)
	})
}

// late lets transactions end that have drawn ids long before the ids that were delivered.
func (i *idsTest) late() {
	i.t.Helper()
	tx, err := i.pool.Begin(i.t.Context())
	if err != nil {
		i.t.Fatal(err)
	}
	i.mu.Lock()
	payload := fmt.Sprintf("%d", len(i.written))
	i.written = append(i.written, payload)
	i.mu.Unlock()
	var id int64
	if err := tx.QueryRow(i.t.Context(), `SELECT nextval('outbox_events_id_seq')`).Scan(&id); err != nil {
		i.t.Fatal(err)
	}
	write := i.writer()
	for range 20 {
		write(0)
	}
	if _, err := tx.Exec(i.t.Context(), `INSERT INTO outbox_events (id, event_type, payload) VALUES ($1, 'a', $2)`, id, payload); err != nil {
		i.t.Fatal(err)
	}
	if err := tx.Commit(i.t.Context()); err != nil {
		i.t.Fatal(err)
	}
}
