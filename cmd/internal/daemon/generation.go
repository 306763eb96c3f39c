package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/cmd/internal/outboxes"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/field"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// generation is a relay and all that belongs to it after one reading of the
// configuration. Only the tracer is shared with the generations before and after.
type generation struct {
	config  *config.Config
	log     *slog.Logger
	listen  *pgx.ConnConfig // nil for none
	pool    *pgxpool.Pool
	relay   *notifyd.Relay
	alerts  alerts
	spans   *tracer
	closers []io.Closer

	stopAlerts func()
}

// origin is the origin of a generation.
type origin struct {
	path    string          // of the configuration
	started time.Time       // of this process
	version string          // of this program
	outbox  string          // the name of the outbox; "" for the only one
	open    opener          // opens destinations
	shared  *notifyd.Shared // nil for the only outbox
	// untilIdle ends the relay once it is idle.
	untilIdle bool
}

// program is the relay's report about this process.
func (o origin) program() notifyd.Program {
	whole, err := filepath.Abs(o.path)
	if err != nil {
		whole = o.path
	}
	return notifyd.Program{Version: o.version, Config: whole, Started: o.started}
}

// abandon closes a generation that does not run. It may be nil.
func (g *generation) abandon() error {
	if g == nil {
		return nil
	}
	return errors.Join(g.close(), g.closeAlerts())
}

// newGeneration builds the configured relay, and makes no connection. The caller
// closes it; after an error nothing is left open.
func newGeneration(ctx context.Context, c *config.Config, from origin, spans *tracer, log *slog.Logger) (*generation, error) {
	g := &generation{config: c, spans: spans, log: log, stopAlerts: func() {}}
	if err := g.build(ctx, from); err != nil {
		return nil, errors.Join(err, g.abandon())
	}
	return g, nil
}

func (g *generation) build(ctx context.Context, from origin) (err error) {
	poolConfig, err := outboxes.ParsePool(g.config)
	if err != nil {
		return err
	}

	g.listen, err = outboxes.ParseListen(g.config)
	if err != nil {
		return err
	}
	g.pool, err = pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return fmt.Errorf("database.url: %w", err)
	}

	g.alerts, err = newAlerts(g.config, from.open, from.outbox, g.log)
	if err != nil {
		return err
	}

	g.relay, err = notifyd.New(g.pool, relayConfig(g.config, from, g.listen, g.alerts.observer(), g.log))
	if err != nil {
		return err
	}

	g.closers, err = addDestinations(g.relay, g.config, from.open, g.spans)
	return err
}

// check asks the database whether a relay of this generation could work. A database that does not answer is an error only
// if patient is false: a relay waits for it.
func (g *generation) check(ctx context.Context, patient bool) error {
	cfg := g.pool.Config()
	connector := &store.Connector{Config: cfg.ConnConfig, Before: cfg.BeforeConnect, Schema: g.config.Database.Schema}
	conn, err := outboxes.OpenAsRelay(ctx, connector, g.listen, "check")
	if err == nil {
		defer store.Close(ctx, conn.Conn)

		err = outboxes.CheckTable(ctx, conn, g.config)
		if err != nil {
			err = fmt.Errorf("database: %w", err)
		}
	}

	lasting := []error{
		notifyd.ErrPooler, outboxsql.ErrNotMigrated, outboxsql.ErrTooNew, notifyd.ErrNeedsStream, notifyd.ErrCopy,
	}
	isLasting := slices.ContainsFunc(lasting, func(one error) bool { return errors.Is(err, one) })
	if isLasting || !patient {
		return err
	}
	return nil
}

// run delivers until ctx ends.
func (g *generation) run(ctx context.Context) error {
	g.stopAlerts = g.alerts.start(ctx, g.relay)
	err := g.relay.Run(ctx)
	if errors.Is(err, notifyd.ErrNeedsStream) {
		return cmp.Or(outboxes.NeedsStream(g.config), err) // the relay does not know the lines of the file
	}
	return err
}

// close closes the handlers and the pool. The relay must have ended.
func (g *generation) close() error {
	// Together: the times of slow ones must not add up.
	errs := make([]error, len(g.closers))
	var all sync.WaitGroup
	for i, c := range g.closers {
		all.Go(func() { errs[i] = c.Close() })
	}
	all.Wait()

	if g.pool != nil {
		g.pool.Close()
	}
	return errors.Join(errs...)
}

// closeAlerts sends pending alerts, and closes their destinations.
func (g *generation) closeAlerts() error {
	g.stopAlerts()
	return destinations.CloseAll(g.alerts.closers)
}

// relayConfig returns the settings of the relay: those of the file, and those of this process.
func relayConfig(c *config.Config, from origin, listen *pgx.ConnConfig, observer delivery.Observer, log *slog.Logger) notifyd.Config {
	relay := c.Relay
	relay.Retention = c.Retention
	field.Literal(&relay) // in the file 0 means 0
	field.Literal(&relay.Retention)

	relay.Schema = c.Database.Schema
	relay.Outbox = from.outbox
	relay.Logger = log
	relay.Observer = observer
	relay.ListenConfig = listen
	relay.UntilIdle = from.untilIdle
	relay.Program = from.program()
	relay.Shared = from.shared
	return relay
}

// addDestinations opens the handlers and registers them with their routes. The
// closers are to be closed even if there is an error.
func addDestinations(relay *notifyd.Relay, c *config.Config, open opener, spans *tracer) (closers []io.Closer, err error) {
	for _, d := range c.Destinations {
		h, closer, err := open("", d)
		if err != nil {
			return closers, c.Wrong(d.Name, err)
		}

		closers = append(closers, closer)

		destination := notifyd.Destination{
			Name:       d.Name,
			Handler:    h,
			Lane:       d.Lane.Lane,
			RateKey:    d.Key(),
			Middleware: spans.of(d),
		}
		if err := relay.Add(destination); err != nil {
			return closers, err
		}
	}

	for _, r := range c.Routes {
		var when delivery.Filter
		if f := r.Filter(); f != nil {
			when = f.Match
		}

		if err := relay.RouteWhen(r.Match, when, r.To...); err != nil {
			return closers, err
		}
	}
	return closers, nil
}
