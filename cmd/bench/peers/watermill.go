package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watersql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// waterConns is more than one subscriber uses.
	waterConns = 4
	// waterTarget is the target topic of forwarded messages.
	waterTarget = "bench_target"
)

// waterSettings are the settings that differ between the variants of Watermill.
type waterSettings struct {
	// queue selects PostgreSQLQueueSchema, which deletes acknowledged rows, in place of DefaultPostgreSQLSchema, which
	// keeps an offset.
	queue bool
	// forward adds the Forwarder component after the subscriber, with a publisher that counts.
	forward bool
	// batch is SubscribeBatchSize: 100 by default.
	batch int
	// poll is PollInterval, 1 s by default. Watermill has no notification.
	poll   time.Duration
	commit commit
}

func (s waterSettings) String() string {
	schema := "default schema"
	if s.queue {
		schema = "queue schema, delete on ack"
	}
	if s.forward {
		schema += ", forwarder"
	}
	return fmt.Sprintf("%s, batch %d, poll %v, %s", schema, s.batch, s.poll, s.commit)
}

// topic returns the topic, which is also a part of the table's name. A forwarder reads envelopes, so it has a separate
// topic.
func (s waterSettings) topic() string {
	switch {
	case s.queue:
		return "bench_queue"
	case s.forward:
		return "bench_forwarder"
	default:
		return "bench_log"
	}
}

// openWatermill creates Watermill's tables. The page "SQL Pub/Sub" of its documentation and the comments of
// SubscriberConfig name the settings. More subscribers do not help: subscribers of one consumer group wait for each
// other, or restart after "could not serialize access".
func openWatermill(ctx context.Context, _ *comparison, db database) ([]*variant, error) {
	var all []*variant
	for _, v := range []struct {
		measures
		waterSettings
	}{
		{drains | latencies, waterSettings{batch: 100, poll: time.Second}}, // all defaults
		{drains | latencies | inserts, waterSettings{batch: 1000, poll: 10 * time.Millisecond, commit: commitOff}},
		{latencies, waterSettings{batch: 1000, poll: time.Millisecond, commit: commitOff}},
		{drains, waterSettings{batch: 5000, poll: 10 * time.Millisecond, commit: commitOff}},
		{drains | latencies | inserts, waterSettings{queue: true, batch: 1000, poll: 10 * time.Millisecond, commit: commitOff}},
		{latencies, waterSettings{queue: true, batch: 1000, poll: time.Millisecond, commit: commitOff}},
		{drains, waterSettings{queue: true, batch: 5000, poll: 10 * time.Millisecond, commit: commitOff}},
		{drains | latencies | inserts, waterSettings{forward: true, batch: 1000, poll: 10 * time.Millisecond, commit: commitOff}},
	} {
		p := &waterPeer{waterSettings: v.waterSettings, db: db}
		if err := p.migrate(ctx); err != nil {
			return nil, err
		}
		all = append(all, &variant{name: "Watermill", settings: v.String(), measures: v.measures, peer: p})
	}
	return all, nil
}

// waterPeer is Watermill's SQL Pub/Sub.
type waterPeer struct {
	waterSettings
	db database
}

func (p *waterPeer) schema() watersql.SchemaAdapter {
	if p.queue {
		return watersql.PostgreSQLQueueSchema{SubscribeBatchSize: p.batch}
	}
	return watersql.DefaultPostgreSQLSchema{SubscribeBatchSize: p.batch}
}

func (p *waterPeer) offsets() watersql.OffsetsAdapter {
	if p.queue {
		return watersql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true}
	}
	return watersql.DefaultPostgreSQLOffsetsAdapter{}
}

func (p *waterPeer) subscriber(pool *pgxpool.Pool) (*watersql.Subscriber, error) {
	return watersql.NewSubscriber(watersql.BeginnerFromPgx(pool), watersql.SubscriberConfig{
		PollInterval: p.poll, SchemaAdapter: p.schema(), OffsetsAdapter: p.offsets(),
	}, watermill.NopLogger{})
}

// migrate creates the tables, as a subscriber with InitializeSchema does. The offset exists after the first subscription,
// so that the table can be checked.
func (p *waterPeer) migrate(ctx context.Context) error {
	s, err := p.subscriber(p.db.pool)
	if err != nil {
		return err
	}
	if err := s.SubscribeInitialize(p.topic()); err != nil {
		return errors.Join(err, s.Close())
	}
	_, err = s.Subscribe(ctx, p.topic())
	return errors.Join(err, s.Close())
}

func (p *waterPeer) tables() tables {
	messages := pgx.Identifier{"watermill_" + p.topic()}.Sanitize()
	if p.queue {
		return tables{names: []string{messages}, left: "SELECT EXISTS (SELECT FROM " + messages + " WHERE NOT acked)"}
	}
	offset := "(SELECT last_processed_transaction_id AS xid, offset_acked FROM " + pgx.Identifier{"watermill_offsets_" + p.topic()}.Sanitize() + ") o"
	return tables{
		names: []string{messages},
		left:  "SELECT EXISTS (SELECT FROM " + messages + ` m, ` + offset + ` WHERE (m.transaction_id, m."offset") > (o.xid, o.offset_acked))`,
		done:  "SELECT count(*) FROM " + messages + ` m, ` + offset + ` WHERE (m.transaction_id, m."offset") <= (o.xid, o.offset_acked)`,
	}
}

func (p *waterPeer) preload(ctx context.Context, n int) error {
	return inBatches(n, func(from, to int) error {
		return pgx.BeginFunc(ctx, p.db.pool, func(tx pgx.Tx) error { return p.publish(ctx, tx, from, to) })
	})
}

func (p *waterPeer) insert(ctx context.Context, tx pgx.Tx, seq int) error {
	return p.publish(ctx, tx, seq, seq+1)
}

// publish creates a publisher for the transaction, as the documentation describes.
func (p *waterPeer) publish(ctx context.Context, tx pgx.Tx, from, to int) error {
	var publisher message.Publisher
	publisher, err := watersql.NewPublisher(watersql.TxFromPgx(tx), watersql.PublisherConfig{SchemaAdapter: p.schema()}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	topic := p.topic()
	if p.forward {
		publisher = forwarder.NewPublisher(publisher, forwarder.PublisherConfig{ForwarderTopic: topic})
		topic = waterTarget
	}
	messages := make([]*message.Message, 0, to-from)
	for seq := from; seq < to; seq++ {
		m := message.NewMessage(watermill.NewUUID(), []byte(newEvent(seq).json()))
		m.SetContext(ctx)
		messages = append(messages, m)
	}
	return publisher.Publish(topic, messages...)
}

func (p *waterPeer) launch(_ context.Context, c calls) (worker, error) {
	return &waterWorker{peer: p, calls: c}, nil
}

// waterWorker is Watermill in this process.
type waterWorker struct {
	peer  *waterPeer
	calls calls
	pool  *pgxpool.Pool
	ends  []func() error // in order
}

func (w *waterWorker) start(ctx context.Context) (err error) {
	w.pool, err = w.peer.db.ownPool(ctx, waterConns, w.peer.commit)
	if err != nil {
		return err
	}
	s, err := w.peer.subscriber(w.pool)
	if err != nil {
		return err
	}

	ctx = context.WithoutCancel(ctx)
	if w.peer.forward {
		return w.forward(ctx, s)
	}

	messages, err := s.Subscribe(ctx, w.peer.topic())
	if err != nil {
		return errors.Join(err, s.Close())
	}

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for m := range messages {
			if err := w.handle(m.Payload); err != nil {
				w.calls.failed(err)
				return
			}
			m.Ack()
		}
	}()
	w.ends = append(w.ends, s.Close, func() error { <-ended; return nil })
	return nil
}

// forward starts the Forwarder component, and returns once it runs.
func (w *waterWorker) forward(ctx context.Context, s *watersql.Subscriber) error {
	f, err := forwarder.NewForwarder(s, waterPublisher{w.handle}, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: w.peer.topic()})
	if err != nil {
		return errors.Join(err, s.Close())
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	w.ends = append(w.ends, f.Close, func() error { return <-ended }, s.Close)
	select {
	case <-f.Running():
		return nil
	case err := <-ended:
		ended <- err
		return fmt.Errorf("the forwarder ended early: %w", err)
	}
}

func (w *waterWorker) handle(payload []byte) error {
	var e event
	if err := json.Unmarshal(payload, &e); err != nil {
		return err
	}
	w.calls.handled(e.Seq, time.Time{})
	return nil
}

func (w *waterWorker) stop() (err error) {
	for _, end := range w.ends {
		err = errors.Join(err, end())
	}
	if w.pool != nil {
		w.pool.Close()
	}
	return err
}

// waterPublisher is the forwarder's publisher: it calls the handler.
type waterPublisher struct {
	handle func(payload []byte) error
}

// Publish calls the handler for each message.
func (p waterPublisher) Publish(_ string, messages ...*message.Message) error {
	for _, m := range messages {
		if err := p.handle(m.Payload); err != nil {
			return err
		}
	}
	return nil
}

// Close has nothing to close.
func (waterPublisher) Close() error { return nil }
