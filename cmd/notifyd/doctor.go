package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/notifyd/notifyd/internal/daemon"

	"github.com/notifyd/notifyd/internal/outboxes"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/destinations"
	"github.com/notifyd/notifyd/internal/doctor"
	"github.com/notifyd/notifyd/internal/safecall"
	"github.com/notifyd/notifyd/internal/session"
)

// besideClaims are the connections of a relay that claim nothing: those that
// listen, hold the notify lock, prove life and answer queries, and two more where it reads a stream.
const besideClaims = 6

func newDoctorCmd(a *app) *cobra.Command {
	var db databaseFlags
	var strict bool
	form := newFormat()
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what keeps notifyd from working well",
		Long: `doctor examines the schema and its trigger, the connection to the database, its
settings and other users, and connects to every destination without sending anything.
Each finding has a severity (ok, note, warning, error) and a cure. It changes nothing.

It works with --database-url alone; destinations need the configuration file. It
exits with 1 if there is an error, with --strict also for a warning.`,
		Example: "  notifyd doctor\n  notifyd doctor --strict -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			names, err := db.several(cmd.Context(), a)
			if err != nil {
				return err
			}
			if names != nil && form.Value == "json" {
				return jsonSections(cmd.OutOrStdout(), names, func(name string) (any, error) { return examine(cmd.Context(), a, db.of(name)) })
			}
			return db.each(cmd, a, func(one databaseFlags) error {
				report, err := examine(cmd.Context(), a, one)
				if err != nil {
					return err
				}
				if err := printReport(cmd.OutOrStdout(), form.Value, report); err != nil {
					return err
				}
				return health(report, strict)
			})
		},
	}
	db.register(cmd)
	addFormat(cmd, form)
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 1 for warnings, too")
	return cmd
}

// examine looks at one outbox.
func examine(ctx context.Context, a *app, db databaseFlags) (doctor.Report, error) {
	o, closers, err := doctorOptions(ctx, a, &db)
	defer func() { _ = destinations.CloseAll(closers) }() // nothing was sent
	if err != nil {
		return doctor.Report{}, err
	}
	return doctor.Run(ctx, o), nil
}

// newFormat returns the flag for the format of results.
func newFormat() *cli.OneOf { return &cli.OneOf{Words: []string{"table", "json"}, Value: "table"} }

// addFormat adds the flag to a command, with its completion.
func addFormat(cmd *cobra.Command, o *cli.OneOf) {
	cmd.Flags().VarP(o, "output", "o", "table or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(o.Words, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// doctorOptions opens the destinations, which makes no connection. The closers are to
// be closed even if there is an error.
func doctorOptions(ctx context.Context, a *app, db *databaseFlags) (o doctor.Options, closers []io.Closer, err error) {
	if err := db.resolve(ctx, a); err != nil {
		return o, nil, err
	}
	cfg, err := db.parse()
	if err != nil {
		return o, nil, err
	}
	o.Connect, o.Schema = connector(cfg, "doctor"), db.schema
	c, path, err := db.optional(ctx, a, func(path, url string, _ config.LookupEnv) (*config.Config, error) { return a.loadAt(path, url) })
	if err != nil || c == nil {
		return o, nil, err
	}
	o.Admin, o.Outbox = daemon.AdminAccess(c, path), db.outbox
	daily := c.Retention.Daily()
	o.Connections, o.Route, o.Daily = c.Relay.Connections+besideClaims, c.RouteOf, &daily
	if c.Admin.Listen != "" && c.Admin.Console {
		o.Connections += daemon.ConsoleConns
	}
	listen, err := outboxes.ParseListen(c, path)
	if err != nil {
		return o, nil, err
	}
	if listen != nil {
		o.Listen = connector(listen, "doctor")
	}
	for _, d := range c.Destinations {
		h, err := destinations.Open(d, slog.New(slog.DiscardHandler))
		if err != nil {
			return o, closers, err
		}
		if closer, ok := h.(io.Closer); ok {
			closers = append(closers, closer)
		}
		o.Destinations = append(o.Destinations, examined(d, h))
	}
	return o, closers, nil
}

func examined(d config.Destination, h delivery.Handler) doctor.Destination {
	e := doctor.Destination{Name: d.Name, Type: d.Type, Total: d.Order == delivery.OrderTotal}
	if checker, ok := delivery.As[delivery.Checker](h); ok {
		e.Check = checker.Check
	}
	if describer, ok := delivery.As[delivery.CheckDescriber](h); ok {
		e.Describe = describer.DescribeCheck
	}
	if sizer, ok := delivery.As[delivery.Sizer](h); ok {
		// The size is unknown if the method panics.
		_ = safecall.Call("MaxBytes", func() { e.MaxBytes = sizer.MaxBytes() })
	}
	return e
}

// connector connects with the settings of the role and the database as they are, but those of
// [session.Startup]. Nothing is prepared by name, so that it works through every pooler.
func connector(cfg *pgx.ConnConfig, role string) doctor.Connect {
	return func(ctx context.Context) (*pgx.Conn, error) {
		own := cfg.Copy()
		own.DefaultQueryExecMode = pgx.QueryExecModeExec
		session.Startup(own)
		own.RuntimeParams["application_name"] = "notifyd/" + role
		conn, err := pgx.ConnectConfig(ctx, own)
		if err != nil {
			return nil, outboxes.ConnectError(err)
		}
		return conn, nil
	}
}

// namesOf returns the names of the configured destinations; never nil.
func namesOf(c *config.Config) []string {
	names := make([]string, len(c.Destinations))
	for i, d := range c.Destinations {
		names[i] = d.Name
	}
	return names
}

func printReport(w io.Writer, form string, r doctor.Report) error {
	if form == "json" {
		return writeJSON(w, r)
	}
	var text strings.Builder
	wide := 0
	for _, f := range r.Findings {
		wide = max(wide, len(f.Check))
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&text, "%-7s  %-*s  %s\n", f.Severity, wide, f.Check, printable(f.Text))
		if f.Cure != "" {
			fmt.Fprintf(&text, "%7s  %*s  cure: %s\n", "", wide, "", printable(f.Cure))
		}
	}
	fmt.Fprintf(&text, "%s: %s, %s, %s\n", cli.Count(len(r.Findings), "finding"), cli.Count(r.Count(doctor.Error), "error"),
		cli.Count(r.Count(doctor.Warning), "warning"), cli.Count(r.Count(doctor.Note), "note"))
	_, err := io.WriteString(w, text.String())
	return err
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// printable keeps foreign text from controlling the terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return ' '
		}
		return r
	}, text)
}

// health is the error that becomes the exit code.
func health(r doctor.Report, strict bool) error {
	switch {
	case r.Count(doctor.Error) > 0:
		return errors.New("doctor has found " + cli.Count(r.Count(doctor.Error), "error"))
	case strict && r.Count(doctor.Warning) > 0:
		return errors.New("doctor has found " + cli.Count(r.Count(doctor.Warning), "warning"))
	}
	return nil
}
