package outboxsql

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// Roles are the two that need privileges beside the owner of the tables. An
// empty name leaves the role out.
type Roles struct {
	// Writer inserts events: the role, or a group role, of the applications.
	Writer string
	// Relay delivers them: the role in database.url.
	Relay string
}

// The roles that are meant where none is named.
const (
	DefaultWriter = "notifyd_writer"
	DefaultRelay  = "notifyd_relay"
)

// maxRoleBytes is what PostgreSQL keeps of a name; it cuts off the rest, and
// what is left may be somebody else.
const maxRoleBytes = 63

// tableGrant says who may do what with a table; empty means nothing.
type tableGrant struct{ table, writer, relay string }

// tableGrants has a line for every table of the schema, also where nobody gets
// anything; a test finds one that is missing. Identity columns draw from their
// sequence without a privilege for it, and a trigger runs its function without
// one either.
func tableGrants() []tableGrant {
	return []tableGrant{
		{table: "outbox_migrations", relay: "SELECT"},
		{
			table: "outbox_events",
			// What is left out keeps to its default: a writer cannot date an
			// event back, or call it done.
			writer: "INSERT (event_type, aggregate_type, aggregate_id, idempotency_key, available_at, headers, payload)",
			// UPDATE of one column is also what SELECT ... FOR UPDATE needs.
			relay: "SELECT, UPDATE (state, processed_at), DELETE",
		},
		{table: "outbox_deliveries", relay: "SELECT, INSERT, UPDATE, DELETE"},
		// What is done with dead letters is noted, and the notes stay.
		{table: "outbox_audit", relay: "SELECT, INSERT"},
		// What a table is decides whoever migrates it.
		{table: "outbox_mode", relay: "SELECT"},
		{table: "outbox_positions", relay: "SELECT, INSERT, UPDATE, DELETE"},
		{table: "outbox_routes", relay: "SELECT, INSERT, UPDATE, DELETE"},
	}
}

// Privilege is one thing that a role may do with a table.
type Privilege struct {
	// Table is without its schema, and Kind a word such as SELECT.
	Table, Kind string
	// Columns are those that it is confined to; nil is the whole table.
	Columns []string
}

// grantedPrivilege is one of those that a grant lists.
var grantedPrivilege = regexp.MustCompile(`([A-Z]+)(?: \(([^)]*)\))?`)

// RelayPrivileges returns what [Grants] gives to the relay, table by table.
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

// Grants returns the statements that give the roles what they need in the
// schema, and no more. They are to be run by the owner of the tables, after
// [Migrate], and again after each upgrade. Running them twice does no harm;
// nothing is taken away, and the roles have to be there.
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
		{roles.Writer, "may insert events, and neither read nor change them", func(g tableGrant) string { return g.writer }},
		{roles.Relay, "delivers events", func(g tableGrant) string { return g.relay }},
	} {
		if who.name == "" {
			continue
		}
		role := pgx.Identifier{who.name}.Sanitize()
		// The name is in the statements only: a line break in it would end a comment.
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

// PartitionFunctions are what a relay calls where the table is partitioned, one
// of them, outbox_last_id, also where it is not. They run as the owner of the
// tables, so that the relay does not have to be it. The names have no schema.
func PartitionFunctions() []string {
	return []string{
		"outbox_partitions()", "outbox_last_id()", "outbox_partitions_extend(timestamptz, integer)",
		"outbox_partition_drop(text, timestamptz)", "outbox_keys_purge(bigint, integer)",
	}
}

// functionGrants are for the functions that are there.
func functionGrants(schema, relay string) string {
	var grants strings.Builder
	for _, f := range PartitionFunctions() {
		name := pgx.Identifier{schema}.Sanitize() + "." + f
		fmt.Fprintf(&grants, "IF to_regprocedure(%s) IS NOT NULL THEN GRANT EXECUTE ON FUNCTION %s TO %s; END IF; ",
			literal(name), name, pgx.Identifier{relay}.Sanitize())
	}
	return "\n-- This role knows the last id and, where the table is partitioned, keeps the partitions.\nDO " + literal("BEGIN "+grants.String()+"END") + ";\n"
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
		return fmt.Errorf("%s: public is not a role but everybody, also in quotes: make a role of its own", what)
	case name == "none":
		return fmt.Errorf("%s: PostgreSQL keeps the name none for itself: make a role with another name", what)
	}
	return nil
}
