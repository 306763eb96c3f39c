package schema

import (
	"fmt"
	"io"
	"strings"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// preview is the result of a dry run.
type preview struct{ outboxsql.Preview }

// trouble is that a step would be refused.
func (p preview) trouble() error {
	for _, step := range p.Steps {
		if step.Refused != "" {
			return fmt.Errorf("%s: refused now: %s", step.Does, step.Refused)
		}
	}
	return nil
}

// printPreview prints the steps, and fails if one would be refused.
func printPreview(out io.Writer, p preview) error {
	var text strings.Builder
	fmt.Fprintf(&text, "schema %s:\n", p.Schema)
	for _, step := range p.Steps {
		fmt.Fprintf(&text, "- would %s\n  locks: %s\n", step.Does, step.Locks)
		if step.Final {
			text.WriteString("  asks first, without --yes\n")
		}
		if step.Refused != "" {
			fmt.Fprintf(&text, "  refused now: %s\n", step.Refused)
		}
	}

	fmt.Fprintf(&text, "%v\n", p.Waiting)
	if p.InUse != "" {
		fmt.Fprintf(&text, "would wait for: %s\n", p.InUse)
	}
	text.WriteString("nothing was changed\n")

	if _, err := io.WriteString(out, text.String()); err != nil {
		return err
	}
	return p.trouble()
}
