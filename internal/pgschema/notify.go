package pgschema

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// MayNotify is a condition in SQL: the notification queue of the server, which all of its databases share, is less than
// half full. When the queue is full, PostgreSQL refuses the COMMIT of every transaction that notifies, so the trigger
// and the relays stop notifying at half. The function also moves the tail of the queue. PostgreSQL itself moves the tail
// only after a NOTIFY, so the queue would stay full after the end of the session that held it.
const MayNotify = `pg_catalog.pg_notification_queue_usage() < 0.5`

// ErrNotifyQueue is the reason why nothing is notified.
var ErrNotifyQueue = errors.New("the notification queue of the server is more than half full, so that notifyd does not notify; " +
	"once it is full, PostgreSQL refuses every commit that notifies: " +
	"end the session that listens inside a transaction, which notifyd doctor names")

// These are the notifications that carry a word in place of the id of an event. A relay that does not know a word reads
// everything.
const (
	WordPolling    = "polling"    // a relay suppresses the trigger
	WordShards     = "shards"     // a relay came or went, or released a shard
	WordDeliveries = "deliveries" // stored deliveries were changed, for example by a replay of dead letters
)

// Execer is what runs a statement: a connection, a pool, or a transaction.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Notify sends a notification, or returns [ErrNotifyQueue]. Notifications are hints: most senders ignore that.
func Notify(ctx context.Context, db Execer, channel, payload string) error {
	tag, err := db.Exec(ctx, `SELECT pg_notify($1, $2) WHERE `+MayNotify, channel, payload)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrNotifyQueue
	}
	return err
}
