// Package doctor looks for problems that keep notifyd from working well: in the
// schema, in the server's settings, in other users of the database, and at the
// destinations. It changes nothing but its own sessions.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Severity is the weight of a finding.
type Severity string

// The severities, in ascending order.
const (
	// OK: the check found no problem.
	OK Severity = "ok"
	// Note: a fact worth knowing.
	Note Severity = "note"
	// Warning: a problem that will hurt, or hurts a little.
	Warning Severity = "warning"
	// Error: a problem that keeps events from being delivered or written.
	Error Severity = "error"
)

// Finding is one result of a check.
type Finding struct {
	// Check is the name of the check.
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Text is a sentence.
	Text string `json:"text"`
	// Cure is a command or a setting; empty for OK.
	Cure string `json:"cure,omitempty"`
}

// Report holds the findings of all checks, in their order.
type Report struct {
	Findings []Finding `json:"findings"`
}

// Count returns how many findings have this severity.
func (r Report) Count(s Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// Connect opens a connection, which the caller closes.
type Connect func(ctx context.Context) (*pgx.Conn, error)

// Options select the system to examine.
type Options struct {
	// Connect opens a connection as relays do, with none of its settings changed.
	Connect Connect
	// Listen opens the connection that listens; nil is Connect.
	Listen Connect
	// Schema holds the tables.
	Schema string
	// Connections is the number of connections that a relay opens; 0 is unknown.
	Connections int
	// Daily reports whether relays maintain partitions; nil is unknown.
	Daily *bool
	// Destinations are the destinations of the configuration.
	Destinations []Destination
	// Admin is the access to the admin server of a relay; without an address no relay is queried.
	Admin admin.Access
	// Outbox is the name of the outbox at that relay, where it has many; empty for the only one.
	Outbox string
	// Route returns the destinations of an event type; nil if they are not known.
	Route func(eventType string) []string
	// Limits are the thresholds of findings; the zero value is DefaultLimits.
	Limits Limits
	// Now is the clock of this machine; nil is time.Now.
	Now func() time.Time
}

// Limits are the thresholds of findings.
type Limits struct {
	// RoundTrip is the time that a notification may take; one that takes Canary counts as lost.
	RoundTrip, Canary time.Duration
	// Skew is the largest difference between the clocks of the database and of this machine.
	Skew time.Duration
	// Frozen is how long events may wait while a relay suppresses the trigger and
	// claims nothing, or moves no position of a stream.
	Frozen time.Duration
	// Transaction is how long another session may hold back vacuum.
	Transaction time.Duration
	// Gap is how long a transaction with ids of a stream may stay open.
	Gap time.Duration
	// DeadRows is the number of dead rows that a table may have. More are fine while
	// there are twice as many live ones.
	DeadRows int64
	// QueueUsage is the fill of the notification queue, between 0 and 1.
	QueueUsage float64
}

// DefaultLimits are far above what a healthy system has.
func DefaultLimits() Limits {
	return Limits{
		RoundTrip: time.Second, Canary: 10 * time.Second, Skew: 5 * time.Second, Frozen: 30 * time.Second,
		Transaction: 5 * time.Minute, Gap: time.Minute, DeadRows: 10_000, QueueUsage: 0.1,
	}
}

// checkTimeout bounds one check. Destinations have one of their own.
const checkTimeout = 20 * time.Second

// exam is one examination.
type exam struct {
	Options
	conn *pgx.Conn // used by one check at a time
	mode outboxsql.Mode
	// waits is the backlog at the beginning; empty where it cannot be read, which a check reports.
	waits observe.Backlog
}

// check examines one aspect. do returns a sentence for the case that all is well,
// and the findings; with findings, the sentence is not reported. An error means
// that the check itself could not run.
type check struct {
	name string
	do   func(ctx context.Context, e *exam) (well string, findings []Finding, err error)
	// noTables marks a check that does not need the tables.
	noTables bool
}

// checks are all checks that need the database, in the order of the report.
func checks() []check {
	return []check{
		{"server", checkServer, true},
		{"schema", checkSchema, true},
		{"ids", checkIDs, false},

		{"trigger", checkTrigger, false},
		{"other triggers", checkOtherTriggers, false},
		{"rules", checkRules, false},
		{"foreign keys", checkForeignKeys, false},
		{"replication role", checkReplicationRole, true},
		{"suppression", checkSuppression, false},

		{"relays", checkRelays, false},
		{"locks", checkLocks, false},
		{"pooler", checkPooler, true},
		{"notify", checkNotify, true},
		{"notification queue", checkQueue, true},

		{"rights", checkRights, false},
		{"settings", checkSettings, true},
		{"connections", checkConnections, true},
		{"clock", checkClock, true},
		{"collation", checkCollation, true},

		{"partitions", checkPartitions, false},
		{"autovacuum", checkAutovacuum, false},
		{"dead rows", checkDeadRows, false},
		{"transactions", checkTransactions, true},
		{"prepared transactions", checkPrepared, true},
		{"replication slots", checkSlots, true},

		{"payloads", checkPayloads, false},
		{"backlog", checkBacklog, false},
		{"unconfigured", checkUnconfigured, false},
		{"orphans", checkOrphans, false},
		{"calls", checkCalls, false},
	}
}

// streamChecks are the further checks of a stream.
func streamChecks() []check {
	return []check{
		{"stream", checkStream, false},
		{"shards", checkShards, false},
		{"positions", checkPositions, false},
		{"gaps", checkGaps, false},
		{"writers", checkWriters, false},
	}
}

// Run runs all checks and returns their findings. It always returns a report: a
// database that cannot be reached is a finding.
func Run(ctx context.Context, o Options) Report {
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits()
	}

	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Listen == nil {
		o.Listen = o.Connect
	}

	e := &exam{Options: o}
	var r Report

	conn, err := o.Connect(ctx)
	if err != nil {
		cure := store.ConnectCure(err)
		text := oneLine(strings.TrimSuffix(err.Error(), ": "+cure)) // commands append it
		r.add("database", Finding{Severity: Error, Text: "The database cannot be reached: " + text + ".", Cure: cure})
	} else {
		defer closeConn(ctx, conn)
		e.conn = conn
		e.database(ctx, &r)
	}

	if o.Admin.Address != "" {
		r.add("health", checkHealth(ctx, o.Admin, err != nil))
	}

	r.add("", e.checkDestinations(ctx)...)
	return r
}

// database runs the checks that need a database.
func (e *exam) database(ctx context.Context, r *Report) {
	tables, err := e.hasTables(ctx)
	if err != nil {
		r.add("database", undone(err))
		return
	}

	all := checks()
	if state, err := outboxsql.ReadState(ctx, e.conn, e.Schema); err == nil { // otherwise the check of the schema reports it
		e.mode = state.Mode
	}

	if e.mode == outboxsql.ModeStream {
		all = append(all, streamChecks()...)
	}

	all = append(all, captureChecks(ctx, e)...)
	for _, c := range all {
		if tables || c.noTables {
			r.add(c.name, e.one(ctx, c)...)
		}
	}
}

// one runs one check.
func (e *exam) one(ctx context.Context, c check) []Finding {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTimeout, fmt.Errorf("there was no answer within %v", checkTimeout))
	defer cancel()

	if e.conn.IsClosed() { // the previous check has lost it
		conn, err := e.Connect(ctx)
		if err != nil {
			return []Finding{undone(err)}
		}
		e.conn = conn
	}

	well, findings, err := c.do(ctx, e)
	if err != nil {
		return append(findings, undone(err))
	}

	if len(findings) == 0 {
		return []Finding{{Severity: OK, Text: well}}
	}
	return findings
}

// undone is the finding of a check that could not run.
func undone(err error) Finding {
	f := Finding{
		Severity: Error,
		Text:     "This could not be checked: " + oneLine(err.Error()) + ".",
		Cure:     "fix the error, and run notifyd doctor again",
	}

	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "42501" { // insufficient_privilege
		f.Severity = Warning
		f.Cure = "grant what the check rights names; if it names nothing: " +
			"run notifyd doctor as the owner of the tables, or grant the role pg_monitor"
	}

	if session.IsHidden(err) {
		f.Severity = Error
		f.Cure = session.HiddenCure
	}

	return f
}

// add adds the findings of a check to the report; an empty name keeps theirs.
func (r *Report) add(name string, findings ...Finding) {
	for _, f := range findings {
		if name != "" {
			f.Check = name
		}
		r.Findings = append(r.Findings, f)
	}
}

// hasTables reports whether the schema has the tables.
func (e *exam) hasTables(ctx context.Context) (all bool, err error) {
	err = e.conn.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL AND to_regclass($2) IS NOT NULL`,
		e.table("outbox_events"), e.table("outbox_deliveries")).Scan(&all)
	return all, err
}

// table returns the qualified name of a table in SQL.
func (e *exam) table(name string) string { return pgx.Identifier{e.Schema, name}.Sanitize() }

const closeTimeout = time.Second

// closeConn closes a connection, also after ctx has ended.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // the socket is closed in any case
}

// oneLine joins the lines of a text.
func oneLine(text string) string {
	return strings.TrimSuffix(strings.Join(strings.Fields(text), " "), ".")
}

// found creates a finding.
func found(s Severity, cure, format string, args ...any) Finding {
	return Finding{Severity: s, Text: fmt.Sprintf(format, args...), Cure: cure}
}

// rows returns the rows of a query as structs, by position.
func rows[T any](ctx context.Context, conn *pgx.Conn, sql string, args ...any) ([]T, error) {
	r, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(r, pgx.RowToStructByPos[T])
}

// row returns the one row of a query as a struct, by position.
func row[T any](ctx context.Context, conn *pgx.Conn, sql string, args ...any) (T, error) {
	r, err := conn.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectExactlyOneRow(r, pgx.RowToStructByPos[T])
}

// seconds returns a time in seconds as people read it.
func seconds(n float64) string { return cli.Age(time.Duration(n * float64(time.Second))) }
