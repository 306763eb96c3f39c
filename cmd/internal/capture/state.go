package capture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// The levels of a [Problem], as package doctor has them.
const (
	Note    = "note"
	Warning = "warning"
	Error   = "error"
)

// Problem is a difference between a capture and the table or the triggers, with its cure.
type Problem struct {
	Level string `json:"severity"`
	Text  string `json:"text"`
	Cure  string `json:"cure"`
}

// State is an installed capture.
type State struct {
	Capture

	// Relation is the table that has the triggers; "" if no table has them.
	Relation string `json:"relation"`
	// Enabled reports whether the triggers of all operations fire for normal writers.
	Enabled bool `json:"enabled"`
	// Function is the qualified name of the function, and Owner its owner.
	Function string `json:"function"`
	Owner    string `json:"owner"`
	// Problems are empty if the capture works as described, and as [Prepare] would write it now.
	Problems []Problem `json:"problems"`

	oid      uint32 // of the relation
	triggers []installed
}

// function is a row of pg_proc.
type function struct {
	OID         uint32
	Schema      string
	Name        string
	Owner       string
	Description *string
	Source      string
	Definer     bool
	Settings    []string
	Public      bool  // everyone may execute it
	MayWrite    *bool // the owner may insert events; nil if the outbox is gone
}

const sqlFunctions = `SELECT p.oid, n.nspname::text, p.proname::text, pg_get_userbyid(p.proowner)::text,
	obj_description(p.oid, 'pg_proc'), p.prosrc, p.prosecdef, coalesce(p.proconfig, '{}'),
	has_function_privilege('public', p.oid, 'EXECUTE'),
	has_schema_privilege(p.proowner, to_regnamespace($1), 'USAGE')
		AND has_column_privilege(p.proowner, to_regclass($2), 'payload', 'INSERT')
	FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
	WHERE p.prorettype = 'trigger'::regtype AND p.proname LIKE 'notifyd\_capture\_%' ORDER BY n.nspname, p.proname`

// installed is a trigger of a capture.
type installed struct {
	Relation      uint32
	Name          string
	Schema, Table string
	Type          int16  // pg_trigger.tgtype
	Old, New      string // the transition tables
	Conditional   bool
	Fires         string // pg_trigger.tgenabled
}

const sqlTriggers = `SELECT t.tgrelid, t.tgname::text, n.nspname::text, c.relname::text, t.tgtype,
	coalesce(t.tgoldtable::text, ''), coalesce(t.tgnewtable::text, ''), t.tgqual IS NOT NULL, t.tgenabled::text
	FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
	WHERE t.tgfoid = $1::oid AND NOT t.tgisinternal ORDER BY t.tgrelid, t.tgname`

// operation returns the operation of a trigger that runs after each statement with the transition tables of a capture, and
// "" for another trigger.
func (t *installed) operation() string {
	// The bits of pg_trigger.tgtype; no bit means after each statement.
	types := map[int16]string{4: Insert, 8: Delete, 16: Update, 32: Truncate}
	operation := types[t.Type]
	if before, after := referencing(operation); t.Conditional || t.Old != before || t.New != after {
		return ""
	}
	return operation
}

// List returns the captures of an outbox, in the order of their tables. It needs no privilege.
func List(ctx context.Context, db pgschema.Querier, outbox string) (list []State, err error) {
	schema := pgx.Identifier{outbox}.Sanitize()
	functions, err := all[function](ctx, db, sqlFunctions, schema, schema+".outbox_events")
	if err != nil {
		return nil, fmt.Errorf("read the functions of captures: %w", err)
	}

	for _, f := range functions {
		found, err := f.states(ctx, db, outbox)
		if err != nil {
			return nil, err
		}
		list = append(list, found...)
	}

	slices.SortFunc(list, compare)
	return list, nil
}

// states returns the captures of a function: one, or one for each table that uses it. It returns none of another outbox.
func (f *function) states(ctx context.Context, db pgschema.Querier, outbox string) (list []State, err error) {
	s := State{Function: pgx.Identifier{f.Schema, f.Name}.Sanitize(), Owner: f.Owner, Problems: []Problem{}}

	described := f.Description != nil && json.Unmarshal([]byte(*f.Description), &s.Capture) == nil && s.Outbox != ""
	if !described {
		s.Capture = Capture{Outbox: outbox}
		if !strings.Contains(f.Source, insertInto(outbox)) {
			return nil, nil
		}
	}

	if s.Outbox != outbox {
		return nil, nil
	}

	triggers, err := all[installed](ctx, db, sqlTriggers, f.OID)
	if err != nil {
		return nil, fmt.Errorf("read the triggers of %s: %w", s.Function, err)
	}

	if len(triggers) == 0 {
		if !described {
			return nil, nil // a function that does nothing, and says nothing
		}
		s.Problems = []Problem{s.lost(ctx, db)}
		return []State{s}, nil
	}

	for len(triggers) > 0 {
		n := slices.IndexFunc(triggers, func(t installed) bool { return t.Relation != triggers[0].Relation })
		if n < 0 {
			n = len(triggers)
		}

		of := triggers[:n]
		triggers = triggers[n:]

		on := s
		on.Problems = []Problem{}
		on.triggers = of
		on.oid = of[0].Relation
		on.Relation = qualified(of[0].Schema, of[0].Table)
		if !described {
			on.Schema = of[0].Schema
			on.Table = of[0].Table
		}

		if err := on.examine(ctx, db, f, described); err != nil {
			return nil, err
		}
		list = append(list, on)
	}

	return list, nil
}

// lost returns the problem of a capture without triggers.
func (s *State) lost(ctx context.Context, db pgschema.Querier) Problem {
	if r, err := one[relation](ctx, db, sqlRelation+"to_regclass($1::text)", s.Name()); err == nil && r.refuse() == nil {
		return Problem{Error, fmt.Sprintf("The table %s has no trigger of its capture: it was replaced, "+
			"or the triggers were dropped. Its changes write no event.", s.Name()), s.again(ctx, db, r)}
	}

	return Problem{
		Warning,
		fmt.Sprintf("The table %s of a capture is gone, and its function is left.", s.Name()),
		"notifyd capture remove " + shellWord(s.Name()) + s.schemaFlag(),
	}
}

// again returns the command that makes the capture again for a table, with the same columns.
func (s *State) again(ctx context.Context, db pgschema.Querier, r *relation) string {
	columns, err := all[column](ctx, db, sqlColumns, r.OID)
	if err != nil {
		columns = nil // the command has all columns then
	}
	return s.commandFor(r, columns, func(name string) bool { return !slices.Contains(s.Columns, name) })
}

// commandFor returns the command that makes the capture for a table, without the columns that without selects.
func (s *State) commandFor(r *relation, columns []column, without func(name string) bool) string {
	c := s.Capture
	c.Schema = r.Schema
	c.Table = r.Table

	var exclude []string
	for _, column := range columns {
		if !column.Virtual && without(column.Name) {
			exclude = append(exclude, column.Name)
		}
	}
	return c.Command(exclude)
}

func (s *State) schemaFlag() string {
	if s.Outbox == outboxsql.DefaultSchema {
		return ""
	}
	return " --schema " + shellWord(s.Outbox)
}

func (s *State) add(level, cure, format string, args ...any) {
	s.Problems = append(s.Problems, Problem{level, fmt.Sprintf(format, args...), cure})
}

// examine fills in the problems.
func (s *State) examine(ctx context.Context, db pgschema.Querier, f *function, described bool) error {
	r, err := one[relation](ctx, db, sqlRelation+"$1::oid", s.oid)
	if err != nil {
		return fmt.Errorf("read table %s: %w", s.Relation, err)
	}

	s.Enabled = s.fires()
	if !described {
		s.add(Warning, "notifyd capture add "+shellWord(s.Relation)+s.schemaFlag()+" --install, with the flags of the first time",
			"The comment of the function %s is not the description of a capture: what the events of %s have is unknown.",
			s.Function, s.Relation)
		return nil
	}

	columns, err := all[column](ctx, db, sqlColumns, s.oid)
	if err != nil {
		return fmt.Errorf("read the columns of %s: %w", s.Relation, err)
	}

	indexes, err := all[index](ctx, db, sqlIndexes, s.oid)
	if err != nil {
		return fmt.Errorf("read the indexes of %s: %w", s.Relation, err)
	}

	captured := func(name string) bool { return slices.Contains(s.Columns, name) }
	again := s.commandFor(r, columns, func(name string) bool { return !captured(name) })
	s.examineTriggers(again)

	if f.Source != (script{&s.Capture}).body() || !f.Definer || !sameSettings(f.Settings) {
		s.add(Warning, again,
			"The function %s is not the one that capture add writes: the events of %s may differ from the description.",
			s.Function, s.Relation)
	}

	if f.Public {
		s.add(Warning, "REVOKE ALL ON FUNCTION "+s.Function+"() FROM PUBLIC",
			"Every role may attach the function %s to a table of its own, and forge events.", s.Function)
	}

	switch {
	case f.MayWrite == nil:
		s.add(Error, "notifyd capture remove "+shellWord(s.Relation)+s.schemaFlag(),
			"The outbox in schema %s is gone: writes of %s fail.", pgx.Identifier{s.Outbox}.Sanitize(), s.Relation)
	case !*f.MayWrite:
		cure := fmt.Sprintf("GRANT USAGE ON SCHEMA %[1]s TO %[2]s; "+
			"GRANT INSERT (event_type, aggregate_type, aggregate_id, payload) ON %[1]s.outbox_events TO %[2]s",
			pgx.Identifier{s.Outbox}.Sanitize(), pgx.Identifier{s.Owner}.Sanitize())
		s.add(Error, cure,
			"The role %s, which owns the function of the capture of %s, may not insert events: writes of the table fail.",
			s.Owner, s.Relation)
	}

	if s.Relation != s.Name() {
		s.add(Warning, again+", if the table was renamed; otherwise notifyd capture remove "+shellWord(s.Relation)+s.schemaFlag(),
			"The capture of %s is on the table %s, and its events have the first name.", s.Name(), s.Relation)
	}

	s.examineColumns(r, columns, indexes, again)
	return nil
}

// fires reports whether the triggers of all operations fire for normal writers.
func (s *State) fires() bool {
	for _, operation := range s.Operations() {
		isFiring := func(t installed) bool { return t.operation() == operation && (t.Fires == "O" || t.Fires == "A") }
		if !slices.ContainsFunc(s.triggers, isFiring) {
			return false
		}
	}
	return len(s.triggers) > 0
}

// examineTriggers compares the triggers with the operations.
func (s *State) examineTriggers(again string) {
	for _, operation := range s.Operations() {
		i := slices.IndexFunc(s.triggers, func(t installed) bool {
			return t.operation() == operation && t.Name == s.trigger(operation)
		})
		if i < 0 {
			s.add(Error, again, "The table %s has no trigger of its capture for %s: these changes write no event.",
				s.Relation, strings.ToUpper(operation))
			continue
		}

		t := s.triggers[i]
		cure := fmt.Sprintf("ALTER TABLE %s ENABLE TRIGGER %s",
			pgx.Identifier{t.Schema, t.Table}.Sanitize(), pgx.Identifier{t.Name}.Sanitize())
		switch t.Fires {
		case "D":
			s.add(Error, cure, "The trigger %s of %s is disabled: these changes write no event.", t.Name, s.Relation)
		case "R":
			s.add(Error, cure, "The trigger %s of %s is enabled for replicas only: changes of normal writers write no event.",
				t.Name, s.Relation)
		}
	}

	for _, t := range s.triggers {
		if !slices.Contains(s.Operations(), t.operation()) || t.Name != s.trigger(t.operation()) {
			cure := fmt.Sprintf("DROP TRIGGER %s ON %s",
				pgx.Identifier{t.Name}.Sanitize(), pgx.Identifier{t.Schema, t.Table}.Sanitize())
			s.add(Error, cure, "The trigger %s of %s is not one that capture add writes: changes can fail, or write events twice.",
				t.Name, s.Relation)
		}
	}
}

// examineColumns compares the columns of the table with the description.
func (s *State) examineColumns(r *relation, columns []column, indexes []index, again string) {
	var keyGone, gone, added []string
	for _, name := range s.Columns {
		switch {
		case slices.Contains(names(columns), name):
		case slices.Contains(s.Key, name):
			keyGone = append(keyGone, name)
		default:
			gone = append(gone, name)
		}
	}

	for _, c := range columns {
		if !c.Virtual && !slices.Contains(s.Columns, c.Name) && !slices.Contains(s.Excluded, c.Name) {
			added = append(added, c.Name)
		}
	}

	if len(keyGone) > 0 {
		s.add(Error, "notifyd capture add "+shellWord(s.Relation)+s.schemaFlag()+" --install, with a new --key",
			"The key of the capture of %s is gone: %s. Its events have no aggregate_id, and each update is a delete and an insert.",
			s.Relation, strings.Join(keyGone, ", "))
	} else if problem := keyProblem(columns, indexes, s.Key); problem != "" {
		s.add(Error, "make the key unique and NOT NULL, or notifyd capture add with another --key",
			"The key of the capture of %s does not identify a row any more: %s.", s.Relation, problem)
	}

	if len(gone) > 0 {
		s.add(Warning, again, "Columns in the events of %s are gone from the table: %s. Events lack them.",
			s.Relation, strings.Join(gone, ", "))
	}

	if len(added) > 0 {
		with := s.commandFor(r, columns, func(name string) bool {
			return !slices.Contains(s.Columns, name) && !slices.Contains(added, name)
		})
		s.add(Note, "to have them in the events: "+with+"; to leave them out: "+again,
			"The table %s has columns that its capture does not know: %s. Events lack them.", s.Relation, strings.Join(added, ", "))
	}
}

// Removal is the SQL that removes captures of a table.
type Removal struct {
	// SQL is empty without a capture.
	SQL string
	// Relations are the tables whose triggers it drops.
	Relations []string
	// Functions are the functions that it drops.
	Functions []string
}

// PrepareRemoval returns the SQL that removes the capture of a table into an outbox, or the function that a dropped table
// has left behind. It changes nothing. Without a capture the result is empty.
func PrepareRemoval(ctx context.Context, db outboxsql.DB, outbox, table string) (*Removal, error) {
	list, err := List(ctx, db, outbox)
	if err != nil {
		return nil, err
	}

	r, err := find(ctx, db, table)
	if err != nil && !errors.Is(err, ErrInvalid) {
		return nil, err
	}

	removal := &Removal{}
	var b strings.Builder
	for i, s := range list {
		if !s.isOf(r, table) {
			continue
		}

		for _, t := range s.triggers {
			fmt.Fprintf(&b, "DROP TRIGGER IF EXISTS %s ON %s;\n",
				pgx.Identifier{t.Name}.Sanitize(), pgx.Identifier{t.Schema, t.Table}.Sanitize())
		}

		if s.Relation != "" {
			removal.Relations = append(removal.Relations, s.Relation)
		}

		isShared := slices.ContainsFunc(list, func(other State) bool {
			return other.Function == s.Function && other.Relation != s.Relation
		})
		if !isShared {
			fmt.Fprintf(&b, "DROP FUNCTION IF EXISTS %s();\n", list[i].Function)
			removal.Functions = append(removal.Functions, s.Function)
		}
	}

	removal.SQL = b.String()
	return removal, nil
}

// isOf reports whether the capture belongs to a table. r is nil if the table does not exist. The name decides for a capture
// without a relation.
func (s *State) isOf(r *relation, table string) bool {
	switch {
	case s.Relation != "":
		return r != nil && s.oid == r.OID
	case r != nil:
		return s.Schema == r.Schema && s.Table == r.Table
	default:
		return s.Name() == table || s.Table == table
	}
}
