package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// sharing are relays of several schemas of one database that share a listening connection.
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

// sqlRoles counts the sessions of some roles.
const sqlRoles = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = ANY($1::text[])`

// TestSharedConnection: relays of one database listen on one connection, and each outbox gets its own events only, also
// after all sessions were lost. Polls would find the events an hour later.
func TestSharedConnection(t *testing.T) {
	t.Parallel()
	s := share(t, streams(8)...)
	for range 3 {
		s.write(s.schemas...)
		s.await(s.schemas...)
	}
	if n := scan[int](s.env, sqlRoles, []string{"notifyd/listen"}); n != 1 {
		t.Errorf("%d sessions listen", n)
	}
	for range 3 {
		s.exec(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%'`)
		s.write(s.schemas...)
		s.await(s.schemas...)
	}
}

// TestSharedModes: relays of queues and of streams share a listening connection.
func TestSharedModes(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	s := share(t, outboxsql.ModeQueue, outboxsql.ModeStream, outboxsql.ModeQueue)
	for range 3 {
		s.write(s.schemas...)
		s.await(s.schemas...)
	}
	if n := scan[int](s.env, sqlRoles, []string{"notifyd/listen"}); n != 1 {
		t.Errorf("%d sessions listen", n)
	}
}

// TestSharedLeaves: the others go on when relays end, and one that comes later hears its notifications. The last one
// closes the connection.
func TestSharedLeaves(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
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
