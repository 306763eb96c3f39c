package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/outboxes"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/console"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

const (
	// ConsoleConns is the maximum size of the console's connection pool for an outbox.
	ConsoleConns = 4
	// consoleIdle is how long a connection of one of many outboxes stays open without use.
	consoleIdle = 5 * time.Minute
)

// webConsole is the web console, and its connections: those of the relays end with
// a reload.
type webConsole struct {
	*console.Console

	path string
	many bool
	log  *slog.Logger
	past sync.WaitGroup // pools that a reload has replaced, while requests use them

	// For the goroutine of the supervisor.
	shown map[string]shownOutbox
}

// shownOutbox is an outbox that the console shows.
type shownOutbox struct {
	config *config.Config
	pool   *pgxpool.Pool
}

// newConsole returns the console, without an outbox, or nil if it is not configured. The caller closes it.
func newConsole(c *config.Config, t tokens, path, version string, log *slog.Logger) (*webConsole, error) {
	if !c.Admin.Console {
		return nil, nil //nolint:nilnil // none is configured
	}

	cfg := console.Config{
		Prefix:       c.Admin.Prefix,
		Many:         c.Outboxes.Used(),
		ReadOnly:     c.Admin.ReadOnly,
		HidePayloads: c.Admin.Payloads == "hidden",
		Version:      version,
		Log:          log,
		Actor:        console.ActorHeader{Name: c.Admin.ActorHeader, Proxies: c.Admin.Proxies()},
	}

	if t.all != nil {
		cfg.Token = t.all
	}
	if t.readOnly != nil {
		cfg.ReadOnlyToken = t.readOnly
	}

	pages, err := console.New(cfg)
	if err != nil {
		return nil, err
	}

	return &webConsole{Console: pages, path: path, many: cfg.Many, log: log, shown: make(map[string]shownOutbox)}, nil
}

// logOut ends all sessions. The console may be nil.
func (w *webConsole) logOut() {
	if w != nil {
		w.LogOut()
	}
}

// newPool makes no connection yet.
func (w *webConsole) newPool(ctx context.Context, c *config.Config) (*pgxpool.Pool, error) {
	cfg, err := outboxes.ParsePool(c)
	if err != nil {
		return nil, err
	}

	cfg.MaxConns = ConsoleConns
	if w.many {
		cfg.MaxConnIdleTime = consoleIdle
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = "notifyd/console"

	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("database.url: %w", err)
	}
	return pool, nil
}

func consoleDatabase(c *config.Config, pool *pgxpool.Pool) console.Database {
	return console.Database{Pool: pool, Schema: c.Database.Schema, DeleteEvents: c.Retention.Keep == 0}
}

// follow makes the console show these outboxes, each with the database of its configuration. The console may be nil.
func (w *webConsole) follow(ctx context.Context, wanted map[string]*config.Config, member func(name string) *member) {
	if w == nil {
		return
	}

	for name, s := range w.shown {
		if wanted[name] == nil {
			w.Remove(name)
			w.past.Go(s.pool.Close)
			delete(w.shown, name)
		}
	}

	for name, c := range wanted {
		if err := w.show(ctx, name, c, member(name)); err != nil {
			w.log.WarnContext(ctx, "the web console continues with the previous database: restart notifyd", "outbox", name, "err", err)
		}
	}
}

// show makes the console show an outbox, or the database of its new configuration.
func (w *webConsole) show(ctx context.Context, name string, c *config.Config, m *member) error {
	before, known := w.shown[name]
	if known {
		if d := config.Diff(before.config, c); !d.Touches("database.") && !d.Touches("retention.keep") {
			return nil
		}
	}

	pool, err := w.newPool(ctx, c)
	if err != nil {
		return err
	}

	db := consoleDatabase(c, pool)
	if known {
		err = w.Use(name, db)
	} else {
		from := console.Outbox{Relay: shownMember{m}, Pauser: shownMember{m}, Router: shownMember{m}, Database: db}
		if w.many {
			from.Trouble = m.health
		}
		err = w.Add(name, from)
	}

	if err != nil {
		pool.Close()
		return err
	}

	if known {
		w.past.Go(before.pool.Close)
	}
	w.shown[name] = shownOutbox{c, pool}
	return nil
}

// close closes the connections. Run must have returned before. The console may be nil.
func (w *webConsole) close() {
	if w == nil {
		return
	}
	for _, s := range w.shown {
		s.pool.Close()
	}

	w.past.Wait()
}

// shownMember is the relay of an outbox for the console. An outbox that is down may have none.
type shownMember struct{ m *member }

// Stats implements console.Watched.
func (s shownMember) Stats() observe.Stats {
	if relay := s.m.relay(); relay != nil {
		return relay.Stats()
	}
	return observe.Stats{}
}

// Backlog implements console.Watched.
func (s shownMember) Backlog(ctx context.Context) (observe.Backlog, error) {
	relay := s.m.relay()
	if relay == nil {
		return observe.Backlog{}, s.m.health()
	}
	return relay.Backlog(ctx)
}

// Pause implements console.Pauser.
func (s shownMember) Pause(ctx context.Context, destination string, a ops.Action) error {
	relay := s.m.relay()
	if relay == nil {
		return s.m.health()
	}
	return relay.Pause(ctx, destination, a)
}

// Resume implements console.Pauser.
func (s shownMember) Resume(ctx context.Context, destination string, a ops.Action) (was bool, err error) {
	relay := s.m.relay()
	if relay == nil {
		return false, s.m.health()
	}
	return relay.Resume(ctx, destination, a)
}

// DestinationsOf implements console.Router.
func (s shownMember) DestinationsOf(eventType string) []string {
	if relay := s.m.relay(); relay != nil {
		return relay.DestinationsOf(eventType)
	}
	return nil
}
