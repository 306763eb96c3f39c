package pgschema

import (
	"regexp"
	"strings"
)

// TableGrant lists the privileges on a table; empty means none.
type TableGrant struct{ Table, Writer, Relay string }

// TableGrants has a line for every table of the schema, even if neither role gets anything; a test
// finds a missing one. Identity columns draw from their sequence without a privilege for it, and a
// trigger runs its function without one, too.
func TableGrants() []TableGrant {
	return []TableGrant{
		{Table: "outbox_migrations", Relay: "SELECT"},
		{
			Table: "outbox_events",
			// Omitted columns keep their defaults: a writer cannot backdate an event or mark it done. RETURNING id needs
			// SELECT of the column; ids are public.
			Writer: "INSERT (event_type, aggregate_type, aggregate_id, idempotency_key, available_at, headers, " +
				"payload, payload_bytes, content_type), SELECT (id)",
			// UPDATE of one column is also what SELECT ... FOR UPDATE needs.
			Relay: "SELECT, UPDATE (state, processed_at), DELETE",
		},
		{Table: "outbox_deliveries", Relay: "SELECT, INSERT, UPDATE, DELETE"},
		// Actions on dead letters are recorded, and the records stay.
		{Table: "outbox_audit", Relay: "SELECT, INSERT"},
		// The role that migrates the table decides its mode.
		{Table: "outbox_mode", Relay: "SELECT"},
		{Table: "outbox_positions", Relay: "SELECT, INSERT, UPDATE, DELETE"},
		{Table: "outbox_server", Relay: "SELECT, INSERT, UPDATE"},
		{Table: "outbox_members", Relay: "SELECT, INSERT, UPDATE, DELETE"},
		{Table: "outbox_routes", Relay: "SELECT, INSERT, UPDATE, DELETE"},
		// They stay, so that no number of theirs is given out again.
		{Table: "outbox_replays", Relay: "SELECT, INSERT, UPDATE"},
		// The console of a relay pauses and resumes, and so does notifyd pause in its role.
		{Table: "outbox_pauses", Relay: "SELECT, INSERT, UPDATE, DELETE"},
		{Table: "outbox_relays", Relay: "SELECT, INSERT, UPDATE, DELETE"},
		{Table: "outbox_limits", Relay: "SELECT, INSERT, UPDATE, DELETE"},
		{Table: "outbox_calls", Relay: "SELECT, INSERT, UPDATE, DELETE"},
		// A view of the sequence of outbox_events.
		{Table: "outbox_last_id", Relay: "SELECT"},
	}
}

// Privilege is one privilege on a table.
type Privilege struct {
	// Table is without its schema, and Kind a keyword such as SELECT.
	Table, Kind string
	// Columns are those that the privilege is limited to; nil is the whole table.
	Columns []string
}

// grantedPrivilege matches one privilege in a grant.
var grantedPrivilege = regexp.MustCompile(`([A-Z]+)(?: \(([^)]*)\))?`)

// RelayPrivileges returns the privileges that outboxsql.Grants gives to the relay, table by table.
func RelayPrivileges() (all []Privilege) {
	for _, g := range TableGrants() {
		for _, m := range grantedPrivilege.FindAllStringSubmatch(g.Relay, -1) {
			p := Privilege{Table: g.Table, Kind: m[1]}
			if m[2] != "" {
				p.Columns = strings.Split(m[2], ", ")
			}
			all = append(all, p)
		}
	}
	return all
}

// PartitionFunctions returns the functions that a relay calls where the table is partitioned; two of them, outbox_last_id and
// outbox_place, also where it is not. The others run as the owner of the tables, so that the relay need not be the owner.
// The names have no schema.
func PartitionFunctions() []string {
	return []string{
		"outbox_partitions()", "outbox_away()", "outbox_last_id()", "outbox_place(oid)", "outbox_partitions_extend(timestamptz, integer)",
		"outbox_partition_drop(text, timestamptz)", "outbox_keys_purge(bigint, integer)",
	}
}
