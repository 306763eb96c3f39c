package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/cmd/internal/daemon"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/doctor"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/status"
	"github.com/notifyd/notifyd/internal/store"
)

// statusRefresh is the interval of --watch.
const statusRefresh = time.Second

// statusTimeout bounds one reading.
const statusTimeout = 15 * time.Second

// statusFlags are the flags of "notifyd status".
type statusFlags struct {
	db       command.DatabaseFlags
	form     *cli.OneOf
	watch    bool
	full     bool
	exitCode bool
}

// NewStatus returns the command status.
func NewStatus(a *command.App) *cobra.Command {
	var f statusFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what waits, for whom and why",
		Long: `status shows where action is required, the most severe first, what waits for each destination
and for how long, failures and dead letters by their error, which relays live, and the notify mode. It
reads a bounded part of the tables' indexes, however large they are: a count with
a + is a minimum. Of a stream it shows how far each destination has come, too.

With a configuration file it knows the routes, and asks the relay at admin.listen
for the state and the rate of each destination. --watch looks every second until q
or ctrl-c, and fits the screen; without a terminal it prints one block after the other. On a terminal
problems have a colour, unless NO_COLOR is set. With --exit-code it exits with 1 if action is required.`,
		Example: "  notifyd status\n  notifyd status --watch\n  notifyd status -o json --exit-code",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.watch {
				look, err := f.look(cmd.Context(), a)
				if err != nil {
					return err
				}
				defer look.close(cmd.Context())

				return watchStatus(cmd.Context(), a, cmd.OutOrStdout(), look, f.form.Value)
			}
			return f.run(cmd, a)
		},
	}

	f.db.Register(cmd)
	f.form = command.AddFormat(cmd)
	command.AddExitCode(cmd, &f.exitCode)
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false, "look again every second")
	cmd.Flags().BoolVar(&f.full, "full", false, "name every event type without a route, not the first ten (JSON always has all)")
	return cmd
}

// run shows the status once, of each outbox where there are several.
func (f *statusFlags) run(cmd *cobra.Command, a *command.App) error {
	color := cli.IsTerminal(cmd.OutOrStdout()) && colored(a)
	progress := command.StartProgress(cmd, "reading the status")
	defer progress.Stop()

	names, err := f.db.Several(cmd.Context(), a)
	if err != nil {
		return err
	}

	problems := 0
	read := func(db command.DatabaseFlags) (*status.Status, error) {
		one := *f
		one.db = db

		look, err := one.look(cmd.Context(), a)
		if err != nil {
			return nil, err
		}
		defer look.close(cmd.Context())

		s, err := look.read(cmd.Context())
		problems += len(s.Attention)
		return &s, err
	}

	show := func(db command.DatabaseFlags) error {
		s, err := read(db)
		if err != nil {
			return err
		}
		return printStatus(cmd.OutOrStdout(), f.form.Value, color, s)
	}

	switch {
	case names == nil:
		err = show(f.db)
	case f.form.Value == "json":
		err = command.JSONSections(cmd.OutOrStdout(), names, func(name string) (any, error) { return read(f.db.Of(name)) })
	default:
		err = command.Sections(cmd.OutOrStdout(), names, func(name string) error { return show(f.db.Of(name)) })
	}

	if err == nil && f.exitCode && problems > 0 {
		err = errors.New(cli.Count(problems, "problem") + ": " + status.ActionRequired)
	}
	return err
}

// printStatus prints whole lines: only the screen of --watch cuts them.
func printStatus(w io.Writer, form string, color bool, s *status.Status) error {
	if form == "json" {
		return command.WriteJSON(w, s)
	}
	_, err := io.WriteString(w, s.Table(status.View{Color: color, Clean: command.Printable}))
	return err
}

// colored reports whether a terminal gets colours: see https://no-color.org.
func colored(a *command.App) bool {
	set, _ := a.Lookup("NO_COLOR")
	term, _ := a.Lookup("TERM")
	return set == "" && term != "dumb"
}

// looker reads the status repeatedly, on one connection as long as that lasts.
type looker struct {
	options status.Options
	connect doctor.Connect
	conn    *pgx.Conn
	last    *status.Status
}

// look prepares a looker; it does not connect.
func (f *statusFlags) look(ctx context.Context, a *command.App) (*looker, error) {
	if err := f.db.Resolve(ctx, a); err != nil {
		return nil, err
	}

	cfg, err := f.db.Parse()
	if err != nil {
		return nil, err
	}

	a.Role = cfg.User
	a.Schema = f.db.Schema
	l := &looker{
		connect: f.db.Connector(cfg, "status"),
		options: status.Options{Schema: f.db.Schema, All: f.full || f.form.Value == "json"},
	}

	c, path, err := f.db.Optional(ctx, a, config.LoadRoutes)
	if err != nil {
		return nil, err
	}
	if c != nil {
		l.configure(c)
		l.options.Admin = daemon.AdminAccess(c, path)
		l.options.Outbox = f.db.Outbox
	}
	return l, nil
}

// configure takes the routes and the destinations of a configuration.
func (l *looker) configure(c *config.Config) {
	l.options.Route = c.RouteOf
	l.options.Destinations = command.NamesOf(c)
	l.options.DeadLettersTo = make(map[string]string)
	l.options.Types = make(map[string]string)

	for _, d := range c.Destinations {
		l.options.Types[d.Name] = d.Type
		if d.OnDead.To != "" {
			l.options.DeadLettersTo[d.Name] = d.OnDead.To
		}
	}
}

// read reads the status once.
func (l *looker) read(ctx context.Context) (status.Status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, statusTimeout, fmt.Errorf("the database did not answer within %v", statusTimeout))
	defer cancel()

	if l.conn == nil || l.conn.IsClosed() {
		conn, err := l.connect(ctx)
		if err != nil {
			return status.Status{}, l.askRelay(ctx, err)
		}
		l.conn = conn
	}

	s, err := status.Read(ctx, l.conn, l.options)
	if err != nil {
		l.close(ctx)
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return s, err
	}

	if l.last != nil {
		s.Rates(l.last)
	}
	l.last = &s
	return s, nil
}

// askRelay adds to the error of a connection whether the relay at admin.listen reaches the database, and since when it does
// not.
func (l *looker) askRelay(ctx context.Context, err error) error {
	ctx = context.WithoutCancel(ctx) // the relay may answer where the database took all the time
	relay := status.Scrape(ctx, l.options.Admin, l.options.Outbox)

	switch {
	case relay == nil:
		return err
	case relay.Outage != "":
		return errors.Join(err, fmt.Errorf("the relay at %s waits: %s", relay.Address, relay.Outage))
	case relay.DatabaseUp:
		return errors.Join(err, fmt.Errorf("the relay at %s reaches its database", relay.Address))
	default:
		return errors.Join(err, fmt.Errorf("the relay at %s waits for the database, too", relay.Address))
	}
}

func (l *looker) close(ctx context.Context) {
	if l.conn != nil {
		store.Close(ctx, l.conn)
		l.conn = nil
	}
}
