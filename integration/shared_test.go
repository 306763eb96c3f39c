package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// sharing are relays of several schemas of one database with one notifyd.Shared.
type sharing struct {
	*env
	schemas []string
	relays  map[string]*running
	got     map[string]*recorder
	shared  *notifyd.Shared
}

func share(t *testing.T, modes ...outboxsql.Mode) *sharing {
	t.Helper()
	s := &sharing{env: newEnv(t), relays: make(map[string]*running), got: make(map[string]*recorder), shared: notifyd.NewShared(200*time.Millisecond, nil)}
	for i, mode := range modes {
		schema := fmt.Sprintf("Outbox %d", i)
		s.exec(`CREATE SCHEMA ` + pgx.Identifier{schema}.Sanitize())
		s.migrate(schema, outboxsql.NotifyAuto)
		s.becomeIn(schema, mode)
		s.schemas = append(s.schemas, schema)
	}
	for _, schema := range s.schemas {
		s.begin(schema)
	}
	for _, schema := range s.schemas {
		s.relays[schema].waitReady()
	}
	return s
}

// begin starts the relay of an outbox, which hardly ever polls.
func (s *sharing) begin(schema string) {
	s.t.Helper()
	got := newRecorder(s.t)
	s.got[schema] = got
	s.relays[schema] = s.start(func(r *notifyd.Relay) {
		if err := r.Handle("*", notifyd.Destination{Name: "all", Handler: got, Lane: delivery.Lane{Backoff: quick()}}); err != nil {
			s.t.Error(err)
		}
	}, notifyd.Config{Schema: schema, Shared: s.shared, PollInterval: time.Hour})
}

// write inserts an event into the outboxes, whose type is their schema.
func (s *sharing) write(schemas ...string) {
	s.t.Helper()
	for _, schema := range schemas {
		s.exec(`INSERT INTO `+pgx.Identifier{schema, "outbox_events"}.Sanitize()+` (event_type, payload) VALUES ($1, '{}')`, schema)
	}
}

// await waits for the next event of each outbox, which must be its own.
func (s *sharing) await(schemas ...string) {
	s.t.Helper()
	for _, schema := range schemas {
		if e := s.got[schema].next(); e.Type != schema {
			s.t.Errorf("%s has delivered an event of %s", schema, e.Type)
		}
	}
}

func streams(n int) (all []outboxsql.Mode) {
	for range n {
		all = append(all, outboxsql.ModeStream)
	}
	return all
}

// sessionsIn waits until so many sessions have a role.
func (s *sharing) sessionsIn(role string, n int) {
	s.t.Helper()
	s.until("sessions of "+role, `SELECT count(*) = $2 FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`, role, n)
}

// TestSharedConnection: relays of streams of one database share the session that listens and the one of their leases, and
// each outbox gets its own events only, also after all sessions were lost. Polls would find the events an hour later.
func TestSharedConnection(t *testing.T) {
	t.Parallel()
	s := share(t, streams(8)...)
	for range 3 {
		s.write(s.schemas...)
		s.await(s.schemas...)
	}
	s.sessionsIn("notifyd/listen", 1)
	s.sessionsIn("notifyd/leases", 1)
	for range 3 {
		s.exec(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%'`)
		s.write(s.schemas...)
		s.await(s.schemas...)
	}
}

// TestSharedModes: relays of queues and of streams share a listening connection.
func TestSharedModes(t *testing.T) {
	t.Parallel()
	s := share(t, outboxsql.ModeQueue, outboxsql.ModeStream, outboxsql.ModeQueue)
	for range 3 {
		s.write(s.schemas...)
		s.await(s.schemas...)
	}
	s.sessionsIn("notifyd/listen", 1)
}

// TestSharedLeases: the session of the leases is lost while events are written. No outbox loses an event or its order.
func TestSharedLeases(t *testing.T) {
	t.Parallel()
	const rounds, each = 5, 200
	s := share(t, streams(3)...)
	for i := range rounds {
		for _, schema := range s.schemas {
			s.exec(`INSERT INTO `+pgx.Identifier{schema, "outbox_events"}.Sanitize()+` (event_type, payload, aggregate_type, aggregate_id)
				SELECT $1, '{}', 'order', (n % 3)::text FROM generate_series(1, $2::int) AS n`, schema, each)
			if i < rounds-1 {
				s.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'notifyd/leases'`)
			}
		}
	}
	for _, schema := range s.schemas {
		s.until("all of them", `SELECT bool_and(head >= (SELECT max(id) FROM `+pgx.Identifier{schema, "outbox_events"}.Sanitize()+`))
			FROM `+pgx.Identifier{schema, "outbox_positions"}.Sanitize()+` WHERE destination <> ''`)
		got := s.got[schema]
		got.each(rounds*each, s.relays[schema])
		got.checkAscending()
	}
	s.sessionsIn("notifyd/leases", 1)
}

// TestSharedLocked: while someone locks the rows by which one relay has its leases, the others keep theirs, and deliver.
// The one delivers when its rows are free again.
func TestSharedLocked(t *testing.T) {
	t.Parallel()
	s := share(t, streams(3)...)
	locked, others := s.schemas[1], []string{s.schemas[0], s.schemas[2]}
	session := func(schema string) int32 {
		return scan[int32](s.env, `SELECT pid FROM `+pgx.Identifier{schema, "outbox_members"}.Sanitize())
	}
	before := session(others[0])
	tx := testdb.Begin(t, s.pool, pgx.TxOptions{})
	testdb.Exec(t, tx, `SELECT FROM `+pgx.Identifier{locked, "outbox_members"}.Sanitize()+` FOR UPDATE`)
	s.sessionsIn("notifyd/leases", 2)
	for range 3 {
		s.write(others...)
		s.await(others...)
	}
	s.write(locked)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.await(locked)
	for _, schema := range others {
		if now := session(schema); now != before {
			t.Errorf("the session of the leases is %d, before %d", now, before)
		}
	}
}

// TestSharedLeaves: the others go on when relays end, and one that comes later hears its notifications. The last one
// closes the connection.
func TestSharedLeaves(t *testing.T) {
	t.Parallel()
	s := share(t, streams(4)...)
	left, others := s.schemas[:2], s.schemas[2:]
	for _, schema := range left { // the connection was opened as one of them
		if err := s.relays[schema].end(); err != nil {
			t.Fatal(err)
		}
	}
	s.exec(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'notifyd/listen'`)
	s.write(others...)
	s.await(others...)
	s.becomeIn(left[1], outboxsql.ModeQueue) // no session holds its mode any more
	s.begin(left[0])
	s.relays[left[0]].waitReady()
	s.write(append(others, left[0])...)
	s.await(append(others, left[0])...)
	for _, r := range s.relays {
		if err := r.end(); err != nil {
			t.Fatal(err)
		}
	}
	s.until("no session is left", `SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%'`)
}
