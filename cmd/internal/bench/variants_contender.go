package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/cmd/internal/bench/variants"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// contender is one of the compared outboxes.
type contender struct {
	name  string
	about string
	most  int           // workers; 0: any number
	way   *variants.Way // nil: notifyd
	mode  outboxsql.Mode
	// inOrder reports whether the events of an aggregate arrive in order.
	inOrder bool
	// into and more are the parts of the INSERT before and after the three values that all contenders have: address,
	// aggregate, payload.
	into, more string
	before     string // what a writer executes before it inserts
}

// contenders returns all contenders, in the order of the table.
func contenders() []contender {
	var all []contender
	for _, way := range variants.All() {
		all = append(all, contender{name: way.Name, about: way.About, most: way.Most, way: &way, into: variants.Columns, before: way.Before})
	}
	ours := contender{into: "outbox_events (event_type, aggregate_id, payload, aggregate_type)", more: ", 'bench'"}
	queue, stream := ours, ours
	queue.name, queue.about, queue.mode = "queue", "notifyd, competing relays, events are marked and kept, at least once", outboxsql.ModeQueue
	stream.name, stream.about, stream.mode, stream.inOrder = "stream", "notifyd, a position for each topic, in order per aggregate, at least once", outboxsql.ModeStream, true
	// A stream that delivers exactly once belongs here, once the Kafka destination supports it. Its topics will have
	// control records: readBack must then find the end by other means than offsets.
	return append(all, queue, stream)
}

// insert returns the statement of a writer. Its parameters are address, aggregate and payload.
func (who contender) insert() string {
	return "INSERT INTO " + who.into + " VALUES ($1, $2, $3" + who.more + ")"
}

// workerCounts returns the numbers of workers to measure a contender with.
func (who contender) workerCounts() (all []int) {
	for n := 1; n <= variantWorkers && (who.most == 0 || n <= who.most); n++ {
		all = append(all, n)
	}
	return all
}

// backlog returns the statement that inserts $1 events of $2 aggregates for the addresses $3, with the filling $4.
func (who contender) backlog() string {
	return "INSERT INTO " + who.into + ` SELECT ($3::text[])[1 + key % cardinality($3::text[])], '` + freeAggregate + `' || key,
		('{"n":"' || lpad(n::text, ` + strconv.Itoa(numberDigits) + `, '0') || '","fill":"' || $4::text || '"}')::json` + who.more + `
		FROM (SELECT (i - 1) % $2::bigint AS key, (i - 1) / $2::bigint AS n FROM generate_series(1, $1::bigint) AS i) AS event`
}

// addresses returns the targets of events: the topics, or the event types that are routed to them.
func (t *trial) addresses() []string {
	if t.who.way != nil {
		return t.topics
	}
	types := make([]string, len(t.topics))
	for i := range types {
		types[i] = routeType(i)
	}
	return types
}

// create creates the tables.
func (t *trial) create(ctx context.Context) (err error) {
	name := fmt.Sprintf("variant_%d_%s", t.trials, t.who.mode)
	if t.who.way == nil {
		t.schema, err = t.migrateTo(ctx, name, outboxsql.NotifyAuto, t.who.mode)
		return err
	}
	t.schema = t.prefix + "_" + name
	conn, err := t.inside(ctx, "CREATE SCHEMA "+pgx.Identifier{t.schema}.Sanitize()+";")
	if err != nil {
		return err
	}
	defer store.Close(ctx, conn)
	if _, err := conn.Exec(ctx, t.who.way.Tables); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	for _, topic := range t.topics {
		if t.who.way.Subscribe == "" {
			break
		}
		if _, err := conn.Exec(ctx, t.who.way.Subscribe, topic); err != nil {
			return fmt.Errorf("announce a topic: %w", err)
		}
	}
	return nil
}

// inside opens a connection with the trial's schema as search_path, and runs the statement first on it.
func (t *trial) inside(ctx context.Context, first string) (*pgx.Conn, error) {
	conn, err := t.connect(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, first+"SET search_path = "+pgx.Identifier{t.schema}.Sanitize()); err != nil {
		store.Close(ctx, conn)
		return nil, err
	}
	return conn, nil
}

// left reports whether events wait for delivery.
func (t *trial) left(ctx context.Context) (bool, error) {
	if t.who.way == nil {
		n, err := t.unsettled(ctx, t.schema, t.who.mode)
		return n > 0, err
	}
	var left bool
	err := t.look.QueryRow(ctx, t.who.way.Left).Scan(&left)
	return left, err
}

// workers are the workers of a trial.
type workers struct {
	*running
	settled atomic.Int64 // by the workers of a way
	seen    *sightings   // by relays; nil for a way
	isReady []<-chan struct{}
	closers []io.Closer
}

// done returns how many events are settled, or delivered by a relay.
func (w *workers) done() int64 {
	if w.seen == nil {
		return w.settled.Load()
	}
	return w.seen.distinct.Load() + w.seen.unknown.Load() // all ids are unknown if their number is
}

// awaitRunning waits until all workers are running.
func (w *workers) awaitRunning(ctx context.Context) error {
	for _, ready := range w.isReady {
		if err := w.ready(ctx, ready); err != nil {
			return err
		}
	}
	return nil
}

// dismiss ends the workers, after they have settled the events under way, and closes their resources.
func (w *workers) dismiss() (err error) {
	if w.running != nil {
		err, w.running = w.stop(), nil
	}
	for _, c := range w.closers {
		err = errors.Join(err, c.Close())
	}
	w.closers = nil
	return err
}

// hire starts the workers; the caller calls dismiss. events is the expected number of events, or 0 if that is unknown.
func (t *trial) hire(ctx context.Context, events int) (*workers, error) {
	w := &workers{}
	add := t.addWorker
	if t.who.way == nil {
		w.seen, add = newSightings(events), t.addRelay
	}
	var tasks []func(context.Context) error
	for range t.workers {
		task, err := add(ctx, w)
		if err != nil {
			return nil, errors.Join(err, w.dismiss())
		}
		tasks = append(tasks, task)
	}
	w.running = start(ctx, func(ctx context.Context) error { return together(ctx, tasks...) })
	return w, nil
}

// closer implements io.Closer with a function.
type closer func()

func (f closer) Close() error { f(); return nil }

// addWorker prepares a worker of a way, with a separate connection and producer.
func (t *trial) addWorker(ctx context.Context, w *workers) (func(context.Context) error, error) {
	connector := &store.Connector{Config: t.pool.Config().ConnConfig, Schema: t.schema}
	conn, err := connector.Connect(ctx, "variant")
	if err != nil {
		return nil, err
	}
	w.closers = append(w.closers, closer(func() { store.Close(ctx, conn) }))
	producer, err := variants.NewProducer(t.brokers)
	if err != nil {
		return nil, err
	}
	w.closers = append(w.closers, closer(producer.Close))
	worker := t.who.way.New(variants.Config{Conn: conn, Produce: producer.Produce, Batch: t.want.Batch, Lease: variantLease})
	return func(ctx context.Context) error {
		return variants.Run(ctx, worker, func(n int) { w.settled.Add(int64(n)) })
	}, nil
}

// addRelay prepares a relay with one claim at a time, and a destination for each topic.
func (t *trial) addRelay(ctx context.Context, w *workers) (func(context.Context) error, error) {
	pool, err := pgxpool.New(ctx, t.url)
	if err != nil {
		return nil, err
	}
	w.closers = append(w.closers, closer(pool.Close))
	relay, err := notifyd.New(pool, notifyd.Config{Schema: t.schema, Logger: t.Log, Connections: 1, Batch: t.want.Batch})
	if err != nil {
		return nil, err
	}
	for i, topic := range t.topics {
		h, err := kafka.New(kafka.Config{Brokers: t.brokers, Topic: topic})
		if err != nil {
			return nil, err
		}
		w.closers = append(w.closers, h)
		name := sinkName + strconv.Itoa(i)
		lane := kafka.DefaultLane()
		lane.Batch = t.sinkBatch()
		if err := errors.Join(
			relay.Add(notifyd.Destination{Name: name, Handler: noting(h, w.seen), Lane: lane}),
			relay.Route(routeType(i), name)); err != nil {
			return nil, err
		}
	}
	w.isReady = append(w.isReady, relay.Ready())
	return relay.Run, nil
}
