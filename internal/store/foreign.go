package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// modeSpace, changeSpace and listenSpace are 'ntfx', 'ntfm' and 'ntfs' in ASCII: the upper halves of the lock of the mode, of
// the lock of a schema change, and of the lock that shows writers a listening relay.
const (
	modeSpace   = 0x6e746678
	changeSpace = 0x6e74666d
	listenSpace = 0x6e746673
)

// LockKind is a kind of advisory lock that relays need.
type LockKind string

// These are the kinds of locks.
const (
	// LockNotify suppresses the trigger.
	LockNotify LockKind = "notify"
	// LockListen shows writers that a relay listens.
	LockListen LockKind = "listen"
	// LockLife shows that a relay is alive.
	LockLife LockKind = "life"
	// LockMode prevents a change of the table's mode.
	LockMode LockKind = "mode"
	// LockChange keeps two changes of a schema apart. Migrations name its holder themselves.
	LockChange LockKind = "change"
)

// LockKinds returns all kinds.
func LockKinds() []LockKind {
	return []LockKind{LockNotify, LockListen, LockLife, LockMode, LockChange}
}

// ForeignHolder is a session that is not a relay, and holds or waits for a lock that relays need. Every role that may
// connect can take such a lock.
type ForeignHolder struct {
	Kind LockKind
	// PID is 0 for a prepared transaction.
	PID int32
	// User, Application and Client describe the session, if the querying role may see them.
	User, Application, Client string
}

// String names the session for a log.
func (s ForeignHolder) String() string {
	if s.PID == 0 {
		return "a prepared transaction"
	}

	text := fmt.Sprintf("pid %d, user %s, application %q", s.PID, s.User, s.Application)
	if s.Client != "" {
		text += ", client " + s.Client
	}

	return text
}

// sqlForeignHolders ignores short uses of these locks: writers test the locks of the trigger, inside a statement and without
// waiting, and schema changes exclude relays. Any role can set an application_name: a relay's role also may add deliveries.
const sqlForeignHolders = `WITH held AS MATERIALIZED (SELECT pid, classid, objid, objsubid, mode, granted FROM pg_catalog.pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())),
	used AS (SELECT CASE WHEN classid = $2::bigint::oid THEN 'notify' WHEN classid = $3::bigint::oid THEN 'life'
			WHEN classid = $6::bigint::oid THEN 'listen' ELSE 'mode' END AS kind, pid, mode, granted FROM held
		WHERE objsubid = 1 AND mode = 'ExclusiveLock' AND (classid = $2::bigint::oid AND objid = to_regclass($1 || '.outbox_events')::oid
				OR classid = $4::bigint::oid AND objid = to_regclass($1 || '.outbox_mode')::oid
					AND NOT EXISTS (SELECT FROM held AS change WHERE change.pid = held.pid AND change.classid = $5::bigint::oid))
			OR objsubid = 1 AND classid = $3::bigint::oid
			OR objsubid = 2 AND classid = $6::bigint::oid AND objid = (hashtext($7)::bigint & 4294967295)::oid)
	SELECT DISTINCT used.kind, coalesce(used.pid, 0), coalesce(a.usename, ''), coalesce(a.application_name, ''),
		coalesce(host(a.client_addr), '')
	FROM used LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = used.pid
	WHERE (used.kind <> 'listen' OR used.pid IS NULL OR NOT used.granted OR a.state <> 'active')
		AND (coalesce(a.application_name, '') NOT LIKE 'notifyd/%'
		OR used.kind = 'life' AND used.mode = 'ExclusiveLock'
		OR used.kind <> 'life' AND NOT has_table_privilege(a.usesysid, to_regclass($1 || '.outbox_deliveries')::oid, 'INSERT'))
	ORDER BY 1, 2`

// ReadForeignHolders returns the sessions that are not relays and hold or wait for a lock that the relays of a schema
// need, by kind and pid. The lock of life does not depend on the schema.
func ReadForeignHolders(ctx context.Context, conn outboxsql.DB, schema string) ([]ForeignHolder, error) {
	rows, err := conn.Query(ctx, sqlForeignHolders, pgx.Identifier{schema}.Sanitize(),
		int64(notifySpace), int64(ownerSpace), int64(modeSpace), int64(changeSpace), int64(listenSpace), pgschema.Channel(schema))
	if err != nil {
		return nil, fmt.Errorf("find foreign holders of the locks of relays: %w", err)
	}

	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ForeignHolder])
	if err != nil {
		return nil, fmt.Errorf("find foreign holders of the locks of relays: %w", err)
	}

	return all, nil
}

// ForeignLockError reports that a session that is not a relay holds a lock that the relay needs.
type ForeignLockError struct {
	// Who has the sessions, none if they could not be found.
	Who []ForeignHolder
}

// Error names the sessions and the cure.
func (e *ForeignLockError) Error() string {
	who := "a session"
	for i, s := range e.Who {
		if i > 0 {
			who += "; " + s.String()
			continue
		}
		who = s.String()
	}

	return who + " has the lock and is not a relay: notifyd doctor names the cure"
}

// foreign returns a ForeignLockError with the holders of a lock of the kind.
func foreign(ctx context.Context, conn outboxsql.DB, schema string, kind LockKind) error {
	all, err := ReadForeignHolders(ctx, conn, schema)
	if err != nil {
		return err
	}

	e := &ForeignLockError{}
	for _, s := range all {
		if s.Kind == kind {
			e.Who = append(e.Who, s)
		}
	}

	return e
}
