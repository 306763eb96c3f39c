package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/store"
)

// findTimeout bounds the query for outboxes, with its connection.
const findTimeout = 10 * time.Second

// findOutboxes returns the outboxes of a configuration: those of its list, and those that its query
// finds. Rows that describe no outbox are in wrong, and keep no other from being found.
func findOutboxes(ctx context.Context, c *config.Config, path string) (all []config.Outbox, wrong, err error) {
	all = slices.Clone(c.Outboxes.List)
	if c.Outboxes.Query == "" {
		return all, nil, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, findTimeout, fmt.Errorf("the database did not answer within %v", findTimeout))
	defer cancel()
	found, err := queryOutboxes(ctx, c, path)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, nil, fmt.Errorf("outboxes.query: %w", err)
	}
	places, ids := make(map[config.Place]string), make(positionIDs)
	for i := range all {
		places[c.For(&all[i]).Place()] = all[i].Name
		_ = ids.claim(c.For(&all[i]), all[i].Name) // checkURLs has reported it
	}
	var mistakes []error
	for i := range found {
		o := &found[i]
		place := c.For(o).Place()
		err := o.Validate()
		before, taken := places[place]
		if err == nil && !taken {
			err = ids.claim(c.For(o), o.Name)
		}
		switch {
		case err != nil:
		case slices.ContainsFunc(all, func(other config.Outbox) bool { return other.Name == o.Name }):
			err = errors.New("there is another one of that name")
		case taken:
			err = fmt.Errorf("%s has the same schema of the same database", before)
		default:
			places[place] = o.Name
			all = append(all, *o)
			continue
		}
		mistakes = append(mistakes, fmt.Errorf("outboxes.query: outbox %q: %s", o.Name, oneLine(err)))
	}
	return all, errors.Join(mistakes...), nil
}

// queryOutboxes sends the query, in a transaction that cannot write.
func queryOutboxes(ctx context.Context, c *config.Config, path string) ([]config.Outbox, error) {
	cfg, err := parseURL(path+": database.url", c.Database.URL.Reveal(), pgx.ParseConfig)
	if err != nil {
		return nil, err
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // every value as text, whatever its type
	cfg.RuntimeParams["application_name"] = "notifyd/outboxes"
	conn, err := open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer store.Close(ctx, conn)
	var all []config.Outbox
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, c.Outboxes.Query)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, outboxOf)
		return err
	})
	return all, err
}

// outboxOf reads a row, by the names of its columns.
func outboxOf(row pgx.CollectableRow) (o config.Outbox, err error) {
	named := false
	for i, value := range row.RawValues() {
		text := string(value) // empty for null
		switch column := row.FieldDescriptions()[i].Name; column {
		case "name":
			o.Name, named = text, true
		case "schema":
			o.Schema = text
		case "database":
			o.Database = text
		case "url":
			o.URL = handlers.NewSecret(text)
		default:
			return o, fmt.Errorf("the column %q is unknown: there are name, schema, database and url", column)
		}
	}
	if !named {
		return o, errors.New("the column name is missing")
	}
	return o, nil
}

// shownNames bounds the names in a message.
const shownNames = 30

// listNames are the names of outboxes, for a message.
func listNames(all []config.Outbox) string {
	names := namesOfOutboxes(all)
	switch {
	case len(names) == 0:
		return "there are none now"
	case len(names) > shownNames:
		return fmt.Sprintf("there are %s and %d more", strings.Join(names[:shownNames], ", "), len(names)-shownNames)
	default:
		return "there are " + strings.Join(names, ", ")
	}
}

func namesOfOutboxes(all []config.Outbox) []string {
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	slices.Sort(names)
	return names
}

// choose returns the configuration of the chosen outbox, which is c itself where there is one only, or
// where --schema says which tables are meant.
func (f *databaseFlags) choose(ctx context.Context, c *config.Config, path string) (*config.Config, error) {
	switch {
	case !c.Outboxes.Used() && f.outbox != "":
		return nil, usageErrorf("--outbox: %s has no outboxes", path)
	case !c.Outboxes.Used(), f.outbox == "" && f.schema != "":
		return c, nil
	case f.isGiven == nil: // the command has no --outbox: it connects to nothing
		return nil, usageErrorf("%s has many outboxes: --schema says whose tables are meant", path)
	}
	if err := f.find(ctx, c, path); err != nil {
		return nil, err
	}
	if f.outbox == "" {
		return nil, usageErrorf("%s has many outboxes: choose one with --outbox: %s", path, listNames(f.found))
	}
	i := slices.IndexFunc(f.found, func(o config.Outbox) bool { return o.Name == f.outbox })
	if i < 0 {
		return nil, usageErrorf("there is no outbox %q: %s", f.outbox, listNames(f.found))
	}
	o := &f.found[i]
	if same := c.Outboxes.Outbox(o.Name); same != nil { // what this part of the file says of it
		o = same
	}
	return c.For(o), nil
}

// find fills in the outboxes, once.
func (f *databaseFlags) find(ctx context.Context, c *config.Config, path string) (err error) {
	if f.found == nil {
		f.found, _, err = findOutboxes(ctx, c, path) // the relay reports the rows that are wrong
	}
	return err
}

// several returns the names of all outboxes, for a command that has a section for each; nil where there is
// one only, or one is chosen.
func (f *databaseFlags) several(ctx context.Context, a *app) ([]string, error) {
	if f.outbox != "" || f.schema != "" {
		return nil, nil
	}
	path, err := config.Find(a.configPath, a.lookup)
	if err != nil {
		return nil, nil //nolint:nilerr // there is no file at all
	}
	c, err := config.LoadDatabase(path, f.url, a.lookup)
	if err != nil || !c.Outboxes.Used() {
		return nil, err
	}
	if err := f.find(ctx, c, path); err != nil {
		return nil, err
	}
	return append([]string{}, namesOfOutboxes(f.found)...), nil
}

// each calls do with the flags, or where there are several outboxes and none is chosen with those of each, in a section of
// its own.
func (f *databaseFlags) each(cmd *cobra.Command, a *app, do func(one databaseFlags) error) error {
	names, err := f.several(cmd.Context(), a)
	if err != nil {
		return err
	}
	if names == nil {
		return do(*f)
	}
	return sections(cmd.OutOrStdout(), names, func(name string) error { return do(f.of(name)) })
}

// of returns the flags with which an outbox is chosen.
func (f *databaseFlags) of(name string) databaseFlags {
	one := *f
	one.outbox = name
	return one
}

// sections runs a command for each of several outboxes, each below its name. One that fails keeps none
// of the others back, and counts in the error.
func sections(w io.Writer, names []string, do func(name string) error) error {
	failed := 0
	for i, name := range names {
		gap := "\n"
		if i == 0 {
			gap = ""
		}
		if _, err := fmt.Fprintf(w, "%soutbox %s\n", gap, name); err != nil {
			return err
		}
		if err := do(name); err != nil {
			failed++
			if _, err := fmt.Fprintf(w, "failed: %s\n", printable(oneLine(err))); err != nil {
				return err
			}
		}
	}
	return ofOutboxes(failed, len(names))
}

// jsonSections writes what a command finds in each of several outboxes, by name.
func jsonSections(w io.Writer, names []string, read func(name string) (any, error)) error {
	all, failed := make(map[string]any, len(names)), 0
	for _, name := range names {
		found, err := read(name)
		if err != nil {
			failed++
			found = map[string]string{"error": oneLine(err)}
		}
		all[name] = found
	}
	if err := writeJSON(w, all); err != nil {
		return err
	}
	return ofOutboxes(failed, len(names))
}

func ofOutboxes(failed, all int) error {
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %s failed", failed, count(all, "outbox"))
}
