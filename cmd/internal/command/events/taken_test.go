package events

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestTakenMeanwhile: a command that acts on named deliveries fails if others take one between the count and the action.
func TestTakenMeanwhile(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	conn := testdb.Connect(t, url)
	if _, err := outboxsql.Migrate(t.Context(), conn, outboxsql.DefaultSchema, outboxsql.MigrateOptions{Notify: outboxsql.NotifyAuto}); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, conn, `INSERT INTO outbox_events (id, event_type, payload, state) OVERRIDING SYSTEM VALUE SELECT i, 'a', '1', 'deferred' FROM generate_series(1, 8) AS i`)
	testdb.Exec(t, conn, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at, attempts)
		SELECT i, 'mail', 'a', CASE WHEN i <= 4 THEN 'retry' ELSE 'dead' END, 'infinity', 1 FROM generate_series(1, 8) AS i`)

	const (
		begin   = `UPDATE outbox_deliveries SET state = 'running', lease_owner = 1, lease_token = 1, lease_until = 'infinity' WHERE event_id = $1`
		discard = `DELETE FROM outbox_deliveries WHERE event_id = $1`
	)
	for _, c := range []struct {
		name         string
		first, taken string
		take         string
		action       interface{ register(cmd *cobra.Command) }
		want         string
	}{
		{"bury", "1", "2", begin, &waitingAction{past: "buried", do: (*ops.Client).BuryWaiting}, "a relay is delivering the others at this moment"},
		{"retry", "3", "4", begin, &waitingAction{past: "retried", do: (*ops.Client).RetryWaiting}, "a relay is delivering the others at this moment"},
		{"replay", "5", "6", discard, &dlqAction{past: "replayed", do: (*ops.Client).ReplayDeadLetters}, "others were replayed, discarded or edited by somebody else meanwhile"},
		{"replay --wait", "7", "8", discard, &dlqAction{past: "replayed", do: (*ops.Client).ReplayDeadLetters, wait: true, timeout: 1}, "others were replayed, discarded or edited by somebody else meanwhile"},
	} {
		var stdout, stderr bytes.Buffer
		a := &command.App{Lookup: func(string) (string, bool) { return "", false }, Stdout: &stdout, Stderr: &stderr}
		counted := func(isCount bool) {
			if isCount {
				testdb.Exec(t, conn, c.take, c.taken)
			}
		}
		cmd := &cobra.Command{Use: c.name, SilenceErrors: true, SilenceUsage: true}
		switch w := c.action.(type) {
		case *waitingAction:
			do := w.do
			w.do = func(s *ops.Client, ctx context.Context, f ops.WaitingFilter, a ops.BulkAction) (ops.BulkResult, error) {
				defer counted(a.DryRun)

				return do(s, ctx, f, a)
			}
			cmd.RunE = func(cmd *cobra.Command, args []string) error { return w.run(cmd, a, args) }
		case *dlqAction:
			do := w.do
			w.do = func(s *ops.Client, ctx context.Context, f ops.DeadLetterFilter, a ops.BulkAction) (ops.BulkResult, error) {
				defer counted(a.DryRun)

				return do(s, ctx, f, a)
			}
			cmd.RunE = func(cmd *cobra.Command, args []string) error { return w.run(cmd, a, args) }
		}
		c.action.register(cmd)
		a.Strict(cmd)
		cmd.SetOut(&stdout)
		cmd.SetErr(&stderr)
		cmd.SetArgs([]string{c.first, c.taken, "--database-url", url})

		code := a.Report(cmd, cmd.ExecuteContext(t.Context()))
		if code != command.ExitFailure || !strings.Contains(stdout.String(), "1 of 1") || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%s: %d, %s%s", c.name, code, &stdout, &stderr)
		}
	}
}
