package outboxsql

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
)

// Roles are the two roles that need privileges, next to the owner of the tables. An empty name omits the role.
type Roles struct {
	// Writer inserts events: the role, or a group role, of the applications.
	Writer string
	// Relay delivers them: the role in database.url.
	Relay string
}

// maxRoleBytes is the longest name that PostgreSQL keeps. It truncates longer ones, and the
// truncated name may be that of another role.
const maxRoleBytes = 63

// Grants returns the statements that give the roles the privileges that they need in the schema,
// and no more. The owner of the tables must run them, after [Migrate], and again after each
// upgrade. They may be repeated. They revoke nothing, and the roles must exist.
func Grants(schema string, roles Roles) (string, error) {
	err := errors.Join(pgschema.Validate(schema), validateRole("writer", roles.Writer), validateRole("relay", roles.Relay))
	if err != nil {
		return "", err
	}

	var b strings.Builder
	b.WriteString("BEGIN;\n")
	for _, who := range []struct {
		name, may  string
		privileges func(pgschema.TableGrant) string
	}{
		{
			roles.Writer,
			"may insert events and read their ids, and neither read nor change the rest",
			func(g pgschema.TableGrant) string { return g.Writer },
		},
		{
			roles.Relay,
			"delivers events",
			func(g pgschema.TableGrant) string { return g.Relay },
		},
	} {
		if who.name == "" {
			continue
		}

		role := pgx.Identifier{who.name}.Sanitize()

		// The name is only in the statements: a line break in it would end a comment.
		fmt.Fprintf(&b, "\n-- This role %s.\n", who.may)
		fmt.Fprintf(&b, "GRANT USAGE ON SCHEMA %s TO %s;\n", pgx.Identifier{schema}.Sanitize(), role)
		for _, g := range pgschema.TableGrants() {
			if privileges := who.privileges(g); privileges != "" {
				fmt.Fprintf(&b, "GRANT %s ON %s TO %s;\n", privileges, pgx.Identifier{schema, g.Table}.Sanitize(), role)
			}
		}
	}

	if roles.Relay != "" {
		b.WriteString(functionGrants(schema, roles.Relay))
	}

	b.WriteString("COMMIT;\n")
	return b.String(), nil
}

// functionGrants returns the grants of the functions that exist.
func functionGrants(schema, relay string) string {
	var grants strings.Builder
	for _, f := range pgschema.PartitionFunctions() {
		name := pgx.Identifier{schema}.Sanitize() + "." + f
		fmt.Fprintf(&grants, "IF to_regprocedure(%s) IS NOT NULL THEN GRANT EXECUTE ON FUNCTION %s TO %s; END IF; ",
			pgschema.Literal(name), name, pgx.Identifier{relay}.Sanitize())
	}

	return "\n-- This role knows the last id and the place and, where the table is partitioned, keeps the partitions.\n" +
		"DO " + pgschema.Literal("BEGIN "+grants.String()+"END") + ";\n"
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
