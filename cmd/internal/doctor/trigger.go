package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	notifyTrigger = "outbox_events_notify"
	// keyFunction is the function of the triggers that keep the keys of a partitioned table.
	keyFunction = "outbox_key"
	// fingerprintFunction is the function of the trigger that groups dead letters.
	fingerprintFunction = "outbox_fingerprint"
	// lettersFunction is the function of the trigger that stores the remaining reports of dead letters.
	lettersFunction = "outbox_dead_letters"
	// lineFunction is the function of the trigger that serializes writers.
	lineFunction = "outbox_serialize"
)

// trigger is a row of pg_trigger.
type trigger struct {
	Name, Enabled, Function string
	Definition              string
}

func (e *exam) triggers(ctx context.Context, table string) ([]trigger, error) {
	return rows[trigger](ctx, e.conn, `SELECT t.tgname::text, t.tgenabled::text, p.proname::text, pg_get_triggerdef(t.oid)
		FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
		WHERE t.tgrelid = to_regclass($1) AND NOT t.tgisinternal ORDER BY t.tgname`, e.table(table))
}

// checkTrigger checks whether the trigger can notify at all.
func checkTrigger(ctx context.Context, e *exam) (string, []Finding, error) {
	all, err := e.triggers(ctx, "outbox_events")
	if err != nil {
		return "", nil, err
	}
	for _, t := range all {
		if t.Name == notifyTrigger {
			return "The trigger is there and enabled.", triggerFindings(e.table("outbox_events"), t), nil
		}
	}
	return "", []Finding{found(Warning, "notifyd migrate --notify auto, unless it is off on purpose, as behind a transaction pooler",
		"There is no trigger %s: relays find events by polling alone.", notifyTrigger)}, nil
}

func triggerFindings(table string, t trigger) []Finding {
	cure := fmt.Sprintf("ALTER TABLE %s ENABLE TRIGGER %s", table, notifyTrigger)
	const when = " AFTER INSERT ON "
	isKnown := t.Function == "outbox_notify_auto" || t.Function == "outbox_notify_always"
	isPerStatement := strings.Contains(t.Definition, when) && strings.Contains(t.Definition, "FOR EACH STATEMENT")

	switch {
	case t.Enabled == "D":
		return []Finding{found(Warning, cure, "The trigger %s is disabled: relays find events by polling alone.", notifyTrigger)}
	case t.Enabled == "R":
		return []Finding{found(Warning, cure, "The trigger %s is enabled for replicas only: relays find events by "+
			"polling alone.", notifyTrigger)}
	case !isKnown, !isPerStatement, !strings.Contains(t.Definition, "NEW TABLE AS outbox_inserted"):
		return []Finding{found(Error, fmt.Sprintf("DROP TRIGGER %s ON %s, then notifyd migrate --notify auto", notifyTrigger, table),
			"The trigger %s is not the one that migrate creates: %s.", notifyTrigger, t.Definition)}
	}

	return nil
}

// checkOtherTriggers reports other triggers that run when an event is written, or when the relay
// records its delivery.
func checkOtherTriggers(ctx context.Context, e *exam) (string, []Finding, error) {
	var findings []Finding
	for _, table := range recorded() {
		all, err := e.triggers(ctx, table)
		if err != nil {
			return "", nil, err
		}

		for _, t := range all {
			isOurs := slices.Contains([]string{keyFunction, fingerprintFunction, lettersFunction, lineFunction}, t.Function)
			if isOurs || t.Name == notifyTrigger || t.Enabled == "D" {
				continue
			}

			findings = append(findings, found(Note, fmt.Sprintf("DROP TRIGGER %s ON %s, unless you need it",
				pgx.Identifier{t.Name}.Sanitize(), e.table(table)),
				"The trigger %s does not belong to notifyd: it runs with writes to %s. One that notifies makes "+
					"commits wait for each other; one that raises an error while the relay records a delivery, or "+
					"ignores the write, holds the event back.", t.Name, table))
		}
	}

	return "No other trigger runs when events are written, or when deliveries are recorded.", findings, nil
}

// recorded are the tables in which relays record deliveries.
func recorded() []string { return []string{"outbox_events", "outbox_deliveries", "outbox_positions"} }

// checkForeignKeys reports foreign keys to the tables of notifyd. They refuse the purge of a referenced event.
func checkForeignKeys(ctx context.Context, e *exam) (string, []Finding, error) {
	var findings []Finding
	for _, table := range recorded() {
		type key struct{ Name, Table, Action string }
		all, err := rows[key](ctx, e.conn, `SELECT c.conname::text, c.conrelid::regclass::text, c.confdeltype::text
			FROM pg_constraint AS c WHERE c.contype = 'f' AND c.confrelid = to_regclass($1) AND c.conparentid = 0
			ORDER BY c.conrelid::regclass::text, c.conname`, e.table(table))
		if err != nil {
			return "", nil, err
		}

		for _, key := range all {
			cure := fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s, or give it ON DELETE CASCADE or ON DELETE SET NULL",
				key.Table, pgx.Identifier{key.Name}.Sanitize())
			if key.Action == "c" || key.Action == "n" || key.Action == "d" {
				findings = append(findings, found(Note, cure,
					"The foreign key %s of %s references %s: each row that notifyd deletes costs a search in %s.",
					key.Name, key.Table, table, key.Table))
				continue
			}

			findings = append(findings, found(Warning, cure, "The foreign key %s of %s references %s: notifyd cannot "+
				"delete the rows that it references.", key.Name, key.Table, table))
		}
	}

	return "No foreign key references the tables of notifyd.", findings, nil
}

// checkRules reports rules, which may replace the writes of a relay by nothing.
func checkRules(ctx context.Context, e *exam) (string, []Finding, error) {
	var findings []Finding
	for _, table := range recorded() {
		all, err := rows[struct{ Name, Definition string }](ctx, e.conn, `SELECT rulename::text, pg_get_ruledef(oid)
			FROM pg_rewrite WHERE ev_class = to_regclass($1) ORDER BY rulename`, e.table(table))
		if err != nil {
			return "", nil, err
		}

		for _, rule := range all {
			findings = append(findings, found(Warning, fmt.Sprintf("DROP RULE %s ON %s",
				pgx.Identifier{rule.Name}.Sanitize(), e.table(table)),
				"The rule %s does not belong to notifyd: it changes the writes to %s, and may keep the relay from "+
					"recording deliveries. Its definition is: %s.", rule.Name, table, strings.TrimSuffix(rule.Definition, ";")))
		}
	}

	return "No rule changes the writes of relays.", findings, nil
}

// checkReplicationRole looks for settings under which no trigger fires.
func checkReplicationRole(ctx context.Context, e *exam) (string, []Finding, error) {
	type place struct{ Database, Role string }
	places, err := rows[place](ctx, e.conn, `SELECT coalesce(d.datname::text, ''), coalesce(r.rolname::text, '')
		FROM pg_db_role_setting s LEFT JOIN pg_database d ON d.oid = s.setdatabase LEFT JOIN pg_roles r ON r.oid = s.setrole,
		unnest(s.setconfig) AS setting
		WHERE setting = 'session_replication_role=replica' AND (s.setdatabase = 0 OR d.datname = current_database()) ORDER BY 1, 2`)
	if err != nil {
		return "", nil, err
	}

	var findings []Finding
	for _, p := range places {
		who := "the database " + p.Database
		cure := "ALTER DATABASE " + p.Database + " RESET session_replication_role"
		if p.Role != "" {
			who = "the role " + p.Role
			cure = "ALTER ROLE " + p.Role + " RESET session_replication_role"
			if p.Database != "" {
				cure = "ALTER ROLE " + p.Role + " IN DATABASE " + p.Database + " RESET session_replication_role"
			}
		}

		findings = append(findings, found(Warning, cure, "session_replication_role is replica for %s: no trigger "+
			"fires there, so events that it writes are found by polling alone.", who))
	}

	var mode string
	if err := e.conn.QueryRow(ctx, `SHOW session_replication_role`).Scan(&mode); err != nil {
		return "", nil, err
	}

	if mode == "replica" && len(findings) == 0 {
		findings = append(findings, found(Warning, "remove session_replication_role from postgresql.conf or the connection string",
			"session_replication_role is replica: no trigger fires, so events are found by polling alone."))
	}

	return "Triggers fire (session_replication_role is " + mode + ").", findings, nil
}

// checkSuppression checks whether the relay that suppresses the trigger works.
func checkSuppression(ctx context.Context, e *exam) (string, []Finding, error) {
	notify, err := store.ReadNotifyState(ctx, e.conn, e.Schema)
	if err != nil {
		return "", nil, err
	}

	if notify.SuppressedBy == nil {
		if notify.Mode == outboxsql.NotifyOff {
			return "The notify trigger is off.", nil, nil
		}
		return fmt.Sprintf("The notify mode is %s, and no relay suppresses notifications.", notify.Mode), nil, nil
	}

	by := fmt.Sprintf("pid %d (%s)", notify.SuppressedBy.PID, notify.SuppressedBy.Application)
	backlog, err := e.backlog(ctx)
	if err != nil {
		return "", nil, err
	}

	// Working relays claim all the time, even if the backlog is old.
	var atWork bool
	err = e.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name IN ('notifyd/claim', 'notifyd/stream')
		AND datname = current_database()
			AND (state_change IS NULL OR state_change > clock_timestamp() - $1::bigint * interval '1 microsecond'))`,
		e.Limits.Frozen.Microseconds()).Scan(&atWork)
	if err != nil {
		return "", nil, err
	}

	oldest := oldestFresh(backlog)
	if oldest != nil && !atWork && oldest.Age > e.Limits.Frozen.Seconds() {
		return "", []Finding{found(Error, fmt.Sprintf("restart that relay, or SELECT pg_terminate_backend(%d)", notify.SuppressedBy.PID),
			"Notifications are suppressed by %s, no relay queries for work, and an event has waited for %s: that "+
				"relay is frozen.", by, seconds(oldest.Age))}, nil
	}

	return fmt.Sprintf("The notify mode is %s, and %s suppresses notifications while it polls.", notify.Mode, by), nil, nil
}

// oldestFresh leaves out events that were tried: those wait for their destination.
func oldestFresh(b observe.Backlog) (oldest *observe.Waiting) {
	for _, t := range b.Types {
		if t.Oldest != nil && (oldest == nil || t.Oldest.Since.Before(oldest.Since)) {
			oldest = t.Oldest
		}
	}
	for _, p := range b.Positions {
		if p.Oldest != nil && (oldest == nil || p.Oldest.Since.Before(oldest.Since)) {
			oldest = p.Oldest
		}
	}
	return oldest
}

// backlog returns the backlog of the tables.
func (e *exam) backlog(ctx context.Context) (observe.Backlog, error) {
	return store.ReadBacklog(ctx, e.conn, store.BacklogOptions{Schema: e.Schema, Route: e.Route})
}

// checkBacklog reads the backlog, for the checks that follow.
func checkBacklog(ctx context.Context, e *exam) (_ string, _ []Finding, err error) {
	e.waits, err = e.backlog(ctx)
	if err != nil {
		return "", nil, err
	}
	if e.waits.Oldest == nil {
		return "Nothing waits.", nil, nil
	}
	return fmt.Sprintf("The event %d has waited longest: %v.", e.waits.Oldest.EventID, seconds(e.waits.Oldest.Age)), nil, nil
}

// relays returns the live relays: for a stream its own, for a queue those of the database.
func (e *exam) relays(ctx context.Context) ([]store.RelaySession, error) {
	return store.ReadLive(ctx, e.conn, e.Schema, e.mode)
}

// checkRelays checks whether a relay delivers.
func checkRelays(ctx context.Context, e *exam) (string, []Finding, error) {
	relays, err := e.relays(ctx)
	if err != nil {
		return "", nil, err
	}
	if len(relays) > 0 {
		return "Relays that deliver from this database: " + strconv.Itoa(len(relays)) + ".", nil, nil
	}

	backlog, err := e.backlog(ctx)
	if err != nil {
		return "", nil, err
	}

	if backlog.Oldest != nil {
		return "", []Finding{found(Error, "notifyd run", "No relay uses this database, and events wait.")}, nil
	}

	return "", []Finding{found(Note, "notifyd run", "No relay uses this database; nothing waits.")}, nil
}
