package doctor

import (
	"context"
	_ "embed" // the files below
	"encoding/csv"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

//go:embed describe.sql
var describeSQL string

// expectedSchema is the output of describeSQL for a schema that was just
// migrated. A test keeps it up to date: go test ./cmd/internal/doctor -run
// ExpectedSchema -update.
//
//go:embed schema.tsv
var expectedSchema string

// expectedPartitioned is the same where outbox_events is partitioned.
//
//go:embed schema_partitioned.tsv
var expectedPartitioned string

// part is one part of the schema.
type part struct{ Kind, Table, Name, Definition string }

// key identifies a part.
func (p part) key() [3]string { return [3]string{p.Kind, p.Table, p.Name} }

// String returns the name for a sentence: "index outbox_events_fresh".
func (p part) String() string {
	switch {
	case p.Name == "":
		return p.Kind + " " + p.Table
	case p.Kind == "column":
		return p.Kind + " " + p.Table + "." + p.Name
	default:
		return p.Kind + " " + p.Name
	}
}

// expected returns the parts that a schema should have, from one of the texts above.
func expected(text string) ([]part, error) {
	r := csv.NewReader(strings.NewReader(text))
	r.Comma = '\t'
	r.FieldsPerRecord = 4

	lines, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read the description of the schema: %w", err)
	}
	parts := make([]part, len(lines))
	for i, l := range lines {
		parts[i] = part{l[0], l[1], l[2], l[3]}
	}
	return parts, nil
}

// describe returns the parts that a schema has.
func describe(ctx context.Context, conn *pgx.Conn, schema string) (parts []part, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('search_path', $1, true)`, pgx.Identifier{schema}.Sanitize()); err != nil {
			return err
		}
		r, err := tx.Query(ctx, describeSQL, schema)
		if err != nil {
			return err
		}
		parts, err = pgx.CollectRows(r, pgx.RowToStructByPos[part])
		return err
	})
	return parts, err
}

// checkSchema compares the version and every part of the schema with the result of migrate.
func checkSchema(ctx context.Context, e *exam) (string, []Finding, error) {
	state, err := outboxsql.ReadState(ctx, e.conn, e.Schema)
	if err != nil {
		return "", nil, err
	}

	err = outboxsql.Check(ctx, e.conn, e.Schema)
	switch {
	case errors.Is(err, outboxsql.ErrTooNew):
		return "", []Finding{found(Error, "upgrade notifyd", "The schema %s is at version %d, this notifyd knows %d.",
			e.Schema, state.Current, state.Latest)}, nil
	case errors.Is(err, outboxsql.ErrNotMigrated) && state.Current == 0:
		return "", []Finding{e.missingTables(ctx)}, nil
	case errors.Is(err, outboxsql.ErrNotMigrated):
		return "", []Finding{found(Error, "notifyd migrate", "The schema %s is at version %d, this notifyd needs %d.",
			e.Schema, state.Current, state.Latest)}, nil
	case err != nil:
		return "", nil, err
	}

	partitioned, err := pgschema.Partitioned(ctx, e.conn, e.Schema)
	if err != nil {
		return "", nil, err
	}

	text := expectedSchema
	if partitioned {
		text = expectedPartitioned
	}
	want, err := expected(text)
	if err != nil {
		return "", nil, err
	}

	have, err := describe(ctx, e.conn, e.Schema)
	if err != nil {
		return "", nil, err
	}

	if state.Becoming != "" {
		return "", []Finding{found(Error, "notifyd migrate --mode "+string(state.Becoming),
			"The change of the table to a %s was interrupted: no relay reads the table until the change is complete.",
			state.Becoming)}, nil
	}

	var findings []Finding
	if state.Home.Check(e.Schema) != nil {
		findings = append(findings, found(Error, "notifyd adopt", "The outbox is a copy: its home is %v, and this is "+
			"%v. No relay delivers from here.", state.Home.Is, state.Home.Here))
	}

	if state.Mode == outboxsql.ModeStream {
		var fresh []Finding
		want, have, fresh = withoutFresh(e.Schema, want, have)
		findings = append(findings, fresh...)
	}

	findings = append(findings, drift(e.Schema, want, have)...)
	return fmt.Sprintf("The schema %s is at version %d, as migrate creates it for a %s.",
		e.Schema, state.Current, state.Mode), findings, nil
}

// missingTables is the finding of a schema without tables.
func (e *exam) missingTables(ctx context.Context) Finding {
	others, err := pgschema.Elsewhere(ctx, e.conn, e.Schema)
	if err != nil || len(others) == 0 {
		return found(Error, "notifyd migrate", "The schema %s has no tables of notifyd.", e.Schema)
	}
	return found(Error, "set database.schema (or --schema), or run notifyd migrate for another outbox",
		"The schema %s has no tables of notifyd, and schema %s has.", e.Schema, strings.Join(others, ", "))
}

// freshIndex belongs to a queue only.
const freshIndex = "outbox_events_fresh"

// withoutFresh removes the index of fresh events from the expected parts of a
// stream, and reports the index if it exists.
func withoutFresh(schema string, want, have []part) (should, has []part, findings []Finding) {
	fresh := func(p part) bool { return p.Kind == "index" && p.Name == freshIndex }
	if slices.ContainsFunc(have, fresh) {
		findings = append(findings, found(Warning, "DROP INDEX "+pgx.Identifier{schema, freshIndex}.Sanitize(),
			"The index %s belongs to a queue: in a stream it slows every write of outbox_events, and no query uses it.", freshIndex))
	}
	return slices.DeleteFunc(want, fresh), slices.DeleteFunc(have, fresh), findings
}

// drift returns the differences between a schema and its expected parts.
func drift(schema string, want, have []part) (findings []Finding) {
	has := make(map[[3]string]part)
	should := make(map[[3]string]part)
	tables := make(map[string]bool)
	for _, p := range have {
		has[p.key()] = p
	}

	lost := make(map[string]bool)
	for _, p := range want {
		should[p.key()] = p
		tables[p.Table] = true

		h, ok := has[p.key()]
		switch {
		case lost[p.Table]: // reported already
		case !ok:
			lost[p.Table] = p.Kind == "table"
			findings = append(findings, found(Error, restore(schema, p), "The %s is missing.", p))
		case h.Definition != p.Definition && p.Kind == "function":
			findings = append(findings, found(Error, restore(schema, p), "The %s is not the one that migrate creates.", p))
		case h.Definition != p.Definition:
			findings = append(findings, found(Error, change(schema, p), "The %s is %q and should be %q.", p, h.Definition, p.Definition))
		}
	}

	for _, p := range have {
		_, isOurs := should[p.key()]
		canBeExtra := p.Kind != "table" && p.Kind != "function"
		if !isOurs && canBeExtra && tables[p.Table] {
			findings = append(findings, extra(schema, p))
		}
	}

	return findings
}

// restore returns the cure for a missing part.
func restore(schema string, p part) string {
	table := pgx.Identifier{schema, p.Table}.Sanitize()
	switch p.Kind {
	case "column":
		return fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s", table, p.Name, p.Definition)
	case "constraint":
		return fmt.Sprintf("ALTER TABLE %s ADD CONSTRAINT %s %s", table, p.Name, p.Definition)
	case "function":
		return "notifyd migrate"
	default: // every statement may run again without harm
		return "notifyd migrate print --schema " + schema + " | psql"
	}
}

// change returns the cure for a part that differs.
func change(schema string, p part) string {
	table := pgx.Identifier{schema, p.Table}.Sanitize()
	switch p.Kind {
	case "table":
		return fmt.Sprintf("ALTER TABLE %s SET LOGGED, DISABLE ROW LEVEL SECURITY", table)
	case "column":
		return fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s ..., to %s", table, p.Name, p.Definition)
	case "constraint":
		return fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s, ADD CONSTRAINT %[2]s %s", table, p.Name, p.Definition)
	default:
		return fmt.Sprintf("DROP INDEX %s, then %s", pgx.Identifier{schema, p.Name}.Sanitize(), restore(schema, p))
	}
}

// extra reports on a part that migrate does not create.
func extra(schema string, p part) Finding {
	table := pgx.Identifier{schema, p.Table}.Sanitize()
	switch p.Kind {
	case "index":
		return found(Note, "DROP INDEX CONCURRENTLY "+pgx.Identifier{schema, p.Name}.Sanitize()+", unless you need it",
			"The %s does not belong to notifyd: it slows every write of %s.", p, p.Table)
	case "constraint":
		return found(Warning, fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s, unless you need it", table, p.Name),
			"The %s does not belong to notifyd: it refuses some events (%s).", p, p.Definition)
	default:
		hasValue := strings.Contains(p.Definition, "DEFAULT") || strings.Contains(p.Definition, "GENERATED")
		if strings.Contains(p.Definition, "NOT NULL") && !hasValue {
			return found(Error, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL", table, p.Name),
				"The %s does not belong to notifyd and needs a value: writers and relays that do not know it fail.", p)
		}
		return found(Note, fmt.Sprintf("ALTER TABLE %s DROP COLUMN %s, unless you need it", table, p.Name),
			"The %s does not belong to notifyd.", p)
	}
}
