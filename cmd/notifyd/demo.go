package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/cmd/internal/outboxes"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/demo"
	"github.com/notifyd/notifyd/internal/cli"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// envSpare holds the URL of an empty database of "make demo" for your own
// configuration; "demo --keep" shows it.
const envSpare = "NOTIFYD_DEMO_SPARE_URL"

func newDemoCmd(a *command.App) *cobra.Command {
	var (
		orders   int
		database string
		mode     string
		keep     bool
		form     *cli.OneOf
	)

	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the whole way from an order to its mail",
		Long: `demo places orders in real transactions, some of which are rolled back, and
delivers their events: a mail for each order, to a mail server that it starts, a
line in a log, and a call of a Go function. At the end it counts what arrived. It
exits with 1 if anything was lost. With --mode stream the relay reads the events
like a log, by a position for each destination.

It needs a PostgreSQL, in which it makes a schema of its own and drops it at the end:
that of --database-url, $DATABASE_URL, or the variables PGHOST, PGPORT, PGDATABASE and
PGSERVICE. Without them it looks for one on this machine: at the sockets in
/var/run/postgresql and /tmp, then at localhost:5432. It prints which one it uses. In a
clone of notifyd, "make demo" brings a PostgreSQL along.`,
		Example: "  notifyd demo\n  notifyd demo --mode stream\n  notifyd demo --orders 500 -o json\n  notifyd demo --keep",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if orders < 1 {
				return command.UsageErrorf("--orders %d is below 1", orders)
			}
			if err := outboxsql.Mode(mode).Validate(); err != nil {
				return command.UsageErrorf("--mode: %w", err)
			}

			out := cmd.OutOrStdout()
			asJSON := form.Value == "json"
			if asJSON {
				out = cmd.ErrOrStderr() // standard output is for the result alone
			}

			databases, err := demoDatabases(a, database)
			if err != nil {
				return err
			}

			log := cli.NewLogger(cmd.ErrOrStderr(), command.First(a.LogLevel.Value, "warn"), command.First(a.LogFormat.Value, "auto"))
			ctx, stop := untilSignal(cmd.Context(), log)
			defer stop()

			spare, _ := a.Lookup(envSpare)
			result, err := demo.Run(ctx, demo.Options{
				Spare:     spare,
				Orders:    orders,
				Databases: databases,
				Mode:      outboxsql.Mode(mode),
				Keep:      keep,
				Out:       out,
				Width:     widthOf(out, a),
				Log:       log,
			})
			if err != nil {
				return demoError(ctx, err)
			}

			if asJSON {
				if err := printJSON(cmd.OutOrStdout(), result); err != nil {
					return err
				}
			}
			return verdict(result)
		},
	}

	cmd.Flags().IntVar(&orders, "orders", 50, "`number` of orders to commit")
	command.AddDatabaseURL(cmd, &database)
	command.AddMode(cmd, &mode, string(outboxsql.ModeQueue))
	cmd.Flags().BoolVar(&keep, "keep", false, "leave everything running afterwards, to try things out")
	form = command.AddFormat(cmd) // of JSON, standard output has one line
	return cmd
}

// demoDatabases returns the given database, else those to look for.
func demoDatabases(a *command.App, url string) ([]demo.Database, error) {
	place := config.Mistake{File: command.DatabaseFlag}
	if url == "" {
		url, _ = a.Lookup("DATABASE_URL")
		place.File = "$DATABASE_URL"
	}
	if url == "" {
		place.File = "the environment variables PG*"
		named := func(name string) bool { value, _ := a.Lookup(name); return value != "" }
		if !slices.ContainsFunc([]string{"PGHOST", "PGPORT", "PGDATABASE", "PGSERVICE"}, named) {
			return demo.Local(), nil
		}
	}
	if _, err := outboxes.ParseURL(place, url, pgxpool.ParseConfig); err != nil {
		return nil, command.FromCommandLine(place, err)
	}
	return []demo.Database{{URL: url, Place: place.File}}, nil
}

// demoError returns the reason why a demo ended early.
func demoError(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return errors.New("the demo was interrupted")
	}

	missing, ok := errors.AsType[*demo.NotFoundError](err)
	if !ok {
		return err
	}

	var b strings.Builder
	for _, t := range missing.Tried {
		refused, ok := errors.AsType[*pgconn.ConnectError](t.Err)
		if ok && !t.Guessed {
			return outboxes.ConnectError(refused)
		}
		fmt.Fprintf(&b, "\n  %s: %s", t.Place, whyNot(t.Err))
	}

	return fmt.Errorf("the demo needs a PostgreSQL, and there is none that it may use:%s\n%s", &b, demoCures)
}

// demoCures is what to do without a PostgreSQL.
const demoCures = `do one of these:
  make demo                          in a clone of notifyd: starts one for the demo, and installs it if need be
  notifyd demo --database-url URL    uses yours, in a schema of its own that is dropped at the end
  docker run --rm -d -p 127.0.0.1:5432:5432 -e POSTGRES_PASSWORD=demo postgres
                                     then notifyd demo --database-url postgres://postgres:demo@127.0.0.1:5432/postgres`

// whyNot is the reason in a few words: the user has not asked for this database, and
// the error of pgx has a line for each address.
func whyNot(err error) string {
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
		return "no server"
	}
	if said, ok := errors.AsType[*pgconn.PgError](err); ok {
		return said.Message
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}

// widthOf returns a function for the width of a terminal, nil for another file, or a
// terminal that cannot overwrite a line.
func widthOf(out any, a *command.App) func() int {
	f, ok := out.(*os.File)
	if kind, _ := a.Lookup("TERM"); !ok || kind == "dumb" || !cli.IsTerminal(f) {
		return nil
	}

	return func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil || width < 1 {
			return 80 // of an unknown width
		}
		return width
	}
}

// errDemo is returned after a demo with a wrong result.
var errDemo = errors.New("not everything arrived as it should have")

func verdict(result demo.Result) error {
	if !result.OK() {
		return errDemo
	}
	return nil
}

func printJSON(w io.Writer, result demo.Result) error {
	line, err := json.Marshal(result)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}
