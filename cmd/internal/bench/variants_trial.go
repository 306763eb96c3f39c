package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/handlers/kafka"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// trial is one run of a way, with separate tables and topics.
type trial struct {
	*Env
	trialOptions
	kafka  *kafkaSink
	want   *Variants
	way    *way
	schema string
	topics []string
	look   *pgx.Conn // inspects the tables
	fill   string    // makes payloads as large as wanted
	// written is the number of committed events of each aggregate. They are numbered from 0, and one writer at a time
	// writes to an aggregate.
	written []int64
}

// run prepares tables and topics, measures, and reads the topics back. It sets the faults in the column, and counts
// those of notifyd; the faults of others are figures, and no failure of the bench.
func (t *trial) run(ctx context.Context, r *Result) (err error) {
	t.fill = strings.Trim(payload(2+payloadBytes-len(numbered(0, ""))), `"`)
	t.topics, err = t.kafka.newTopics(ctx)
	defer func() {
		_, dropErr := t.kafka.admin.DeleteTopics(context.WithoutCancel(ctx), t.topics...)
		err = errors.Join(err, dropErr)
	}()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.drop(context.WithoutCancel(ctx), t.schema)) }()
	if err := t.create(ctx); err != nil {
		return err
	}
	defer store.Close(ctx, t.look)

	c := r.Column(t.way.name)
	if err := t.measure(ctx, t, c); err != nil {
		return err
	}
	faults, err := t.readBack(ctx)
	if err != nil {
		return err
	}
	c.faults(t.at, faults)
	t.Printf("%s, %s%s\n", t.way.name, t.at, faults)
	if !t.way.isNotifyd() {
		return nil
	}
	if !t.way.inOrder {
		faults.OutOfOrder = 0 // a queue promises no order
	}
	r.Count(faults)
	return nil
}

// create creates the tables.
func (t *trial) create(ctx context.Context) (err error) {
	name := "variant_" + t.way.name
	t.schema = t.Prefix + "_" + name
	if t.way.isNotifyd() {
		if _, err := t.migrate(ctx, name, outboxsql.NotifyAuto, t.way.mode); err != nil {
			return err
		}
		t.look, err = t.inside(ctx)
		return err
	}

	if _, err := t.Pool.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{t.schema}.Sanitize()); err != nil {
		return err
	}
	t.look, err = t.inside(ctx)
	if err != nil {
		return err
	}
	if _, err := t.look.Exec(ctx, t.way.tables); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	for _, topic := range t.topics {
		if t.way.subscribe == "" {
			break
		}
		if _, err := t.look.Exec(ctx, t.way.subscribe, topic); err != nil {
			return fmt.Errorf("announce a topic: %w", err)
		}
	}
	return nil
}

// inside opens a connection with the trial's schema as search_path.
func (t *trial) inside(ctx context.Context) (*pgx.Conn, error) {
	return t.session(ctx, "SET search_path = "+pgx.Identifier{t.schema}.Sanitize())
}

// addresses returns the targets of events: the topics, or the event types that are routed to them.
func (t *trial) addresses() []string {
	if !t.way.isNotifyd() {
		return t.topics
	}
	types := make([]string, len(t.topics))
	for i := range types {
		types[i] = routeType(i)
	}
	return types
}

// insertBacklog inserts the backlog. Then it vacuums and analyzes all tables, so that no variant meets an autovacuum caused by the
// inserts.
func (t *trial) insertBacklog(ctx context.Context) error {
	into, more := t.way.insertInto()
	backlog := into + `SELECT ($3::text[])[1 + key % cardinality($3::text[])], '` + freeAggregate + `' || key,
		('{"n":"' || lpad(n::text, ` + strconv.Itoa(numberDigits) + `, '0') || '","fill":"' || $4::text || '"}')::json` + more + `
		FROM (SELECT (i - 1) % $2::bigint AS key, (i - 1) / $2::bigint AS n FROM generate_series(1, $1::bigint) AS i) AS event`
	if _, err := t.look.Exec(ctx, backlog, t.want.Events, variantKeys, t.addresses(), t.fill); err != nil {
		return fmt.Errorf("insert the backlog: %w", err)
	}
	t.written = make([]int64, variantKeys)
	for key := range t.written {
		t.written[key] = int64((t.want.Events - key + variantKeys - 1) / variantKeys)
	}

	rows, err := t.look.Query(ctx, `SELECT format('VACUUM (ANALYZE) %s', oid::regclass) FROM pg_class
		WHERE relnamespace = to_regnamespace($1) AND relkind = 'r'`, pgx.Identifier{t.schema}.Sanitize())
	if err != nil {
		return err
	}
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, statement := range append(statements, "CHECKPOINT") {
		if _, err := t.look.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// insert writes the next event of an aggregate in one round trip. Outside of a transaction that is a commit.
func (t *trial) insert(ctx context.Context, conn *pgx.Conn, key int) error {
	var flight pgx.Batch
	if t.way.before != "" {
		flight.Queue(t.way.before)
	}
	into, more := t.way.insertInto()
	addresses := t.addresses()
	flight.Queue(into+"VALUES ($1, $2, $3"+more+")", addresses[key%len(addresses)], freeAggregate+strconv.Itoa(key), numbered(t.written[key], t.fill))
	return conn.SendBatch(ctx, &flight).Close()
}

// commit writes an event in a separate transaction.
func (t *trial) commit(ctx context.Context, conn *pgx.Conn, key int) error {
	err := t.insert(ctx, conn, key)
	if err == nil {
		t.written[key]++
	}
	return err
}

// commitSlowly writes an event in a transaction that has written something else before and takes a while. It rolls one in
// twenty back.
func (t *trial) commitSlowly(ctx context.Context, conn *pgx.Conn, key int, lock *sync.Mutex) error {
	const rolledBack = 20
	if _, err := conn.Exec(ctx, foreignWrite); err != nil {
		return err
	}
	if err := pause(ctx, aWhile()); err != nil {
		return err
	}

	lock.Lock()
	defer lock.Unlock()
	if err := t.insert(ctx, conn, key); err != nil {
		return err
	}
	if err := pause(ctx, aWhile()); err != nil {
		return err
	}
	if rand.IntN(rolledBack) == 0 { //nolint:gosec // a load
		_, err := conn.Exec(ctx, "ROLLBACK")
		return err
	}
	_, err := conn.Exec(ctx, "COMMIT")
	if err == nil {
		t.written[key]++
	}
	return err
}

// aWhile returns up to 5 ms, and for one transaction in fifty up to 100 ms.
func aWhile() time.Duration {
	const oneInFifty, short, long = 50, 5 * time.Millisecond, 100 * time.Millisecond
	most := short
	if rand.IntN(oneInFifty) == 0 { //nolint:gosec // a load
		most = long
	}
	return rand.N(most) //nolint:gosec // a load
}

// total returns the number of committed events.
func (t *trial) total() (n int64) {
	for _, written := range t.written {
		n += written
	}
	return n
}

// consume returns a client that reads the topics from their beginning.
func (t *trial) consume() (*kgo.Client, error) {
	return kgo.NewClient(kgo.SeedBrokers(t.kafka.addrs...), kgo.AlwaysRetryEOF(), kgo.ConsumeTopics(t.topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
}

// readBack reads the topics to their end, and compares them with the committed events.
func (t *trial) readBack(ctx context.Context) (Faults, error) {
	end, err := t.kafka.end(ctx, t.topics)
	if err != nil {
		return Faults{}, err
	}
	client, err := t.consume()
	if err != nil {
		return Faults{}, err
	}
	defer client.Close()
	var read int64
	found := newFindings(t.written)
	err = readTo(ctx, client, &read, end, func(r *kgo.Record) { found.note(string(r.Key), r.Value) })
	return found.counts, err
}

// findings are the records found in the topics.
type findings struct {
	seen   [][]bool // by aggregate and number
	last   []int64  // the highest number of each aggregate
	counts Faults
}

func newFindings(written []int64) *findings {
	f := &findings{seen: make([][]bool, len(written)), last: make([]int64, len(written))}
	for key, n := range written {
		f.seen[key] = make([]bool, n)
		f.last[key] = -1
		f.counts.Lost += n
	}
	return f
}

// note records a record of a topic. A record that was never committed counts as a duplicate.
func (f *findings) note(aggregate string, value []byte) {
	var key int
	var n int64
	_, err := fmt.Sscanf(aggregate+" "+string(value), freeAggregate+`%d {"n":"%d"`, &key, &n)
	isOurs := err == nil && key < len(f.seen) && n < int64(len(f.seen[key]))
	if !isOurs || f.seen[key][n] {
		f.counts.Duplicates++
		return
	}
	f.seen[key][n] = true
	f.counts.Lost--
	if n < f.last[key] {
		f.counts.OutOfOrder++
	}
	f.last[key] = max(f.last[key], n)
}

// numberDigits is the length of the number of an event in its aggregate, with which the payload begins.
const numberDigits = 10

// numbered returns the payload of an event.
func numbered(n int64, fill string) string {
	return fmt.Sprintf(`{"n":"%0*d","fill":"%s"}`, numberDigits, n, fill)
}

// workers are the workers of a trial.
type workers struct {
	*trial
	running *running
	settled atomic.Int64 // by the workers of a way other than notifyd's
	seen    *sightings   // by relays
	tasks   []func(context.Context) error
	ready   []<-chan struct{}
	closers []func()
}

// withWorkers calls do while workers run. Then it ends them, after they have settled the events under way. events is the
// expected number of events, or 0 if that is unknown.
func (t *trial) withWorkers(ctx context.Context, events int, do func(context.Context, *workers) error) (err error) {
	w := &workers{trial: t, seen: newSightings(events)}
	defer func() {
		for _, end := range w.closers {
			end()
		}
	}()
	add := w.addWorker
	if t.way.isNotifyd() {
		add = w.addRelay
	}
	for range t.workers {
		if err := add(ctx); err != nil {
			return err
		}
	}
	w.running = start(ctx, func(ctx context.Context) error { return Together(ctx, w.tasks...) })
	defer func() { err = errors.Join(err, w.running.stop()) }()
	return do(ctx, w)
}

// withWriters is withWorkers with connected writers, after all workers are running.
func (t *trial) withWriters(ctx context.Context, n int, do func(context.Context, *workers, writers) error) error {
	return t.withWorkers(ctx, 0, func(ctx context.Context, w *workers) error {
		for _, ready := range w.ready {
			if err := w.running.ready(ctx, ready); err != nil {
				return err
			}
		}
		var all writers
		defer func() { all.close(ctx) }()
		for range n {
			conn, err := t.inside(ctx)
			if err != nil {
				return fmt.Errorf("connect the writers: %w", err)
			}
			all = append(all, conn)
		}
		return do(ctx, w, all)
	})
}

// addWorker prepares a worker of a way, with a separate connection and producer.
func (w *workers) addWorker(ctx context.Context) error {
	connector := &store.Connector{Config: w.Pool.Config().ConnConfig, Schema: w.schema}
	conn, err := connector.Connect(ctx, "variant")
	if err != nil {
		return err
	}
	w.closers = append(w.closers, func() { store.Close(ctx, conn) })
	producer, err := newProducer(w.kafka.addrs)
	if err != nil {
		return err
	}
	w.closers = append(w.closers, producer.client.Close)

	worker := w.way.worker(producing{conn: conn, producer: producer, batch: w.want.Batch})
	w.tasks = append(w.tasks, func(ctx context.Context) error {
		for {
			settled, idle, err := worker.step(ctx)
			if err != nil {
				return endedBy(ctx, err)
			}
			w.settled.Add(int64(settled))
			if idle {
				sleep.For(ctx, idleFor)
			}
		}
	})
	return nil
}

// addRelay prepares a relay with one claim at a time, and a destination for each topic. All topics together have as many
// events under way as the workers of another way.
func (w *workers) addRelay(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, w.URL)
	if err != nil {
		return err
	}
	w.closers = append(w.closers, pool.Close)
	relay, err := notifyd.New(pool, notifyd.Config{Schema: w.schema, Logger: w.Log, Connections: 1, Batch: w.want.Batch})
	if err != nil {
		return err
	}
	lane := kafka.DefaultLane()
	lane.Batch = min(max(1, w.want.Batch*w.workers/sinkTopics), lane.Batch)
	for i, topic := range w.topics {
		h, err := kafka.New(kafka.Config{Brokers: w.kafka.addrs, Topic: topic})
		if err != nil {
			return err
		}
		w.closers = append(w.closers, func() { _ = h.Close() }) // all calls have returned
		name := sinkName + strconv.Itoa(i)
		err = errors.Join(relay.Add(notifyd.Destination{Name: name, Handler: noting(h, w.seen), Lane: lane}), relay.Route(routeType(i), name))
		if err != nil {
			return err
		}
	}
	w.ready = append(w.ready, relay.Ready())
	w.tasks = append(w.tasks, relay.Run)
	return nil
}

// done returns how many events are settled, or delivered by a relay. To a relay all ids are unknown if their number is.
func (w *workers) done() int64 {
	return w.settled.Load() + w.seen.distinct.Load() + w.seen.unknown.Load()
}

// caughtUp waits until the workers would find no more events.
func (w *workers) caughtUp(ctx context.Context) error {
	return w.until(ctx, func(ctx context.Context) (bool, error) {
		if w.way.isNotifyd() {
			n, err := w.unsettled(ctx, w.schema, w.way.mode)
			return n == 0, err
		}
		var left bool
		err := w.look.QueryRow(ctx, w.way.left).Scan(&left)
		return !left, err
	})
}

// until waits until is returns true, or nothing was settled for settleWithin: missing events count as lost.
func (w *workers) until(ctx context.Context, is func(context.Context) (bool, error)) error {
	const lookEvery = 2 * time.Millisecond
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	moved := time.Now()
	for last := int64(-1); ; {
		so, err := is(ctx)
		if so || err != nil {
			return err
		}
		now := w.done()
		if now != last {
			moved = time.Now()
			last = now
		}
		if time.Since(moved) > settleWithin {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-w.running.ended:
			w.running.ended <- nil // for stop
			return errors.Join(errEndedEarly, err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
