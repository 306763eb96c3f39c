package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/cmd/internal/daemon"

	"github.com/notifyd/notifyd/cmd/internal/outboxes"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/cmd/internal/doctor"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/safecall"
	"github.com/notifyd/notifyd/internal/store"
)

// NewDoctor returns the command doctor.
func NewDoctor(a *command.App) *cobra.Command {
	var db command.DatabaseFlags
	var strict bool
	var form *cli.OneOf
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
			progress := command.StartProgress(cmd, "examining the database and the destinations")
			defer progress.Stop()

			names, err := db.Several(cmd.Context(), a)
			if err != nil {
				return err
			}

			if names != nil && form.Value == "json" {
				return command.JSONSections(cmd.OutOrStdout(), names, func(name string) (any, error) {
					return examine(cmd.Context(), a, db.Of(name))
				})
			}

			return db.Each(cmd, a, func(one command.DatabaseFlags) error {
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

	db.Register(cmd)
	form = command.AddFormat(cmd)
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 1 for warnings, too")
	return cmd
}

// examine looks at one outbox.
func examine(ctx context.Context, a *command.App, db command.DatabaseFlags) (doctor.Report, error) {
	o, closers, err := doctorOptions(ctx, a, &db)
	defer func() { _ = destinations.CloseAll(closers) }() // nothing was sent
	if err != nil {
		return doctor.Report{}, err
	}
	return doctor.Run(ctx, o), nil
}

// doctorOptions opens the destinations, which makes no connection. The closers are to
// be closed even if there is an error.
func doctorOptions(ctx context.Context, a *command.App, db *command.DatabaseFlags) (o doctor.Options, closers []io.Closer, err error) {
	if err := db.Resolve(ctx, a); err != nil {
		return o, nil, err
	}

	cfg, err := db.Parse()
	if err != nil {
		return o, nil, err
	}

	o.Connect = db.Connector(cfg, "doctor")
	o.Schema = db.Schema
	load := func(path, url string, _ config.LookupEnv) (*config.Config, error) { return a.LoadAt(path, url) }
	c, path, err := db.Optional(ctx, a, load)
	if err != nil || c == nil {
		return o, nil, err
	}

	o.Admin = daemon.AdminAccess(c, path)
	o.Outbox = db.Outbox
	o.Route = c.RouteOf
	daily := c.Retention.Daily()
	o.Daily = &daily
	o.Connections = c.Relay.Connections + store.BesideClaims
	if c.Admin.Listen != "" && c.Admin.Console {
		o.Connections += daemon.ConsoleConns
	}

	listen, err := outboxes.ParseListen(c)
	if err != nil {
		return o, nil, err
	}
	if listen != nil {
		o.Listen = command.Connector(listen, "doctor")
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
	e := doctor.Destination{
		Name:          d.Name,
		Type:          d.Type,
		Total:         d.Order == delivery.OrderTotal,
		DeadLettersTo: d.OnDead.To,
	}
	if s, ok := d.Settings.(config.Warner); ok {
		e.Warnings = field.Split(s.Warnings())
	}

	if checker, ok := delivery.As[delivery.Checker](h); ok {
		e.Check = checker.Check
	}

	if describer, ok := delivery.As[delivery.CheckDescriber](h); ok {
		e.Describe = describer.DescribeCheck
	}

	if adviser, ok := delivery.As[delivery.Adviser](h); ok {
		e.Advise = adviser.Advise
	}

	if sizer, ok := delivery.As[delivery.Sizer](h); ok {
		// The size is unknown if the method panics.
		_ = safecall.Call("MaxBytes", func() { e.MaxBytes = sizer.MaxBytes() })
	}
	return e
}

func printReport(w io.Writer, form string, r doctor.Report) error {
	if form == "json" {
		return command.WriteJSON(w, r)
	}
	var text strings.Builder
	wide := 0
	for _, f := range r.Findings {
		wide = max(wide, len(f.Check))
	}

	for _, f := range r.Findings {
		fmt.Fprintf(&text, "%-7s  %-*s  %s\n", f.Severity, wide, f.Check, command.Printable(f.Text))
		if f.Cure != "" {
			fmt.Fprintf(&text, "%7s  %*s  cure: %s\n", "", wide, "", command.Printable(f.Cure))
		}
	}

	fmt.Fprintf(&text, "%s: %s, %s, %s\n",
		cli.Count(len(r.Findings), "finding"), cli.Count(r.Count(doctor.Error), "error"),
		cli.Count(r.Count(doctor.Warning), "warning"), cli.Count(r.Count(doctor.Note), "note"))

	_, err := io.WriteString(w, text.String())
	return err
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
