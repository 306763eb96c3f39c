package variants

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// subscribe creates a virtual partition of a topic.
const subscribe = `INSERT INTO outbox_offsets (topic, partition) VALUES ($1, 0)`

// partitionWorker serves the two ways with a position per virtual partition. It leases a partition by a time in its row,
// reads after its position, produces, and moves the position.
type partitionWorker struct {
	Config
	release string // moves the position: topic, partition, transaction, id
	claim   string // returns topic, partition, transaction, id
	read    string // topic, partition, transaction, id, limit

	at       position
	held     bool      // at is claimed
	messages []Message // produced; the position is still to move past them
}

// position is the last delivered event of a virtual partition.
type position struct {
	topic     string
	partition int
	tx        string // of the last event; "0" if the way does not use it
	id        int64
}

// Step implements Worker. Moving a position and claiming the next partition share one round trip and one commit. The read
// is a separate round trip: it must have a snapshot taken after the claim.
func (w *partitionWorker) Step(ctx context.Context) (settled int, idle bool, err error) {
	settled = len(w.messages)
	if err := w.next(ctx); err != nil || !w.held {
		return settled, true, err
	}
	rows, err := w.Conn.Query(ctx, w.read, w.at.topic, w.at.partition, w.at.tx, w.at.id, w.Batch)
	if err != nil {
		return 0, false, err
	}
	if w.messages, err = collect(rows, w.messages, func(m *Message) []any { return []any{&m.tx} }); err != nil {
		return 0, false, err
	}
	if len(w.messages) == 0 {
		return settled, false, nil // another partition may have events
	}
	last := &w.messages[len(w.messages)-1]
	w.at.tx, w.at.id = last.tx, last.ID
	return settled, false, w.Produce(ctx, w.messages)
}

// next moves the position of the leased partition, and claims the partition that has waited longest.
func (w *partitionWorker) next(ctx context.Context) (err error) {
	var flight pgx.Batch
	if w.held {
		flight.Queue(w.release, w.at.topic, w.at.partition, w.at.tx, w.at.id, w.pause())
	}
	flight.Queue(w.claim, w.Lease)
	results := w.Conn.SendBatch(ctx, &flight)
	defer func() { err = errors.Join(err, results.Close()) }()
	if w.held {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	w.messages = w.messages[:0]
	err = results.QueryRow().Scan(&w.at.topic, &w.at.partition, &w.at.tx, &w.at.id)
	w.held = err == nil
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// pause returns how long no worker claims the partition: after an empty read, other partitions come first.
func (w *partitionWorker) pause() time.Duration {
	if len(w.messages) == 0 {
		return idleFor
	}
	return 0
}
