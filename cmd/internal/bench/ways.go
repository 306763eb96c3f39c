package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// way is a way to move events from PostgreSQL into Kafka. Except for notifyd, the ways come from a well-known comparison
// (github.com/denis-tsv/Outbox). Each has the best settings that it allows: prepared statements, one round trip
// for statements that belong together, and only the index that it needs. They lack much that a relay needs: retries, dead
// letters, routes, an end without repeats.
type way struct {
	name    string         // one word
	about   string         // one line
	most    int            // workers; 0: any number
	mode    outboxsql.Mode // of notifyd; the further fields are of the other ways
	inOrder bool           // the events of an aggregate arrive in order

	tables    string // creates the tables, in the search_path
	subscribe string // announces the topic $1 to the workers; "" if they do not need that
	before    string // executed by a writer in its transaction before it inserts; "" for none
	left      string // query: true while events wait that the workers will find
	worker    func(producing) stepper
}

// isNotifyd reports whether relays are the workers.
func (w *way) isNotifyd() bool { return w.mode != "" }

// insertInto returns the beginning and the end of an INSERT, around the values address, aggregate and payload.
func (w *way) insertInto() (into, more string) {
	if w.isNotifyd() {
		return "INSERT INTO outbox_events (event_type, aggregate_id, payload, aggregate_type) ", ", 'bench'"
	}
	return "INSERT INTO outbox (topic, key, payload) ", ""
}

// workerCounts returns the numbers of workers to measure the way with.
func (w *way) workerCounts() (all []int) {
	for n := 1; n <= variantWorkers && (w.most == 0 || n <= w.most); n++ {
		all = append(all, n)
	}
	return all
}

// trials returns the trials of all parts.
func (w *way) trials() (all []trialOptions) {
	for _, n := range w.workerCounts() {
		all = append(all, trialOptions{part: "drain", at: fmt.Sprintf("%d at work: ", n), workers: n, measure: drainVariant})
	}
	all = append(all, trialOptions{part: "writers", at: fmt.Sprintf("%d writers: ", variantWriters), workers: 1, measure: raceWriters})
	for _, foreign := range foreigns() {
		all = append(all, trialOptions{part: "open", at: "open, written " + foreign + ": ", workers: 1, foreign: foreign, measure: holdOpen})
	}
	for _, n := range w.workerCounts() {
		all = append(all, trialOptions{part: "order", at: fmt.Sprintf("commits out of order, %d at work: ", n), workers: n, measure: scramble})
	}
	return all
}

// stepper delivers events, a batch with each step.
type stepper interface {
	// step settles the last batch and delivers the next one. It returns how many events it has settled, and whether no
	// event waits at present.
	step(ctx context.Context) (settled int, idle bool, err error)
}

// producing is what every stepper has.
type producing struct {
	conn     *pgx.Conn // used by nothing else
	producer *producer
	batch    int       // the most events of a step
	messages []message // produced; the next step settles them
}

// message is an event on its way to a topic.
type message struct {
	id         int64
	topic, key string
	payload    []byte
	tx         string // of the ways with positions
}

const (
	// idleFor is how long a worker without events waits. In the comparison the writer wakes a worker in the same process.
	// A short wait has the same effect with writers in other processes.
	idleFor = 10 * time.Millisecond
	// lockKey is the advisory lock of the way with one worker, and of serialized writers.
	lockKey = "7738151094537"
	// vacuumSoon are the settings of tables whose rows are deleted: until vacuum has removed the dead rows, each query for
	// the first rows has to skip them.
	vacuumSoon = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0"

	idColumn    = "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
	columns     = "topic text NOT NULL, key text NOT NULL, payload json NOT NULL, created_at timestamptz NOT NULL DEFAULT now()"
	isDue       = "available_after timestamptz NOT NULL DEFAULT now()"
	leaseTime   = "interval '15 s'" // as in the comparison
	offsetsKeys = "topic text, partition int, PRIMARY KEY (topic, partition), " + isDue
)

// ways returns the ways, in the order of the table.
func ways() []*way {
	return []*way{
		{
			name: "long-tx", about: "one transaction: SELECT ... FOR UPDATE SKIP LOCKED, produce, DELETE, COMMIT",
			tables: `CREATE TABLE outbox (` + idColumn + `, ` + columns + `) WITH (` + vacuumSoon + `)`,
			left:   `SELECT EXISTS (SELECT FROM outbox)`,
			worker: func(p producing) stepper {
				return &rowWorker{
					producing: p, isTransaction: true,
					settle: `DELETE FROM outbox WHERE id = ANY($1)`,
					read:   `SELECT id, topic, key, payload FROM outbox ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED`,
				}
			},
		},

		{
			// If an event commits after an event with a higher id was delivered, it is never read.
			name: "advisory", about: "an advisory lock, one worker, the last id as its position; no row is locked or deleted", most: 1,
			tables: `CREATE TABLE outbox (` + idColumn + `, ` + columns + `);
				CREATE TABLE outbox_offset (last_id bigint NOT NULL);
				INSERT INTO outbox_offset VALUES (0)`,
			left: `SELECT EXISTS (SELECT FROM outbox WHERE id > (SELECT last_id FROM outbox_offset))`,
			worker: func(p producing) stepper {
				return &rowWorker{
					producing: p,
					lock:      `SELECT pg_try_advisory_lock(` + lockKey + `)`,
					settle:    `UPDATE outbox_offset SET last_id = ($1::bigint[])[cardinality($1)]`,
					read:      `SELECT id, topic, key, payload FROM outbox WHERE id > (SELECT last_id FROM outbox_offset) ORDER BY id LIMIT $1`,
				}
			},
		},

		{
			// available_after has no index: the query does not need one. A page has room for the second version of its rows,
			// so that a lease changes no index.
			name: "lease", about: "two short transactions: UPDATE available_after ... RETURNING, produce, DELETE",
			tables: `CREATE TABLE outbox (` + idColumn + `, ` + columns + `, ` + isDue + `) WITH (fillfactor = 45, ` + vacuumSoon + `)`,
			left:   `SELECT EXISTS (SELECT FROM outbox)`,
			worker: func(p producing) stepper {
				return &rowWorker{
					producing: p,
					settle:    `DELETE FROM outbox WHERE id = ANY($1)`,
					read: `UPDATE outbox AS o SET available_after = now() + ` + leaseTime + `
						FROM (SELECT id FROM outbox WHERE available_after <= now() ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED) AS due
						WHERE o.id = due.id RETURNING o.id, o.topic, o.key, o.payload`,
				}
			},
		},

		{
			// Nothing can commit below the oldest open transaction of the server. A position is a transaction and an id.
			name: "partitions", about: "virtual partitions, a position each, read up to pg_snapshot_xmin in the order of transactions",
			tables: `CREATE TABLE outbox (` + idColumn + `, ` + columns + `,
					partition int NOT NULL DEFAULT 0, tx_id xid8 NOT NULL DEFAULT pg_current_xact_id());
				CREATE INDEX ON outbox (topic, partition, tx_id, id);
				CREATE TABLE outbox_offsets (` + offsetsKeys + `, last_tx xid8 NOT NULL DEFAULT '0', last_id bigint NOT NULL DEFAULT 0)`,
			subscribe: subscribe,
			left: `SELECT EXISTS (SELECT FROM outbox_offsets AS o WHERE EXISTS (
				SELECT FROM outbox AS e WHERE e.topic = o.topic AND e.partition = o.partition AND (e.tx_id, e.id) > (o.last_tx, o.last_id)))`,
			worker: func(p producing) stepper {
				return &partitionWorker{
					producing: p,
					release: `UPDATE outbox_offsets SET last_tx = $3::text::xid8, last_id = $4, available_after = now() + $5::interval
						WHERE topic = $1 AND partition = $2`,
					claim: claim + `o.last_tx::text, o.last_id`,
					read: `SELECT id, topic, key, payload, tx_id::text FROM outbox
						WHERE topic = $1 AND partition = $2 AND (tx_id, id) > ($3::text::xid8, $4)
						AND tx_id < pg_snapshot_xmin(pg_current_snapshot())
						ORDER BY outbox.tx_id, outbox.id LIMIT $5`,
				}
			},
		},

		{
			// Ids are in the order of commits, so a position is an id. A writer waits for every other writer, and for any
			// transaction that has written an event and stays open.
			name: "serialised", about: "writers take a lock before the id is drawn; virtual partitions, the last id as the position of each",
			tables: `CREATE TABLE outbox (` + idColumn + `, partition int NOT NULL DEFAULT 0, ` + columns + `);
				CREATE INDEX ON outbox (topic, partition, id);
				CREATE TABLE outbox_offsets (` + offsetsKeys + `, last_id bigint NOT NULL DEFAULT 0)`,
			subscribe: subscribe,
			before:    `SELECT pg_advisory_xact_lock(` + lockKey + `)`,
			left: `SELECT EXISTS (SELECT FROM outbox_offsets AS o WHERE EXISTS (
				SELECT FROM outbox AS e WHERE e.topic = o.topic AND e.partition = o.partition AND e.id > o.last_id))`,
			worker: func(p producing) stepper {
				return &partitionWorker{
					producing: p,
					// $3 is the transaction, which only the other way uses.
					release: `UPDATE outbox_offsets SET last_id = $4, available_after = now() + $5::interval
						WHERE topic = $1 AND partition = $2 AND $3::text IS NOT NULL`,
					claim: claim + `'0', o.last_id`,
					read:  `SELECT id, topic, key, payload, $3::text FROM outbox WHERE topic = $1 AND partition = $2 AND id > $4 ORDER BY id LIMIT $5`,
				}
			},
		},
		{name: "queue", about: "notifyd, competing relays, events are marked and kept, at least once", mode: outboxsql.ModeQueue},
		{name: "stream", about: "notifyd, a position for each topic, in order per aggregate, at least once", mode: outboxsql.ModeStream, inOrder: true},
	}
}

// rowWorker serves the ways that settle rows by their ids: it reads a batch, produces it, and settles it together with the
// read of the next one.
type rowWorker struct {
	producing

	lock          string // taken first, for the session, so that it costs nothing per batch; "" for none
	settle        string // $1 are the ids
	read          string // $1 is the limit
	isTransaction bool   // one transaction reads and settles

	isLocked bool
	ids      []int64 // of the messages
}

func (w *rowWorker) step(ctx context.Context) (settled int, idle bool, err error) {
	if w.lock != "" && !w.isLocked {
		err := w.conn.QueryRow(ctx, w.lock).Scan(&w.isLocked)
		if err != nil || !w.isLocked {
			return 0, true, err
		}
	}

	var flight pgx.Batch
	if len(w.ids) > 0 {
		settled = len(w.ids)
		flight.Queue(w.settle, w.ids).Exec(func(tag pgconn.CommandTag) error {
			if tag.Delete() { // another worker may have deleted some after the end of the lease
				settled = int(tag.RowsAffected())
			}
			return nil
		})
		if w.isTransaction {
			flight.Queue(`COMMIT`)
		}
	}
	if w.isTransaction {
		flight.Queue(`BEGIN`)
	}
	w.messages = w.messages[:0]
	flight.Queue(w.read, w.batch).Query(func(rows pgx.Rows) error { return w.collect(rows, false) })
	if err := w.conn.SendBatch(ctx, &flight).Close(); err != nil {
		return 0, false, err
	}

	slices.SortFunc(w.messages, func(a, b message) int { return cmp.Compare(a.id, b.id) })
	w.ids = w.ids[:0]
	for i := range w.messages {
		w.ids = append(w.ids, w.messages[i].id)
	}
	if len(w.ids) > 0 {
		return settled, false, w.producer.produce(ctx, w.messages)
	}
	if w.isTransaction {
		_, err = w.conn.Exec(ctx, `COMMIT`)
	}
	return settled, true, err
}

// collect reads rows of id, topic, key and payload, and of a transaction if they have one.
func (p *producing) collect(rows pgx.Rows, hasTx bool) error {
	for rows.Next() {
		var m message
		into := []any{&m.id, &m.topic, &m.key, &m.payload}
		if hasTx {
			into = append(into, &m.tx)
		}
		if err := rows.Scan(into...); err != nil {
			return err
		}
		p.messages = append(p.messages, m)
	}
	return rows.Err()
}

const (
	// subscribe creates a virtual partition of a topic.
	subscribe = `INSERT INTO outbox_offsets (topic, partition) VALUES ($1, 0)`
	// claim leases the partition that has waited longest. It returns topic, partition, transaction and id.
	claim = `UPDATE outbox_offsets AS o SET available_after = now() + ` + leaseTime + `
		FROM (SELECT topic, partition FROM outbox_offsets WHERE available_after <= now() ORDER BY available_after LIMIT 1 FOR UPDATE SKIP LOCKED) AS free
		WHERE o.topic = free.topic AND o.partition = free.partition RETURNING o.topic, o.partition, `
)

// partitionWorker serves the two ways with a position per virtual partition. It leases a partition by a time in its row,
// reads after its position, produces, and moves the position.
type partitionWorker struct {
	producing

	release string // moves the position: topic, partition, transaction, id, pause
	claim   string
	read    string // topic, partition, transaction, id, limit

	isHeld    bool // the position is claimed
	topic     string
	partition int
	tx        string // of the last event; "0" if the way does not use it
	id        int64
}

// step moves a position and claims the next partition in one round trip and one commit. The read is a separate round trip:
// it must have a snapshot taken after the claim.
func (w *partitionWorker) step(ctx context.Context) (settled int, idle bool, err error) {
	var flight pgx.Batch
	settled = len(w.messages)
	if w.isHeld {
		wait := time.Duration(0)
		if settled == 0 {
			wait = idleFor // after an empty read, other partitions come first
		}
		flight.Queue(w.release, w.topic, w.partition, w.tx, w.id, wait)
	}
	w.messages = w.messages[:0]
	w.isHeld = false
	flight.Queue(w.claim).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			w.isHeld = true
			if err := rows.Scan(&w.topic, &w.partition, &w.tx, &w.id); err != nil {
				return err
			}
		}
		return nil
	})
	err = w.conn.SendBatch(ctx, &flight).Close()
	if err != nil || !w.isHeld {
		return settled, true, err
	}

	rows, err := w.conn.Query(ctx, w.read, w.topic, w.partition, w.tx, w.id, w.batch)
	if err != nil {
		return 0, false, err
	}
	defer rows.Close()
	if err := w.collect(rows, true); err != nil {
		return 0, false, err
	}
	if len(w.messages) == 0 {
		return settled, false, nil // another partition may have events
	}
	last := &w.messages[len(w.messages)-1]
	w.tx = last.tx
	w.id = last.id
	return settled, false, w.producer.produce(ctx, w.messages)
}

// producerSettings describes the producers for people. notifyd's producer has the same settings.
const producerSettings = "acks=all, idempotent, no compression, batches of up to 1,000,012 B, linger 0 and a flush for each batch"

// producer writes batches to topics, for one worker.
type producer struct {
	client  *kgo.Client
	records []kgo.Record
	headers []kgo.RecordHeader
}

// newProducer returns a producer with the settings above.
func newProducer(brokers []string) (*producer, error) {
	const batchBytes = 1_000_012
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ManualFlushing(), kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(batchBytes), kgo.DisableClientMetrics())
	return &producer{client: client}, err
}

// produce writes messages in order, with key and payload unchanged and the id as a header. It returns once all are
// acknowledged.
func (p *producer) produce(ctx context.Context, messages []message) error {
	if len(p.records) < len(messages) {
		p.records = make([]kgo.Record, len(messages))
		p.headers = make([]kgo.RecordHeader, len(messages))
	}

	var (
		waiting sync.WaitGroup
		mu      sync.Mutex
		failed  error
	)

	waiting.Add(len(messages))
	for i := range messages {
		m := &messages[i]
		p.headers[i] = kgo.RecordHeader{Key: "id", Value: strconv.AppendInt(nil, m.id, 10)}
		p.records[i] = kgo.Record{Topic: m.topic, Key: []byte(m.key), Value: m.payload, Headers: p.headers[i : i+1 : i+1]}
		p.client.Produce(ctx, &p.records[i], func(_ *kgo.Record, err error) {
			mu.Lock()
			failed = errors.Join(failed, err)
			mu.Unlock()
			waiting.Done()
		})
	}

	if err := p.client.Flush(ctx); err != nil {
		return err // the promises may still run: the caller must close the producer
	}

	waiting.Wait()
	return failed
}
