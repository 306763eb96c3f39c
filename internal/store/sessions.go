package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// notifySpace is 'ntfr' in ASCII: the upper half of the advisory lock by which a polling relay suppresses the trigger.
// The lower half is the oid of the table.
const notifySpace = 0x6e746672

// RelaySession is the session by which a relay proves that it is alive. Fields that the querying
// role may not see are zero.
type RelaySession struct {
	// Owner is the relay's number, as in its leases.
	Owner int64 `json:"owner"`
	PID   int32 `json:"pid"`
	// Application, User and Client describe the session; Client is empty for a Unix socket.
	Application string     `json:"application_name"`
	User        string     `json:"user"`
	Client      string     `json:"client_addr,omitempty"`
	Since       *time.Time `json:"since,omitempty"`
	// Program describes the relay's process; nil if unknown.
	Program *Program `db:"-" json:"program,omitempty"`
}

// NotifyState describes whether the trigger notifies.
type NotifyState struct {
	// Mode is the mode that migrate has installed; off also if the trigger is disabled.
	Mode outboxsql.NotifyMode `json:"mode"`
	// SuppressedBy is the session that suppresses the trigger; nil if the trigger notifies.
	SuppressedBy *RelaySession `json:"suppressed_by,omitempty"`
}

const sqlLockHolders = `SELECT l.classid::bigint << 32 | l.objid::bigint, l.pid, coalesce(a.application_name, ''), coalesce(a.usename, ''),
		coalesce(host(a.client_addr), ''), a.backend_start
	FROM pg_catalog.pg_locks AS l LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
	WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
		AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())`

// ReadRelays returns the live relays, the oldest session first. Their locks do not depend on the schema: the result
// has relays of all schemas of the database. Each relay is listed once, with its latest session, because a pooler may
// hold earlier ones.
func ReadRelays(ctx context.Context, conn outboxsql.DB) ([]RelaySession, error) {
	rows, err := conn.Query(ctx, sqlLockHolders+` AND l.classid = $1::bigint::oid AND l.mode = 'ShareLock'
		ORDER BY a.backend_start, l.pid`, int64(ownerSpace))
	if err != nil {
		return nil, fmt.Errorf("list relays: %w", err)
	}

	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[RelaySession])
	if err != nil {
		return nil, fmt.Errorf("list relays: %w", err)
	}

	latest := make(map[int64]int, len(all))
	for i, r := range all {
		latest[r.Owner] = i
	}

	relays := all[:0]
	for i, r := range all {
		if latest[r.Owner] == i {
			relays = append(relays, r)
		}
	}

	return relays, nil
}

// ReadNotifyState returns the notify mode and the session that suppresses the trigger. Without the tables, the mode is off.
func ReadNotifyState(ctx context.Context, conn outboxsql.DB, schema string) (NotifyState, error) {
	state, err := outboxsql.ReadState(ctx, conn, schema)
	if err != nil {
		return NotifyState{}, err
	}

	notify := NotifyState{Mode: state.Notify}
	rows, err := conn.Query(ctx, sqlLockHolders+` AND l.mode = 'ExclusiveLock'
		AND l.classid = $1::bigint::oid AND l.objid = to_regclass($2)::oid`,
		int64(notifySpace), pgx.Identifier{schema, "outbox_events"}.Sanitize())
	if err != nil {
		return notify, fmt.Errorf("find the session that suppresses the trigger: %w", err)
	}

	holder, err := pgx.CollectOneRow(rows, pgx.RowToStructByPos[RelaySession])
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return notify, fmt.Errorf("find the session that suppresses the trigger: %w", err)
	}

	if err == nil {
		holder.Owner = 0 // the key is the table's, not a relay's
		notify.SuppressedBy = &holder
	}

	return notify, nil
}

// ReadMembers returns the member relays of a stream, the oldest session first.
func ReadMembers(ctx context.Context, conn outboxsql.DB, schema string) ([]RelaySession, error) {
	rows, err := conn.Query(ctx, `SELECT m.owner, m.pid, coalesce(a.application_name, ''), coalesce(a.usename, ''),
		coalesce(host(a.client_addr), ''), a.backend_start
		FROM `+pgx.Identifier{schema, "outbox_members"}.Sanitize()+` AS m LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = m.pid
		WHERE m.alive_until > clock_timestamp() ORDER BY a.backend_start, m.pid`)
	if err != nil {
		return nil, fmt.Errorf("list relays: %w", err)
	}

	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[RelaySession])
	if err != nil {
		return nil, fmt.Errorf("list relays: %w", err)
	}

	return all, nil
}
