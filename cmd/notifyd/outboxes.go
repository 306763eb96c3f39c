package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/internal/outboxes"

	"github.com/notifyd/notifyd/internal/cli"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/config"
)

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
		f.found, _, err = outboxes.Find(ctx, c, path) // the relay reports the rows that are wrong
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
			if _, err := fmt.Fprintf(w, "failed: %s\n", printable(cli.OneLine(err))); err != nil {
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
			found = map[string]string{"error": cli.OneLine(err)}
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
	return fmt.Errorf("%d of %s failed", failed, cli.Count(all, "outbox"))
}
