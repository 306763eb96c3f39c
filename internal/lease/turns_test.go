package lease

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// inTurns returns streams in several schemas of one database, whose holders use sessions in turns.
func inTurns(t *testing.T, n int) (all []*log) {
	t.Helper()
	first, turns := newStream(t), NewTurns()
	first.turns = turns
	all = append(all, first)
	for i := 1; i < n; i++ {
		l := &log{schema: fmt.Sprintf(`O'utbox "%d"`, i), turns: turns}
		name := pgx.Identifier{l.schema}.Sanitize()
		first.Exec(`CREATE SCHEMA ` + name)
		_, err := outboxsql.Migrate(t.Context(), first.Conn, l.schema, outboxsql.NotifyOff)
		if err == nil {
			err = outboxsql.SetMode(t.Context(), first.Conn, l.schema, outboxsql.ModeStream, outboxsql.ModeOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		l.DB = &testdb.DB{TB: t, URL: first.URL + "&search_path=" + url.PathEscape(name)}
		l.Conn = l.Dial()
		all = append(all, l)
	}
	return all
}

// keepAll runs a holder with two shards for each stream.
func keepAll(all []*log) (holders []*keeping) {
	for i, l := range all {
		holders = append(holders, l.keep(int64(i+1), "a"))
	}
	for _, k := range holders {
		k.untilHas(2)
	}
	return holders
}

// sessionsOf returns the sessions that renew the leases of streams, in order. A stream without a member has none.
func sessionsOf(all []*log) (pids []int32) {
	for _, l := range all {
		pids = append(pids, testdb.List[int32](l, l.Conn, `SELECT pid FROM outbox_members ORDER BY pid`)...)
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// epochs returns the epochs of a stream.
func (l *log) epochs() string {
	return testdb.One[string](l, l.Conn, `SELECT string_agg(destination || ' ' || epoch, ', ' ORDER BY destination) FROM outbox_positions`)
}

const (
	// sqlLeaseSessions counts the sessions that renew leases.
	sqlLeaseSessions = `SELECT count(*) = $1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'notifyd/leases'`
	// sqlLocks counts the locks of these sessions: one that proves life, and one of the mode, for each holder.
	sqlLocks = `SELECT count(*) = $1 FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) WHERE a.datname = current_database() AND a.application_name = 'notifyd/leases' AND l.locktype = 'advisory'`
)

// TestTurns: holders use one session, and continue on another one after it is lost. One that stops releases its locks
// and leaves the session to the others; the last one closes it.
func TestTurns(t *testing.T) {
	t.Parallel()
	all := inTurns(t, 4)
	holders := keepAll(all)
	admin := all[0]
	admin.untilTrue("one session", sqlLeaseSessions, 1)
	admin.untilTrue("locks of all", sqlLocks, 2*len(all))
	for range 3 {
		var before []string
		for _, l := range all {
			before = append(before, l.epochs())
		}
		old := sessionsOf(all)
		admin.Exec(`SELECT pg_terminate_backend($1)`, old[0])
		for _, l := range all {
			l.untilTrue("another session", `SELECT pid <> $1 FROM outbox_members`, old[0])
		}
		admin.untilTrue("one session", sqlLeaseSessions, 1)
		for i, l := range all {
			if now := l.epochs(); now != before[i] {
				t.Errorf("epochs of %s: %s, before %s", l.schema, now, before[i])
			}
		}
	}
	last := len(all) - 1
	pids := sessionsOf(all)
	if err := holders[last].stop(); err != nil {
		t.Fatal(err)
	}
	admin.untilTrue("locks of the others", sqlLocks, 2*last)
	if err := outboxsql.SetMode(t.Context(), all[last].Dial(), all[last].schema, outboxsql.ModeQueue, outboxsql.ModeOptions{}); err != nil {
		t.Error(err)
	}
	if now := sessionsOf(all); !slices.Equal(now, pids) {
		t.Errorf("sessions %v, before %v", now, pids)
	}
	for _, k := range holders {
		if err := k.stop(); err != nil {
			t.Fatal(err)
		}
	}
	admin.untilTrue("no session", sqlLeaseSessions, 0)
	if len(admin.turns.all) > 0 {
		t.Errorf("%d sessions are left", len(admin.turns.all))
	}
}

// TestTurnsRoom: a session has room for so many holders; one that leaves makes room for the next.
func TestTurnsRoom(t *testing.T) {
	t.Parallel()
	all := inTurns(t, 5)
	admin := all[0]
	admin.turns.room = 2
	holders := keepAll(all)
	admin.untilTrue("three sessions", sqlLeaseSessions, 3)
	if err := holders[0].stop(); err != nil {
		t.Fatal(err)
	}
	all[0].keep(7, "a").untilHas(2)
	admin.untilTrue("three sessions", sqlLeaseSessions, 3)
}

// TestTurnsLocked: a stream whose tables are locked moves to a session of its own, and delays no other one. It comes
// back when they are unlocked.
func TestTurnsLocked(t *testing.T) {
	t.Parallel()
	for _, lock := range []string{`SELECT FROM outbox_members FOR UPDATE`, `LOCK TABLE outbox_members, outbox_positions`, `LOCK TABLE outbox_mode`} {
		t.Run(lock, func(t *testing.T) {
			t.Parallel()
			all := inTurns(t, 3)
			all[0].turns.ownFor = 100 * time.Millisecond
			holders := keepAll(all)
			locked, others := all[1], all[:1]
			pids := sessionsOf(all)
			tx := testdb.Connect(t, locked.URL)
			testdb.Exec(t, tx, `BEGIN`)
			testdb.Exec(t, tx, lock)
			if lock == `LOCK TABLE outbox_mode` { // only a holder that begins reads the table
				all[0].Exec(`SELECT pg_terminate_backend($1)`, pids[0])
				all[0].untilTrue("another session", `SELECT pid <> $1 FROM outbox_members`, pids[0])
				all[2].untilTrue("another session", `SELECT pid <> $1 FROM outbox_members`, pids[0])
				pids = sessionsOf(append(others, all[2]))
			}
			all[0].untilTrue("a session of its own", sqlLeaseSessions, 2)
			for _, l := range append(others, all[2]) {
				renewals := testdb.One[int64](l, l.Conn, `SELECT renewals FROM outbox_members`)
				l.untilTrue("renewals", `SELECT renewals >= $1 FROM outbox_members`, renewals+10)
			}
			if now := sessionsOf(append(others, all[2])); !slices.Equal(now, pids) {
				t.Errorf("sessions of the others: %v, before %v", now, pids)
			}
			testdb.Exec(t, tx, `ROLLBACK`)
			all[0].untilTrue("one session", sqlLeaseSessions, 1)
			all[0].untilTrue("locks of all", sqlLocks, 2*len(all))
			locked.untilTrue("a renewal", `SELECT alive_until > clock_timestamp() FROM outbox_members`)
			holders[1].untilHas(2)
		})
	}
}

// TestTurnsRefused: a holder whose table is a queue, or a copy, ends, and leaves no lock in the session of the others.
func TestTurnsRefused(t *testing.T) {
	t.Parallel()
	all := inTurns(t, 4)
	keepAll(all[:2])
	pids := sessionsOf(all)
	all[2].Exec(`UPDATE outbox_mode SET mode = 'queue'`)
	all[3].Exec(`UPDATE outbox_mode SET home = '1/2/3/elsewhere'`)
	for _, c := range []struct {
		l    *log
		want error
	}{{all[2], outboxsql.ErrMode}, {all[3], outboxsql.ErrCopy}} {
		o := Options{Owner: 9, Turns: c.l.turns}
		connector := c.l.Connector()
		connector.Schema = c.l.schema
		if err := NewHolder(connector, o, slog.New(slog.DiscardHandler)).Run(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
	all[0].untilTrue("locks of the others", sqlLocks, 4)
	if now := sessionsOf(all); !slices.Equal(now, pids) {
		t.Errorf("sessions %v, before %v", now, pids)
	}
}

// TestTurnsReconnect: if the connections of one outbox lead to another server, the session ends for all holders.
func TestTurnsReconnect(t *testing.T) {
	t.Parallel()
	all := inTurns(t, 3)
	holders := keepAll(all)
	pids := sessionsOf(all)
	a := holders[1].position("a")
	holders[1].Reconnect(&a)
	holders[1].until("new epochs", func(shards map[string]Lease) bool { return len(shards) == 2 && shards["a"].Epoch == 2 })
	for _, l := range all {
		l.untilTrue("another session", `SELECT pid <> $1 FROM outbox_members`, pids[0])
	}
	all[0].untilTrue("one session", sqlLeaseSessions, 1)
}
