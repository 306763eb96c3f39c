// Package variants has the ways to read an outbox that a well-known comparison of outboxes on PostgreSQL describes
// (github.com/denis-tsv/Outbox). Each is as small as possible and has the best settings that it allows: prepared
// statements, one round trip for statements that belong together, and only the index that it needs. [All] returns them;
// each has a file.
//
// They lack much that a relay needs: retries, dead letters, routes, an end without repeats. The bench compares them with
// notifyd.
package variants

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Columns are the columns that writers insert into, in every way. [Way.Before] differs.
const Columns = "outbox (topic, key, payload)"

// vacuumSoon are the settings of tables whose rows are deleted: until vacuum has removed the dead rows, each query for
// the first rows has to skip them.
const vacuumSoon = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0"

// Way is one way to read an outbox. Its statements expect the schema of the tables in the
// search_path.
type Way struct {
	Name  string // one word
	About string // one line
	// Most is how many workers can run at once; 0: any number.
	Most int
	// Tables creates the tables, empty.
	Tables string
	// Subscribe announces the topic $1 to the workers; "" if they do not need that.
	Subscribe string
	// Before is the statement that a writer executes in its transaction before it inserts; "" for none.
	Before string
	// Left is a query that is true while events wait that the workers will find.
	Left string
	// New returns a worker.
	New func(Config) Worker
}

// Config is the configuration of a worker.
type Config struct {
	// Conn is a connection that only this worker uses.
	Conn *pgx.Conn
	// Produce returns once all messages are acknowledged.
	Produce func(ctx context.Context, messages []Message) error
	// Batch is the largest number of events per step.
	Batch int
	// Lease is how long events or partitions stay with a worker that does not answer.
	Lease time.Duration
}

// Message is an event on its way to a topic.
type Message struct {
	ID         int64
	Topic, Key string
	Payload    []byte

	tx string // used only by the way that reads by transactions
}

// Worker delivers events, a batch with each step.
type Worker interface {
	// Step settles the last batch and delivers the next one. It returns how many events it has settled, and whether no
	// event waits at present.
	Step(ctx context.Context) (settled int, idle bool, err error)
}

// idleFor is how long a worker without events waits. In the comparison the writer wakes a worker in the same process. A
// short wait has the same effect with writers in other processes.
const idleFor = 10 * time.Millisecond

// Run calls Step until ctx ends, which is not an error. It calls settled with the number of events that each step has
// settled.
func Run(ctx context.Context, w Worker, settled func(n int)) error {
	idle := time.NewTicker(idleFor)
	defer idle.Stop()
	for ctx.Err() == nil {
		done, nothing, err := w.Step(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		settled(done)
		if !nothing {
			continue
		}
		idle.Reset(idleFor)
		select {
		case <-ctx.Done():
		case <-idle.C:
		}
	}
	return nil
}

// All returns the ways, in the order of the comparison.
func All() []Way {
	return []Way{longTransaction(), advisoryLock(), leases(), virtualPartitions(), synchronised()}
}

// take reads the rows of a statement in a batch into messages. more returns the targets of further columns.
func take(results pgx.BatchResults, messages []Message, more func(*Message) []any) ([]Message, error) {
	rows, err := results.Query()
	if err != nil {
		return messages, err
	}
	return collect(rows, messages, more)
}

// collect reads rows of id, topic, key, payload, and the further columns of more.
func collect(rows pgx.Rows, messages []Message, more func(*Message) []any) ([]Message, error) {
	defer rows.Close()
	for rows.Next() {
		var m Message
		into := []any{&m.ID, &m.Topic, &m.Key, &m.Payload}
		if more != nil {
			into = append(into, more(&m)...)
		}
		if err := rows.Scan(into...); err != nil {
			return messages, err
		}
		messages = append(messages, m)
	}
	return messages, rows.Err()
}

// idsOf appends the ids of messages.
func idsOf(ids []int64, messages []Message) []int64 {
	ids = slices.Grow(ids, len(messages))
	for i := range messages {
		ids = append(ids, messages[i].ID)
	}
	return ids
}
