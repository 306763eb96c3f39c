package outboxsql

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// Roles are the two roles that need privileges, next to the owner of the tables. An empty name omits the role.
type Roles struct {
	// Writer inserts events: the role, or a group role, of the applications.
	Writer string
	// Relay delivers them: the role in database.url.
	Relay string
}

// The default names of the roles.
const (
	DefaultWriter = "notifyd_writer"
	DefaultRelay  = "notifyd_relay"
)

// maxRoleBytes is the longest name that PostgreSQL keeps. It truncates longer ones, and the
// truncated name may be that of another role.
const maxRoleBytes = 63

// tableGrant lists the privileges on a table; empty means none.
type tableGrant struct{ table, writer, relay string }

// tableGrants has a line for every table of the schema, even if neither role gets anything; a test
// finds a missing one. Identity columns draw from their sequence without a privilege for it, and a
// trigger runs its function without one, too.
func tableGrants() []tableGrant {
	return []tableGrant{
		{table: "outbox_migrations", relay: "SELECT"},
		{
			table: "outbox_events",
			// Omitted columns keep their defaults: a writer cannot backdate an event or mark it done. RETURNING id needs
			// SELECT of the column; ids are public.
			writer: "INSERT (event_type, aggregate_type, aggregate_id, idempotency_key, available_at, headers, payload, payload_bytes, content_type), SELECT (id)",
			// UPDATE of one column is also what SELECT ... FOR UPDATE needs.
			relay: "SELECT, UPDATE (state, processed_at), DELETE",
		},
		{table: "outbox_deliveries", relay: "SELECT, INSERT, UPDATE, DELETE"},
		// Actions on dead letters are recorded, and the records stay.
		{table: "outbox_audit", relay: "SELECT, INSERT"},
		// The role that migrates the table decides its mode.
		{table: "outbox_mode", relay: "SELECT"},
		{table: "outbox_positions", relay: "SELECT, INSERT, UPDATE, DELETE"},
		{table: "outbox_server", relay: "SELECT, INSERT, UPDATE"},
		{table: "outbox_members", relay: "SELECT, INSERT, UPDATE, DELETE"},
		{table: "outbox_routes", relay: "SELECT, INSERT, UPDATE, DELETE"},
		// They stay, so that no number of theirs is given out again.
		{table: "outbox_replays", relay: "SELECT, INSERT, UPDATE"},
		// The console of a relay pauses and resumes, and so does notifyd pause in its role.
		{table: "outbox_pauses", relay: "SELECT, INSERT, UPDATE, DELETE"},
		{table: "outbox_relays", relay: "SELECT, INSERT, UPDATE, DELETE"},
		{table: "outbox_limits", relay: "SELECT, INSERT, UPDATE, DELETE"},
		{table: "outbox_calls", relay: "SELECT, INSERT, UPDATE, DELETE"},
		// A view of the sequence of outbox_events.
		{table: "outbox_last_id", relay: "SELECT"},
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

// RelayPrivileges returns the privileges that [Grants] gives to the relay, table by table.
func RelayPrivileges() (all []Privilege) {
	for _, g := range tableGrants() {
		for _, m := range grantedPrivilege.FindAllStringSubmatch(g.relay, -1) {
			p := Privilege{Table: g.table, Kind: m[1]}
			if m[2] != "" {
				p.Columns = strings.Split(m[2], ", ")
			}
			all = append(all, p)
		}
	}
	return all
}

// Grants returns the statements that give the roles the privileges that they need in the schema,
// and no more. The owner of the tables must run them, after [Migrate], and again after each
// upgrade. They may be repeated. They revoke nothing, and the roles must exist.
func Grants(schema string, roles Roles) (string, error) {
	if err := errors.Join(ValidateSchema(schema), validateRole("writer", roles.Writer), validateRole("relay", roles.Relay)); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("BEGIN;\n")
	for _, who := range []struct {
		name, may  string
		privileges func(tableGrant) string
	}{
		{roles.Writer, "may insert events and read their ids, and neither read nor change the rest", func(g tableGrant) string { return g.writer }},
		{roles.Relay, "delivers events", func(g tableGrant) string { return g.relay }},
	} {
		if who.name == "" {
			continue
		}
		role := pgx.Identifier{who.name}.Sanitize()
		// The name is only in the statements: a line break in it would end a comment.
		fmt.Fprintf(&b, "\n-- This role %s.\n", who.may)
		fmt.Fprintf(&b, "GRANT USAGE ON SCHEMA %s TO %s;\n", pgx.Identifier{schema}.Sanitize(), role)
		for _, g := range tableGrants() {
			if privileges := who.privileges(g); privileges != "" {
				fmt.Fprintf(&b, "GRANT %s ON %s TO %s;\n", privileges, pgx.Identifier{schema, g.table}.Sanitize(), role)
			}
		}
	}
	if roles.Relay != "" {
		b.WriteString(functionGrants(schema, roles.Relay))
	}
	b.WriteString("COMMIT;\n")
	return b.String(), nil
}

// PartitionFunctions returns the functions that a relay calls where the table is partitioned; two of them, outbox_last_id and
// outbox_place, also where it is not. The others run as the owner of the tables, so that the relay need not be the owner. The names have no schema.
func PartitionFunctions() []string {
	return []string{
		"outbox_partitions()", "outbox_away()", "outbox_last_id()", "outbox_place(oid)", "outbox_partitions_extend(timestamptz, integer)",
		"outbox_partition_drop(text, timestamptz)", "outbox_keys_purge(bigint, integer)",
	}
}

// functionGrants returns the grants of the functions that exist.
func functionGrants(schema, relay string) string {
	var grants strings.Builder
	for _, f := range PartitionFunctions() {
		name := pgx.Identifier{schema}.Sanitize() + "." + f
		fmt.Fprintf(&grants, "IF to_regprocedure(%s) IS NOT NULL THEN GRANT EXECUTE ON FUNCTION %s TO %s; END IF; ",
			literal(name), name, pgx.Identifier{relay}.Sanitize())
	}
	return "\n-- This role knows the last id and the place and, where the table is partitioned, keeps the partitions.\nDO " + literal("BEGIN "+grants.String()+"END") + ";\n"
}

// literal quotes a text, for any setting of standard_conforming_strings.
func literal(text string) string {
	return " E'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text) + "'"
}

func validateRole(what, name string) error {
	switch {
	case name == "":
		return nil
	case len(name) > maxRoleBytes:
		return fmt.Errorf("%s: role name %q has %d bytes, PostgreSQL keeps %d of them", what, name, len(name), maxRoleBytes)
	case strings.ContainsRune(name, 0) || !utf8.ValidString(name):
		return fmt.Errorf("%s: role name %q is not UTF-8 text without zero bytes", what, name)
	case name == "public":
		return fmt.Errorf("%s: public means every role, even in quotes: create a separate role", what)
	case name == "none":
		return fmt.Errorf("%s: PostgreSQL reserves the name none: create a role with another name", what)
	}
	return nil
}
