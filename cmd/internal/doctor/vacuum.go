package doctor

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	outboxsql "github.com/notifyd/notifyd/sql"

	"github.com/notifyd/notifyd/internal/cli"
)

// checkAutovacuum checks whether the tables are vacuumed automatically.
func checkAutovacuum(ctx context.Context, e *exam) (string, []Finding, error) {
	var on, counts, nap string
	err := e.conn.QueryRow(ctx, `SELECT current_setting('autovacuum'), current_setting('track_counts'),
		current_setting('autovacuum_naptime')`).Scan(&on, &counts, &nap)
	if err != nil {
		return "", nil, err
	}

	var findings []Finding
	for name, value := range map[string]string{"autovacuum": on, "track_counts": counts} {
		if value == "off" {
			findings = append(findings, found(Error, fmt.Sprintf("ALTER SYSTEM SET %s = on, then SELECT pg_reload_conf()", name),
				"%s is off: every update leaves a dead row, and every query of the tables becomes slower.", name))
		}
	}

	off, err := rows[struct{ Table string }](ctx, e.conn, `SELECT c.relname::text FROM pg_class c
		WHERE (c.oid IN (to_regclass($1), to_regclass($2), to_regclass($3))
				OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1)))
			AND c.reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off', 'autovacuum_enabled=0',
				'autovacuum_enabled=no'] ORDER BY 1`,
		e.table("outbox_events"), e.table("outbox_deliveries"), e.table("outbox_positions"))
	if err != nil {
		return "", nil, err
	}

	for _, t := range off {
		findings = append(findings, e.vacuumOff(t.Table))
	}

	// Without tables where autovacuum is off, which are reported already.
	unset, err := rows[struct{ Table string }](ctx, e.conn, `SELECT c.relname::text FROM pg_class c
		WHERE (c.oid IN (to_regclass($1), to_regclass($2))
				OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1))) AND c.relkind = 'r'
		AND NOT EXISTS (SELECT FROM unnest(c.reloptions) AS o WHERE o LIKE 'autovacuum\_%') ORDER BY 1`,
		e.table("outbox_events"), e.table("outbox_deliveries"))
	if err != nil {
		return "", nil, err
	}

	for _, t := range unset {
		if e.neverUpdated(t.Table) {
			continue // the server's settings suffice: there is nothing to clean up
		}

		findings = append(findings, found(Note, "notifyd migrate",
			"%s has the server's settings for autovacuum, which suit tables with fewer writes.", t.Table))
	}

	return fmt.Sprintf("Autovacuum is on and runs every %s.", nap), findings, nil
}

// neverUpdated reports whether the rows of a table are written once, as the
// events of a stream are.
func (e *exam) neverUpdated(table string) bool {
	return e.mode == outboxsql.ModeStream && strings.HasPrefix(table, "outbox_events")
}

func (e *exam) vacuumOff(table string) Finding {
	cure := fmt.Sprintf("ALTER TABLE %s RESET (autovacuum_enabled)", e.table(table))
	if e.neverUpdated(table) {
		return found(Note, cure, "Autovacuum is off for %s: the table has no dead rows, but is frozen late and all at "+
			"once, and a plain table keeps its purged rows.", table)
	}

	return found(Warning, cure, "Autovacuum is off for %s: its dead rows pile up.", table)
}

// checkDeadRows checks whether vacuum keeps up.
func checkDeadRows(ctx context.Context, e *exam) (string, []Finding, error) {
	type state struct {
		Table      string
		Live, Dead int64
		Last       *time.Time
	}

	all, err := rows[state](ctx, e.conn, `SELECT relname::text, n_live_tup, n_dead_tup, greatest(last_vacuum, last_autovacuum)
		FROM pg_stat_user_tables WHERE relid IN (to_regclass($1), to_regclass($2), to_regclass($3))
			OR relid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1))
		ORDER BY relname DESC`,
		e.table("outbox_events"), e.table("outbox_deliveries"), e.table("outbox_positions"))
	if err != nil {
		return "", nil, err
	}

	var findings []Finding
	var facts []string
	for _, s := range all {
		facts = append(facts, fmt.Sprintf("%s %d live and %d dead", s.Table, s.Live, s.Dead))

		if s.Dead > e.Limits.DeadRows && s.Dead > s.Live/2 {
			last := "never"
			if s.Last != nil {
				last = cli.Moment(*s.Last)
			}
			findings = append(findings, found(Warning, fmt.Sprintf("end the transactions that hold back vacuum, if a "+
				"finding names any, then VACUUM %s", e.table(s.Table)),
				"%s has %d dead rows and %d live ones; last vacuum: %s.", s.Table, s.Dead, s.Live, last))
		}
	}

	return "Rows: " + strings.Join(facts, ", ") + ".", findings, nil
}

// checkTransactions looks for sessions that hold back vacuum, which slows relays down.
func checkTransactions(ctx context.Context, e *exam) (string, []Finding, error) {
	type session struct {
		PID                            int32
		User, Application, State, Text string
		Seconds                        float64
		Began                          *time.Time
	}

	all, err := rows[session](ctx, e.conn, `SELECT pid, coalesce(usename, '')::text, application_name,
			coalesce(state, ''), coalesce(query, ''),
			extract(epoch FROM clock_timestamp() - xact_start)::float8, query_start
		FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND (datname = current_database() OR backend_xid IS NOT NULL)
			AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR state LIKE 'idle in transaction%')
			AND xact_start < clock_timestamp() - $1::bigint * interval '1 microsecond'
		ORDER BY xact_start LIMIT 10`, e.Limits.Transaction.Microseconds())
	if err != nil {
		return "", nil, err
	}

	var findings []Finding
	for _, s := range all {
		since := ""
		if s.Began != nil {
			since = " since " + cli.Moment(*s.Began)
		}

		findings = append(findings, found(Warning, fmt.Sprintf("SELECT pg_terminate_backend(%d); to prevent another, "+
			"set idle_in_transaction_session_timeout for its role", s.PID),
			"A transaction is open for %s and holds back vacuum: pid %d, user %s, application %q, %s, query%s: %s.",
			seconds(s.Seconds), s.PID, s.User, s.Application, s.State, since, shorten(s.Text)))
	}

	return fmt.Sprintf("No transaction is older than %v.", e.Limits.Transaction), findings, nil
}

// maxQuery bounds the part of a query that is shown, in characters.
const maxQuery = 80

// literal is a text in a query, also one that the server has truncated.
var literal = regexp.MustCompile(`(?s)'(?:[^']|'')*(?:'|$)|\$([A-Za-z_]*)\$.*?(?:\$[A-Za-z_]*\$|$)`)

// shorten prepares a query for a finding: it hides texts, which may be
// confidential, and truncates the rest.
func shorten(query string) string {
	query = oneLine(literal.ReplaceAllString(query, "'...'"))
	if utf8.RuneCountInString(query) > maxQuery {
		query = string([]rune(query)[:maxQuery]) + "..."
	}
	return query
}

// checkPrepared looks for forgotten prepared transactions: they outlive their
// sessions, and restarts of the server.
func checkPrepared(ctx context.Context, e *exam) (string, []Finding, error) {
	type prepared struct {
		ID, Owner, Database string
		Seconds             float64
	}

	all, err := rows[prepared](ctx, e.conn, `SELECT gid, owner::text, database::text,
			extract(epoch FROM clock_timestamp() - prepared)::float8
		FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - $1::bigint * interval '1 microsecond' ORDER BY prepared LIMIT 10`,
		e.Limits.Transaction.Microseconds())
	if err != nil {
		return "", nil, err
	}

	var findings []Finding
	for _, p := range all {
		findings = append(findings, found(Warning,
			fmt.Sprintf("in the database %s: COMMIT PREPARED or ROLLBACK PREPARED '%s'", p.Database, strings.ReplaceAll(p.ID, "'", "''")),
			"The transaction %q of %s in the database %s was prepared %v ago and not ended: it holds its locks and holds back vacuum.",
			p.ID, p.Owner, p.Database, seconds(p.Seconds)))
	}

	return "No prepared transaction is forgotten.", findings, nil
}

// checkSlots looks for replication slots without a reader.
func checkSlots(ctx context.Context, e *exam) (string, []Finding, error) {
	type slot struct {
		Name, Type string
		Bytes      int64
		HoldsRows  bool
	}

	all, err := rows[slot](ctx, e.conn, `SELECT slot_name::text, slot_type, coalesce(pg_wal_lsn_diff(
			CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END,
			restart_lsn), 0)::bigint, xmin IS NOT NULL
		FROM pg_replication_slots WHERE NOT active AND (restart_lsn IS NOT NULL OR xmin IS NOT NULL) ORDER BY slot_name LIMIT 10`)
	if err != nil {
		return "", nil, err
	}

	var findings []Finding
	for _, s := range all {
		holds := ""
		if s.HoldsRows {
			holds = ", and dead rows"
		}

		name := "'" + strings.ReplaceAll(s.Name, "'", "''") + "'"
		findings = append(findings, found(Warning, fmt.Sprintf("start its reader, or SELECT pg_drop_replication_slot(%s)", name),
			"The %s replication slot %s has no reader: the server keeps %d MiB of its log for it%s, until the disk is full.",
			s.Type, s.Name, s.Bytes>>20, holds))
	}

	return "No replication slot is abandoned.", findings, nil
}

// pendingPayload is the largest waiting payload of a type.
type pendingPayload struct {
	EventType string
	EventID   int64
	Bytes     int
}

// sqlPayloads reads the stored size, which is compressed, of the first 10,000
// fresh events, and the real size of the 20 largest of them, of the first 1,000,
// and of the deliveries that are due first.
const sqlPayloads = `WITH fresh AS (
			SELECT id, event_type, coalesce(pg_column_size(payload), pg_column_size(payload_bytes)) AS stored
			FROM outbox_events WHERE %s ORDER BY id LIMIT 10000),
		due AS (SELECT event_id FROM outbox_deliveries WHERE state = 'retry' ORDER BY destination, available_at LIMIT 1000),
		picked AS ((SELECT id FROM fresh ORDER BY stored DESC LIMIT 20)
			UNION (SELECT id FROM fresh ORDER BY id LIMIT 1000) UNION (SELECT event_id FROM due))
	SELECT DISTINCT ON (event_type) event_type, id, coalesce(octet_length(payload::text), octet_length(payload_bytes)) AS size
	FROM outbox_events WHERE id IN (SELECT id FROM picked) ORDER BY event_type, size DESC`

// Fresh events of a stream are those above the lowest position.
const (
	freshOfQueue  = `state = 'fresh'`
	freshOfStream = `id > (SELECT coalesce(min(head), (SELECT origin_head FROM outbox_mode)) FROM outbox_positions)`
)

// checkPayloads compares the waiting payloads with the limits of the destinations.
func checkPayloads(ctx context.Context, e *exam) (string, []Finding, error) {
	var all []pendingPayload
	err := pgx.BeginTxFunc(ctx, e.conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('search_path', $1, true)`, pgx.Identifier{e.Schema}.Sanitize()); err != nil {
			return err
		}

		fresh := freshOfQueue
		if e.mode == outboxsql.ModeStream {
			fresh = freshOfStream
		}

		r, err := tx.Query(ctx, fmt.Sprintf(sqlPayloads, fresh))
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(r, pgx.RowToStructByPos[pendingPayload])
		return err
	})
	if err != nil {
		return "", nil, err
	}

	largest := 0
	var findings []Finding
	for _, p := range all {
		largest = max(largest, p.Bytes)
		findings = append(findings, e.tooLarge(p)...)
	}

	return fmt.Sprintf("The largest payload that waits has %d bytes.", largest), findings, nil
}

// tooLarge finds the destinations that will refuse a payload.
func (e *exam) tooLarge(p pendingPayload) (findings []Finding) {
	if e.Route == nil {
		return nil
	}
	for _, name := range e.Route(p.EventType) {
		for _, d := range e.Destinations {
			if d.Name == name && d.MaxBytes > 0 && p.Bytes > d.MaxBytes {
				findings = append(findings, found(Warning, fmt.Sprintf("raise the limit of the destination %s if it "+
					"has a setting for it, or write less into events of type %s", name, p.EventType),
					"The event %d of type %s has %d bytes and the destination %s accepts %d: it will become a dead letter.",
					p.EventID, p.EventType, p.Bytes, name, d.MaxBytes))
			}
		}
	}
	return findings
}
