package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
)

const (
	// minVersion is the oldest PostgreSQL that notifyd works with, as tests show.
	minVersion = 14
	// supportedVersion is the oldest PostgreSQL that gets fixes itself, and that notifyd promises to work with.
	supportedVersion = 15
)

const upgradeServer = "upgrade PostgreSQL, then notifyd adopt if a relay finds itself on a copy: docs/upgrades.md"

const encodingCure = "pg_dump the database, createdb -E UTF8 -T template0, and restore it there"

func checkServer(ctx context.Context, e *exam) (string, []Finding, error) {
	type server struct {
		Version, Database, Role, Fsync, Encoding string
		Number                                   int
		Standby                                  bool
	}

	s, err := row[server](ctx, e.conn, `SELECT current_setting('server_version'), current_database()::text, current_user::text,
		current_setting('fsync'), current_setting('server_encoding'), current_setting('server_version_num')::int, pg_is_in_recovery()`)
	if err != nil {
		return "", nil, err
	}

	var findings []Finding
	switch major := s.Number / 10000; {
	case major < minVersion:
		findings = append(findings, found(Error, upgradeServer, "PostgreSQL %s is too old: notifyd works with %d and later.",
			s.Version, supportedVersion))
	case major < supportedVersion:
		findings = append(findings, found(Warning, upgradeServer, "PostgreSQL %s gets no fixes any more: notifyd "+
			"promises to work with %d and later.", s.Version, supportedVersion))
	}

	if s.Standby {
		findings = append(findings, found(Error, "point database.url at the primary, or add "+
			"target_session_attrs=read-write with all hosts", "The server is a standby: nothing can be delivered from it."))
	}

	if s.Fsync == "off" {
		findings = append(findings, found(Warning, "ALTER SYSTEM SET fsync = on, then SELECT pg_reload_conf()",
			"fsync is off: a crash of the machine loses committed events, or the database."))
	}

	if s.Encoding == "SQL_ASCII" {
		findings = append(findings, found(Warning, encodingCure, "%s", pgschema.NoEncoding))
	} else if s.Encoding != "UTF8" {
		findings = append(findings, found(Note, encodingCure, "The database has the encoding %s: an event can have "+
			"its characters only.", s.Encoding))
	}

	number, _, _ := strings.Cut(s.Version, " ")
	return fmt.Sprintf("PostgreSQL %s, database %s, role %s.", number, s.Database, s.Role), findings, nil
}

// checkRights looks for privileges that a relay needs and the role lacks. It
// compares with the grants of migrate, so that no table is forgotten.
func checkRights(ctx context.Context, e *exam) (string, []Finding, error) {
	var tables, privileges, columns []string // an empty column stands for the whole table
	for _, p := range pgschema.RelayPrivileges() {
		confined := p.Columns
		if confined == nil {
			confined = []string{""}
		}
		for _, c := range confined {
			tables = append(tables, e.table(p.Table))
			privileges = append(privileges, p.Kind)
			columns = append(columns, c)
		}
	}

	type missing struct{ Table, Privileges string }
	// The check of the schema reports missing tables and columns.
	lacks, err := rows[missing](ctx, e.conn, `SELECT name, string_agg(privilege || columns, ', ' ORDER BY privilege) FROM (
			SELECT name, privilege, coalesce(' (' || string_agg(nullif("column", ''), ', ' ORDER BY "column") || ')', '') AS columns
			FROM unnest($1::text[], $2::text[], $3::text[]) AS n(name, privilege, "column")
			WHERE to_regclass(name) IS NOT NULL AND NOT CASE
				WHEN "column" = '' THEN has_table_privilege(to_regclass(name), privilege)
				WHEN EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(name) AND attname = "column")
					THEN has_column_privilege(to_regclass(name), "column", privilege)
				ELSE true END
			GROUP BY name, privilege) AS lacking
		GROUP BY name ORDER BY name`, tables, privileges, columns)
	if err != nil {
		return "", nil, err
	}

	type facts struct {
		Role   string
		Usage  bool
		Hidden bool
	}
	f, err := row[facts](ctx, e.conn, `SELECT quote_ident(current_user), has_schema_privilege($1, 'USAGE'),
		EXISTS (SELECT FROM unnest($2::text[]) AS n(name) WHERE row_security_active(to_regclass(name)))`, e.Schema, tables)
	if err != nil {
		return "", nil, err
	}

	var findings []Finding
	if !f.Usage {
		grant := fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", pgx.Identifier{e.Schema}.Sanitize(), f.Role)
		findings = append(findings, found(Error, grant, "The role %s may not use the schema %s.", f.Role, e.Schema))
	}

	for _, l := range lacks {
		findings = append(findings, found(Error, fmt.Sprintf("GRANT %s ON %s TO %s", l.Privileges, l.Table, f.Role),
			"The role %s lacks %s on %s, which a relay needs.", f.Role, l.Privileges, l.Table))
	}

	if f.Hidden {
		findings = append(findings, found(Error, "ALTER ROLE "+f.Role+" BYPASSRLS, or disable row level security for the tables of notifyd",
			"Row level security hides rows of the tables from the role %s: PostgreSQL refuses the statements of its "+
				"relays and commands, whatever the policies show.", f.Role))
	}

	return "The role " + f.Role + " may do all that a relay needs.", findings, nil
}

// setting is a setting of the server, in effect for a new session of the role.
type setting struct{ Name, Value, Source string }

// checkSettings looks for settings that make writers fail or lose events. Relays
// set their own for their sessions.
func checkSettings(ctx context.Context, e *exam) (string, []Finding, error) {
	names := []string{
		"default_transaction_read_only", "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout",
		"transaction_timeout", "synchronous_commit",
	}
	all, err := rows[setting](ctx, e.conn, `SELECT name, setting, source FROM pg_settings WHERE name = ANY($1)`, names)
	if err != nil {
		return "", nil, err
	}

	slices.SortFunc(all, func(a, b setting) int { return slices.Index(names, a.Name) - slices.Index(names, b.Name) })

	var findings []Finding
	var facts []string
	for _, s := range all {
		facts = append(facts, s.Name+" "+s.Value)
		if f, ok := checkSetting(s); ok {
			findings = append(findings, f)
		}
	}

	return "Settings are fit: " + strings.Join(facts, ", ") + ".", findings, nil
}

const (
	// shortTimeout is a time that migrations and purges easily exceed.
	shortTimeout = time.Second
	// claimTime bounds the transaction of a claim: the longest lock budget, and the
	// settlement.
	claimTime = 5 * time.Second
)

func checkSetting(s setting) (Finding, bool) {
	ms, _ := strconv.Atoi(s.Value) // 0 for settings without a number
	limit := time.Duration(ms) * time.Millisecond
	reset := fmt.Sprintf("reset %s, which comes from the %s", s.Name, s.Source)
	endsWriters := slices.Contains([]string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"}, s.Name)

	switch {
	case s.Name == "default_transaction_read_only" && s.Value == "on":
		return found(Error, reset, "default_transaction_read_only is on: applications cannot write events (relays set "+
			"it off for themselves)."), true
	case s.Name == "synchronous_commit" && s.Value == "off":
		return found(Note, reset, "synchronous_commit is off for writers, too: a crash of the server loses the events "+
			"that were committed just before."), true
	case s.Name == "transaction_timeout" && limit > 0 && limit < claimTime:
		return found(Warning, reset, "transaction_timeout is %v: it ends claims of relays, which may take up to %v.",
			limit, claimTime), true
	case endsWriters && limit > 0 && limit < shortTimeout:
		return found(Note, reset, "%s is %v: notifyd migrate, and applications that write events, may run into it "+
			"(relays set their own).", s.Name, limit), true
	}
	return Finding{}, false
}

// defaultConnections is the number that a relay of a stream opens with the
// defaults, and one more for queries. A relay of a queue opens two fewer.
const defaultConnections = 10

// checkConnections checks whether one more relay could connect.
func checkConnections(ctx context.Context, e *exam) (string, []Finding, error) {
	type room struct {
		Name        string
		Limit, Used int
	}

	all, err := rows[room](ctx, e.conn, `WITH used AS (SELECT usename, datname FROM pg_stat_activity WHERE backend_type = 'client backend')
		SELECT 'max_connections', current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
			- coalesce(current_setting('reserved_connections', true), '0')::int, (SELECT count(*)::int FROM used)
		UNION ALL SELECT 'the connection limit of the role ' || rolname, rolconnlimit,
				(SELECT count(*)::int FROM used WHERE usename = rolname)
			FROM pg_roles WHERE rolname = current_user AND rolconnlimit >= 0
		UNION ALL SELECT 'the connection limit of the database ' || datname, datconnlimit,
				(SELECT count(*)::int FROM used WHERE used.datname = d.datname)
			FROM pg_database d WHERE datname = current_database() AND datconnlimit >= 0`)
	if err != nil {
		return "", nil, err
	}

	need := e.Connections
	if need == 0 {
		need = defaultConnections
	}

	var findings []Finding
	var facts []string
	for _, r := range all {
		facts = append(facts, fmt.Sprintf("%d of %d for %s", r.Limit-r.Used, r.Limit, r.Name))
		if r.Limit-r.Used < need {
			findings = append(findings, found(Warning, "raise "+r.Name+", or lower relay.connections",
				"%s leaves %d of %d, and one relay opens %d.", capital(r.Name), max(0, r.Limit-r.Used), r.Limit, need))
		}
	}

	return "Connections are left: " + strings.Join(facts, ", ") + ".", findings, nil
}

func capital(s string) string {
	if rest, ok := strings.CutPrefix(s, "the "); ok {
		return "The " + rest
	}
	return s
}

// checkClock compares the clocks. Relays use the clock of the database;
// signatures and the dates of mails, that of their machine.
func checkClock(ctx context.Context, e *exam) (string, []Finding, error) {
	before := e.Now()
	var there time.Time
	if err := e.conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&there); err != nil {
		return "", nil, err
	}

	after := e.Now()
	half := after.Sub(before) / 2
	skew := there.Sub(before.Add(half))
	ahead, err := writtenAhead(ctx, e)
	if err != nil {
		return "", nil, err
	}

	if ahead != nil {
		return "", []Finding{found(Warning, "keep the server's clock by NTP, which slows it down in place of setting it back",
			"Event %d was written %v from now: the clock of the database's server was set back, or the writer chose "+
				"created_at. Such events expire, and are purged, later.", ahead.ID, ahead.In.Round(time.Second))}, nil
	}

	if skew.Abs() <= e.Limits.Skew+half {
		return "The clocks of the database and of this machine agree.", nil, nil
	}

	behind := "behind"
	if skew < 0 {
		behind = "ahead of"
	}

	return "", []Finding{found(Warning, "synchronize both machines by NTP",
		"The clock of this machine is %v %s that of the database: signatures of webhooks and dates of mails are off "+
			"by as much. Deliveries follow the clock of the database alone.", skew.Abs().Round(time.Millisecond), behind)}, nil
}

// future is an event that was written later than now.
type future struct {
	ID int64
	In time.Duration
}

// writtenAhead returns the newest event if it was written in the future, as after a step back of the server's clock; nil otherwise.
func writtenAhead(ctx context.Context, e *exam) (*future, error) {
	if all, err := e.hasTables(ctx); err != nil || !all {
		return nil, err
	}
	newest, err := rows[future](ctx, e.conn, `SELECT id, created_at - clock_timestamp() FROM (
			SELECT id, created_at FROM `+e.table("outbox_events")+` ORDER BY id DESC LIMIT 1) AS newest
		WHERE created_at > clock_timestamp() + make_interval(secs => $1)`, e.Limits.Skew.Seconds())
	if err != nil || len(newest) == 0 {
		return nil, err
	}
	return &newest[0], nil
}
