package variants

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// subscribe makes a virtual partition of a topic.
const subscribe = `INSERT INTO outbox_offsets (topic, partition) VALUES ($1, 0)`

// partitionWorker serves the two ways with a position for each virtual partition. It takes
// a partition for a while by a time in its row, reads behind its position, produces, and
// moves the position.
type partitionWorker struct {
	Config
	release string // moves the position: topic, partition, transaction, id
	claim   string // returns topic, partition, transaction, id
	read    string // topic, partition, transaction, id, limit

	at       position
	held     bool      // at is claimed
	messages []Message // produced, and to be passed
}

// position is how far a virtual partition was delivered.
type position struct {
	topic     string
	partition int
	tx        string // of the last event, "0" where it does not matter
	id        int64
}

// Step implements Worker. Moving a position and claiming the next partition are one flight
// and one commit. The read is another: it must have a snapshot of its own, after the claim.
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
		return settled, false, nil // another partition may have some
	}
	last := &w.messages[len(w.messages)-1]
	w.at.tx, w.at.id = last.tx, last.ID
	return settled, false, w.Produce(ctx, w.messages)
}

// next moves the position of the partition that is held, and claims the one that has
// waited longest.
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

// pause is how long a partition is left alone: where nothing was to be read, others come
// first.
func (w *partitionWorker) pause() time.Duration {
	if len(w.messages) == 0 {
		return idleFor
	}
	return 0
}
