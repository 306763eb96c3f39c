//go:build testall

package variants

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

const topic = "orders"

// stage has the tables of a way in a separate database.
type stage struct {
	*testing.T
	way  Way
	url  string
	conn *pgx.Conn // of writers
}

func newStage(t *testing.T, name string) *stage {
	t.Helper()
	all := All()
	i := slices.IndexFunc(all, func(w Way) bool { return w.Name == name })
	s := &stage{T: t, way: all[i], url: database(t, name)}
	s.conn = s.connect()
	s.exec(s.conn, s.way.Tables)
	if s.way.Subscribe != "" {
		s.exec(s.conn, s.way.Subscribe, topic)
	}
	return s
}

// database returns the URL of one. The way that reads up to the oldest open transaction needs
// a server without those of other tests.
func database(t *testing.T, way string) string {
	t.Helper()
	if way == "partitions" {
		return testenv.OwnPostgres(t, nil).URL("")
	}
	return testenv.Database(t)
}

func (s *stage) connect() *pgx.Conn {
	s.Helper()
	return testdb.Connect(s, s.url)
}

func (s *stage) exec(conn *pgx.Conn, statement string, args ...any) {
	s.Helper()
	testdb.Exec(s, conn, statement, args...)
}

// write inserts events with these keys, as a writer does.
func (s *stage) write(conn *pgx.Conn, keys ...string) {
	s.Helper()
	for _, key := range keys {
		if s.way.Before != "" {
			s.exec(conn, s.way.Before)
		}
		s.exec(conn, "INSERT INTO "+Columns+" VALUES ($1, $2, '{}')", topic, key)
	}
}

// hand is a worker that records the messages that it has produced.
type hand struct {
	*stage
	worker   Worker
	produced []string
	err      error // of the next production
}

func (s *stage) hand(batch int, lease time.Duration) *hand {
	h := &hand{stage: s}
	h.worker = s.way.New(Config{Conn: s.connect(), Batch: batch, Lease: lease, Produce: func(_ context.Context, messages []Message) error {
		for _, m := range messages {
			if m.Topic != topic || string(m.Payload) != "{}" || m.ID == 0 {
				h.Errorf("message %+v", m)
			}
			h.produced = append(h.produced, m.Key)
		}
		return h.err
	}})
	return h
}

// steps makes steps until one is idle. It returns the produced messages and the number of settled events. A partition
// without events is skipped once before the worker is idle.
func (h *hand) steps() (produced []string, settled int) {
	h.Helper()
	h.produced = nil
	for {
		n, idle, err := h.worker.Step(h.Context())
		if err != nil {
			h.Fatal(err)
		}
		if settled += n; idle {
			return h.produced, settled
		}
	}
}

func (s *stage) left() (left bool) {
	s.Helper()
	if err := s.conn.QueryRow(s.Context(), s.way.Left).Scan(&left); err != nil {
		s.Fatal(err)
	}
	return left
}

// TestDelivers: any way delivers the committed events in order, once, and reports when it is done.
func TestDelivers(t *testing.T) {
	t.Parallel()
	for _, way := range All() {
		t.Run(way.Name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, way.Name)
			s.write(s.conn, "a", "b", "c", "d", "e")
			if !s.left() {
				t.Error("nothing is left before the first step")
			}
			h := s.hand(2, time.Minute)
			if got, settled := h.steps(); !slices.Equal(got, []string{"a", "b", "c", "d", "e"}) || settled != 5 {
				t.Errorf("produced %v, settled %d", got, settled)
			}
			if s.left() {
				t.Error("something is left after the last step")
			}
			if got, settled := s.hand(2, time.Minute).steps(); len(got) != 0 || settled != 0 {
				t.Errorf("produced %v, settled %d once more", got, settled)
			}
		})
	}
}

// TestFailedProduction: events that were not acknowledged are not settled, and the next worker delivers them.
func TestFailedProduction(t *testing.T) {
	t.Parallel()
	for _, way := range All() {
		t.Run(way.Name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, way.Name)
			s.write(s.conn, "a", "b")
			conn := s.connect()
			refused := errors.New("refused by the test")
			worker := way.New(Config{Conn: conn, Batch: 10, Produce: func(context.Context, []Message) error { return refused }})
			if _, _, err := worker.Step(t.Context()); !errors.Is(err, refused) {
				t.Fatalf("the step returned %v", err)
			}
			if err := conn.Close(t.Context()); err != nil { // as the end of a worker does
				t.Fatal(err)
			}
			if !s.left() {
				t.Error("nothing is left")
			}
			h := s.hand(10, time.Minute)
			waitForEnd(t, s.conn)
			if got, settled := h.steps(); !slices.Equal(got, []string{"a", "b"}) || settled != 2 {
				t.Errorf("produced %v, settled %d", got, settled)
			}
		})
	}
}

// waitForEnd waits until the sessions that were closed are gone, with their locks.
func waitForEnd(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	const withWriterAndWorker = 2
	for gone := false; !gone; {
		err := conn.QueryRow(t.Context(), `SELECT count(*) <= $1 FROM pg_stat_activity, pg_sleep(0.01)
			WHERE datname = current_database() AND backend_type = 'client backend'`, withWriterAndWorker).Scan(&gone)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestTwoWorkers: a second worker skips the events of the first, or waits its turn.
func TestTwoWorkers(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"long-tx": {"c", "d"}, "lease": {"c", "d"}, "advisory": nil, "partitions": nil, "serialised": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, name)
			s.write(s.conn, "a", "b", "c", "d")
			first, second := s.hand(2, time.Minute), s.hand(2, time.Minute)
			if _, _, err := first.worker.Step(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, _ := second.steps(); !slices.Equal(first.produced, []string{"a", "b"}) || !slices.Equal(got, want) {
				t.Errorf("produced %v and %v, want a, b and %v", first.produced, got, want)
			}
		})
	}
}

// TestLease: what a worker has not deleted is delivered again when its lease is over.
func TestLease(t *testing.T) {
	t.Parallel()
	s := newStage(t, "lease")
	s.write(s.conn, "a")
	gone := s.hand(1, 0)
	if _, _, err := gone.worker.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.hand(1, time.Minute).steps(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("produced %v", got)
	}
}

// TestOpenTransaction: what each way does with an event whose transaction stays open while
// another is committed behind it, and when it is committed at last.
func TestOpenTransaction(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][2][]string{
		"long-tx":    {{"second"}, {"first"}},
		"lease":      {{"second"}, {"first"}},
		"advisory":   {{"second"}, nil}, // lost
		"partitions": {nil, {"first", "second"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, name)
			open := s.connect()
			s.exec(open, "BEGIN")
			s.write(open, "first")
			s.write(s.conn, "second")
			h := s.hand(10, time.Minute)
			meanwhile, _ := h.steps()
			s.exec(open, "COMMIT")
			h.again()
			afterwards, _ := h.steps()
			if !slices.Equal(meanwhile, want[0]) || !slices.Equal(afterwards, want[1]) {
				t.Errorf("produced %v, then %v, want %v", meanwhile, afterwards, want)
			}
			if s.left() {
				t.Error("something is left")
			}
		})
	}
}

// again lets partitions be read at once that were empty.
func (h *hand) again() {
	h.Helper()
	if h.way.Subscribe != "" {
		h.exec(h.conn, "UPDATE outbox_offsets SET available_after = now()")
	}
}

// TestWritersInLine: no writer passes one that has written and stays open.
func TestWritersInLine(t *testing.T) {
	t.Parallel()
	s := newStage(t, "serialised")
	open := s.connect()
	s.exec(open, "BEGIN")
	s.write(open, "first")
	s.exec(s.conn, "SET lock_timeout = '10ms'")
	var refused *pgconn.PgError
	if _, err := s.conn.Exec(t.Context(), s.way.Before); !errors.As(err, &refused) || refused.Code != "55P03" {
		t.Errorf("a second writer got %v", err)
	}
	s.exec(open, "COMMIT")
	s.write(s.conn, "second")
	if got, _ := s.hand(10, time.Minute).steps(); !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("produced %v", got)
	}
}

// TestTransactionOrder: the way by transactions takes an event before one of its aggregate
// that was committed first, if its transaction is the older one.
func TestTransactionOrder(t *testing.T) {
	t.Parallel()
	s := newStage(t, "partitions")
	old := s.connect()
	s.exec(old, "BEGIN; SELECT pg_current_xact_id()")
	s.write(s.conn, "committed first")
	s.write(old, "committed second")
	s.exec(old, "COMMIT")
	if got, _ := s.hand(10, time.Minute).steps(); !slices.Equal(got, []string{"committed second", "committed first"}) {
		t.Errorf("produced %v", got)
	}
}
