package command

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/internal/cli"

	"github.com/notifyd/notifyd/cmd/internal/config"
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

// Sections runs a command for each of several outboxes, each below its name. One that fails keeps none
// of the others back, and counts in the error.
func Sections(w io.Writer, names []string, do func(name string) error) error {
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
			if _, err := fmt.Fprintf(w, "failed: %s\n", Printable(cli.OneLine(err))); err != nil {
				return err
			}
		}
	}

	return ofOutboxes(failed, len(names))
}

// JSONSections writes what a command finds in each of several outboxes, by name.
func JSONSections(w io.Writer, names []string, read func(name string) (any, error)) error {
	all := make(map[string]any, len(names))
	failed := 0
	for _, name := range names {
		found, err := read(name)
		if err != nil {
			failed++
			found = map[string]string{"error": cli.OneLine(err)}
		}
		all[name] = found
	}

	if err := WriteJSON(w, all); err != nil {
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
