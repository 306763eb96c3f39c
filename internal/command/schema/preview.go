package schema

import (
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/command"
	"github.com/notifyd/notifyd/internal/store"
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

// preview returns the changes that the flags ask for.
func (f *upFlags) preview() outboxsql.PreviewOptions {
	o := outboxsql.PreviewOptions{Notify: outboxsql.NotifyMode(f.notify), Mode: outboxsql.Mode(f.mode), Partition: f.partitions != ""}
	if f.serialize.Value != "" {
		on := f.serialize.Value == "on"
		o.Serialize = &on
	}
	return o
}

// showEach shows what the flags would do to each outbox.
func (f *upFlags) showEach(cmd *cobra.Command, a *command.App, progress *command.Progress) error {
	return each(cmd, a, &f.DatabaseFlags, f.form, func(db command.DatabaseFlags) (preview, error) {
		conn, err := db.Connect(cmd.Context(), a)
		if err != nil {
			return preview{}, err
		}
		defer store.Close(cmd.Context(), conn)

		progress.Say("looking at schema %s", db.Schema)
		p, err := outboxsql.PreviewOf(cmd.Context(), conn, db.Schema, f.preview())
		if err != nil {
			return preview{}, err
		}
		for _, role := range []struct{ name, may string }{{f.grants.Writer, "insert events"}, {f.grants.Relay, "deliver events"}} {
			if role.name == "" {
				continue
			}
			step := outboxsql.PreviewStep{Does: fmt.Sprintf("let role %s %s", pgx.Identifier{role.name}.Sanitize(), role.may), Locks: "nothing that is in use"}
			var exists bool
			if err := conn.QueryRow(cmd.Context(), `SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)`, role.name).Scan(&exists); err != nil {
				return preview{}, fmt.Errorf("look for the role %q: %w", role.name, err)
			}
			if !exists {
				step.Refused = "the role does not exist: create it first, with CREATE ROLE"
			}
			p.Steps = append(p.Steps, step)
		}
		return preview{p}, nil
	}, printPreview)
}

// printPreview prints what would be done, and fails if a step would be refused.
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
