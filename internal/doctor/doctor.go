// Package doctor looks for what keeps notifyd from working well: in the schema,
// in the server's settings, in who else uses the database, and at the
// destinations. It changes nothing but what a session of its own holds.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// Severity says how much a finding matters.
type Severity string

// The severities, from what is well to what has to be cured.
const (
	// OK is what was looked at and is well.
	OK Severity = "ok"
	// Note is something to know of.
	Note Severity = "note"
	// Warning is something that will hurt, or hurts a little.
	Warning Severity = "warning"
	// Error is something that keeps events from being delivered or written.
	Error Severity = "error"
)

// Finding is what one check has to say.
type Finding struct {
	// Check is the name of the check.
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Text is a sentence.
	Text string `json:"text"`
	// Cure is a command or a setting; empty where all is well.
	Cure string `json:"cure,omitempty"`
}

// Report is what all checks have to say, in their order.
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

// Options say whom to examine.
type Options struct {
	// Connect opens a connection as relays do, with none of its settings changed.
	Connect Connect
	// Listen opens the one that listens; nil is Connect.
	Listen Connect
	// Schema holds the tables.
	Schema string
	// Connections is how many a relay opens; 0 is unknown.
	Connections int
	// Daily says whether relays look after partitions; nil is unknown.
	Daily *bool
	// Destinations are those of the configuration.
	Destinations []Destination
	// Route returns the destinations of an event type; nil if they are not known.
	Route func(eventType string) []string
	// Limits are from where on something is worth mentioning; the zero value is
	// DefaultLimits.
	Limits Limits
	// Now is the clock of this machine; nil is time.Now.
	Now func() time.Time
}

// Limits are from where on something is worth mentioning.
type Limits struct {
	// RoundTrip is what a notification may take; one that takes Silence is not heard.
	RoundTrip, Silence time.Duration
	// Skew is by how much the clocks of the database and of this machine may differ.
	Skew time.Duration
	// Frozen is how long events may wait while a relay keeps the bell silent and
	// claims nothing.
	Frozen time.Duration
	// Transaction is how long another session may hold back vacuum.
	Transaction time.Duration
	// Gap is how long a transaction may have ids of a stream and not end.
	Gap time.Duration
	// DeadRows is how many dead rows a table may have, as long as there are
	// twice as many live ones.
	DeadRows int64
	// QueueUsage is the fill of the notification queue, between 0 and 1.
	QueueUsage float64
}

// DefaultLimits are far above what a healthy system has.
func DefaultLimits() Limits {
	return Limits{
		RoundTrip: time.Second, Silence: 10 * time.Second, Skew: 5 * time.Second, Frozen: 30 * time.Second,
		Transaction: 5 * time.Minute, Gap: time.Minute, DeadRows: 10_000, QueueUsage: 0.1,
	}
}

// checkTimeout bounds one check. Destinations have one of their own.
const checkTimeout = 20 * time.Second

// exam is one examination.
type exam struct {
	Options
	conn *pgx.Conn // to be used by one check at a time
	mode outboxsql.Mode
}

// check looks at one thing. do returns what it found to be well as a sentence, and
// what it did not; where there are findings, the sentence is not said. An error
// says that the check itself could not be done.
type check struct {
	name string
	do   func(ctx context.Context, e *exam) (well string, findings []Finding, err error)
	// noTables says that it can be done without the tables.
	noTables bool
}

// checks are all that need the database, in the order of the report.
func checks() []check {
	return []check{
		{"server", checkServer, true},
		{"schema", checkSchema, true},
		{"trigger", checkTrigger, false},
		{"other triggers", checkOtherTriggers, false},
		{"replication role", checkReplicationRole, true},
		{"bell", checkBell, false},
		{"relays", checkRelays, false},
		{"pooler", checkPooler, true},
		{"notify", checkNotify, true},
		{"notification queue", checkQueue, true},
		{"rights", checkRights, false},
		{"settings", checkSettings, true},
		{"connections", checkConnections, true},
		{"clock", checkClock, true},
		{"partitions", checkPartitions, false},
		{"autovacuum", checkAutovacuum, false},
		{"dead rows", checkDeadRows, false},
		{"transactions", checkTransactions, true},
		{"prepared transactions", checkPrepared, true},
		{"replication slots", checkSlots, true},
		{"payloads", checkPayloads, false},
	}
}

// streamChecks are those of a stream, which follow.
func streamChecks() []check {
	return []check{
		{"stream", checkStream, false},
		{"units", checkUnits, false},
		{"positions", checkPositions, false},
		{"gaps", checkGaps, false},
	}
}

// Run makes all checks and returns what they have to say. It always returns a
// report: a database that cannot be reached is a finding.
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
		r.add("database", Finding{Severity: Error, Text: "The database cannot be reached: " + oneLine(err.Error()) + ".", Cure: "start the server, or mend database.url"})
	} else {
		defer closeConn(ctx, conn)
		e.conn = conn
		e.database(ctx, &r)
	}
	r.add("", checkDestinations(ctx, o.Destinations)...)
	return r
}

// database makes the checks that need one.
func (e *exam) database(ctx context.Context, r *Report) {
	tables, err := e.hasTables(ctx)
	if err != nil {
		r.add("database", undone(err))
		return
	}
	all := checks()
	if state, err := outboxsql.ReadState(ctx, e.conn, e.Schema); err == nil { // or the check of the schema tells
		e.mode = state.Mode
	}
	if e.mode == outboxsql.ModeStream {
		all = append(all, streamChecks()...)
	}
	for _, c := range all {
		if tables || c.noTables {
			r.add(c.name, e.one(ctx, c)...)
		}
	}
}

// one makes one check.
func (e *exam) one(ctx context.Context, c check) []Finding {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTimeout, fmt.Errorf("there was no answer within %v", checkTimeout))
	defer cancel()
	if e.conn.IsClosed() { // the check before has lost it
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

// undone is the finding of a check that could not be done.
func undone(err error) Finding {
	f := Finding{Severity: Error, Text: "This could not be checked: " + oneLine(err.Error()) + ".", Cure: "mend that, and run notifyd doctor again"}
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "42501" { // insufficient_privilege
		f.Severity, f.Cure = Warning, "run notifyd doctor as the owner of the tables, or grant the role pg_monitor"
	}
	return f
}

// add puts findings of one check into the report; an empty name keeps theirs.
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

// table returns the name of a table as SQL has it.
func (e *exam) table(name string) string { return pgx.Identifier{e.Schema, name}.Sanitize() }

const closeTimeout = time.Second

// closeConn says goodbye, also after ctx has ended.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // the socket is closed either way
}

// oneLine puts a text that goes over several lines on one.
func oneLine(text string) string {
	return strings.TrimSuffix(strings.Join(strings.Fields(text), " "), ".")
}

// found makes a finding.
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
