package capture

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// The transition tables of the triggers.
const (
	oldRows = "old_rows"
	newRows = "new_rows"
)

// settings are the settings under which the function runs: the form of values in the events must not depend on the
// session that writes the row. They are sorted, and named as pg_proc has them.
func settings() []string {
	return []string{
		"DateStyle=ISO, YMD", "IntervalStyle=iso_8601", "TimeZone=UTC", "bytea_output=hex", "extra_float_digits=1",
		"jit=off", // the planner expects far more rows of a join of transition tables than there are
		"lc_monetary=C", "search_path=pg_catalog, pg_temp",
	}
}

// setClauses returns the settings as clauses of CREATE FUNCTION.
func setClauses() string {
	var b strings.Builder
	for _, s := range settings() {
		name, value, _ := strings.Cut(s, "=")
		words := strings.Split(value, ", ")
		for i, word := range words {
			words[i] = literal(word)
		}
		fmt.Fprintf(&b, "    SET %s = %s\n", name, strings.Join(words, ", "))
	}
	return b.String()
}

// literal quotes a text, for any setting of standard_conforming_strings.
func literal(text string) string {
	quoted := "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text) + "'"
	if strings.Contains(text, `\`) {
		return "E" + quoted
	}
	return quoted
}

// literals returns an array of texts.
func literals(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = literal(text)
	}
	return "ARRAY[" + strings.Join(quoted, ", ") + "]::text[]"
}

// script writes the SQL of a capture.
type script struct{ *Capture }

// id returns the expression of aggregate_id for a row as jsonb. It is NULL if a column of the key is missing, so that rows
// whose key is unknown never match each other.
func (c script) id(row string) string {
	if len(c.Key) == 1 {
		return fmt.Sprintf("(%s ->> %s) COLLATE \"C\"", row, literal(c.Key[0]))
	}
	values := make([]string, len(c.Key))
	for i, column := range c.Key {
		values[i] = row + " -> " + literal(column)
	}
	return fmt.Sprintf("CASE WHEN %s ?& %s THEN jsonb_build_array(%s)::text COLLATE \"C\" END",
		row, literals(c.Key), strings.Join(values, ", "))
}

// key returns the expression of the key for a row as jsonb.
func (c script) key(row string) string {
	pairs := make([]string, len(c.Key))
	for i, column := range c.Key {
		pairs[i] = fmt.Sprintf("%s, %s -> %[1]s", literal(column), row)
	}
	return "json_build_object(" + strings.Join(pairs, ", ") + ")"
}

// payload returns the expression of the payload. The arguments are expressions, too.
func (c script) payload(operation, key, before, after string) string {
	return fmt.Sprintf("json_build_object('op', %s, 'schema', %s, 'table', %s, 'key', %s, 'old', %s, 'new', %s)",
		operation, literal(c.Schema), literal(c.Table), key, before, after)
}

// insertInto begins the statement that writes events to the outbox of a schema.
func insertInto(outbox string) string {
	return "INSERT INTO " + pgx.Identifier{outbox, "outbox_events"}.Sanitize() + " (event_type, aggregate_type, aggregate_id, payload)"
}

// rows returns a subquery of a transition table: each row as jsonb without the columns that are not captured, and its id.
// OFFSET 0 keeps the planner from converting a row more than once. Both names are qualified: a column of the table may
// have any name.
func (c script) rows(table, as string) string {
	return fmt.Sprintf("(SELECT r, %s AS id FROM (SELECT to_jsonb(t.*) - capture.omit AS r FROM %s AS t OFFSET 0) AS t OFFSET 0) AS %s",
		c.id("r"), table, as)
}

// one returns the statement of an operation that has one transition table.
func (c script) one(operation, table, before, after string) string {
	return fmt.Sprintf("%s\n        SELECT %s, %s, t.id, %s\n        FROM %s;",
		insertInto(c.Outbox),
		literal(c.Types[operation]),
		literal(c.AggregateType),
		c.payload(literal(operation), c.key("t.r"), before, after),
		c.rows(table, "t"))
}

// both returns the statement of UPDATE. A changed key is in one of the tables only: the old key is deleted, and the new
// key inserted. A capture without these operations uses the type of the update for both.
func (c script) both() string {
	typeOf := func(operation string) string {
		if name := c.Types[operation]; name != "" {
			return literal(name)
		}
		return literal(c.Types[Update])
	}

	choose := func(value func(string) string) string {
		return fmt.Sprintf("CASE WHEN o.r IS NULL THEN %s WHEN n.r IS NULL THEN %s ELSE %s END",
			value(Insert), value(Delete), value(Update))
	}

	return fmt.Sprintf("%s\n        SELECT %s,\n            %s, coalesce(n.id, o.id), %s\n        FROM %s\n"+
		"        FULL JOIN %s ON n.id = o.id\n        WHERE o.r IS DISTINCT FROM n.r;",
		insertInto(c.Outbox),
		choose(typeOf),
		literal(c.AggregateType),
		c.payload(choose(literal), c.key("coalesce(n.r, o.r)"), "o.r", "n.r"),
		c.rows(oldRows, "o"),
		c.rows(newRows, "n"))
}

// truncated returns the statement of TRUNCATE, which has no transition tables.
func (c script) truncated() string {
	return fmt.Sprintf("%s\n        VALUES (%s, %s, NULL, %s);", insertInto(c.Outbox),
		literal(c.Types[Truncate]), literal(c.AggregateType), c.payload(literal(Truncate), "NULL", "NULL", "NULL"))
}

// body returns the code of the function.
func (c script) body() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n<<capture>>\nDECLARE\n    omit CONSTANT text[] := ARRAY(SELECT a.attname::text FROM pg_attribute AS a\n"+
		"        WHERE a.attrelid = TG_RELID AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> ALL (%s));\nBEGIN\n",
		literals(c.Columns))

	for i, operation := range c.Operations() {
		word := "ELSIF"
		if i == 0 {
			word = "IF"
		}

		statement := ""
		switch operation {
		case Insert:
			statement = c.one(Insert, newRows, "NULL", "t.r")
		case Update:
			statement = c.both()
		case Delete:
			statement = c.one(Delete, oldRows, "t.r", "NULL")
		case Truncate:
			statement = c.truncated()
		}

		fmt.Fprintf(&b, "    %s TG_OP = '%s' THEN\n        %s\n", word, strings.ToUpper(operation), statement)
	}

	b.WriteString("    END IF;\n    RETURN NULL;\nEND\n")
	return b.String()
}

// quoted puts text between dollar quotes that are not in it.
func quoted(text string) string {
	tag := "$notifyd$"
	for i := 1; strings.Contains(text, tag); i++ {
		tag = fmt.Sprintf("$notifyd%d$", i)
	}
	return tag + text + tag
}

// referencing returns the transition tables of a trigger.
func referencing(operation string) (before, after string) {
	switch operation {
	case Insert:
		return "", newRows
	case Update:
		return oldRows, newRows
	case Delete:
		return oldRows, ""
	default:
		return "", ""
	}
}

// createTrigger returns the statement for the trigger of an operation.
func (c script) createTrigger(operation string) string {
	clause := ""
	before, after := referencing(operation)
	if before != "" {
		clause += " OLD TABLE AS " + before
	}
	if after != "" {
		clause += " NEW TABLE AS " + after
	}
	if clause != "" {
		clause = "\n    REFERENCING" + clause
	}

	return fmt.Sprintf("CREATE OR REPLACE TRIGGER %s AFTER %s ON %s%s\n    FOR EACH STATEMENT EXECUTE FUNCTION %s();\n",
		pgx.Identifier{c.trigger(operation)}.Sanitize(), strings.ToUpper(operation), c.table(), clause, c.qualifiedFunction())
}

func (c script) table() string { return pgx.Identifier{c.Schema, c.Table}.Sanitize() }

func (c script) qualifiedFunction() string {
	return pgx.Identifier{c.Schema, c.function()}.Sanitize()
}

// statements returns the SQL that makes the capture. before are the parts of an earlier one, on the same table, that
// it has to drop.
func (c script) statements(before leftovers) (string, error) {
	description, err := json.Marshal(c.Capture)
	if err != nil {
		return "", err
	}

	var b strings.Builder
	function := c.qualifiedFunction()
	outbox := pgx.Identifier{c.Outbox}.Sanitize()

	fmt.Fprintf(&b, "CREATE OR REPLACE FUNCTION %s() RETURNS trigger\n    LANGUAGE plpgsql SECURITY DEFINER\n%sAS %s;\n",
		function, setClauses(), quoted(c.body()))
	fmt.Fprintf(&b, "COMMENT ON FUNCTION %s() IS %s;\n", function, literal(string(description)))

	b.WriteString("-- Otherwise a role with a table of its own could attach the function to it, and forge events.\n")
	fmt.Fprintf(&b, "REVOKE ALL ON FUNCTION %s() FROM PUBLIC;\n", function)

	b.WriteString("-- The function writes events as the role that owns it. Without this privilege each write of the table would fail.\n")
	fmt.Fprintf(&b, "DO %s;\n", quoted(fmt.Sprintf("\nBEGIN\n"+
		"    IF NOT has_schema_privilege(%s, 'USAGE') OR NOT has_column_privilege(%s, 'payload', 'INSERT') THEN\n"+
		"        RAISE insufficient_privilege USING MESSAGE = %s || quote_ident(current_user);\n    END IF;\nEND\n",
		literal(c.Outbox),
		literal(outbox+".outbox_events"),
		literal("permission denied to insert into "+outbox+".outbox_events for role "))))

	for _, operation := range c.Operations() {
		b.WriteString(c.createTrigger(operation))
	}
	for _, name := range before.triggers {
		fmt.Fprintf(&b, "DROP TRIGGER IF EXISTS %s ON %s;\n", pgx.Identifier{name}.Sanitize(), c.table())
	}
	for _, name := range before.functions {
		fmt.Fprintf(&b, "DROP FUNCTION IF EXISTS %s();\n", name)
	}

	return b.String(), nil
}

// leftovers are parts of an earlier capture of a table that a new one does not replace.
type leftovers struct {
	triggers  []string // names
	functions []string // qualified and quoted
}

// sameSettings reports whether a function has the settings of a capture.
func sameSettings(have []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(have)), settings())
}
