package notifyd

import (
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Config holds the settings of a [Relay]. Fields that are zero have their defaults: write [None] for the 0 of notifyd.yaml in
// Canary, ShutdownTimeout and Retention.Keep.
//
// Settings with other tags than yaml:"-" are also in notifyd.yaml. The tags declare the name of each there, its default and
// its bounds, with durations in Go's syntax. The comments are the descriptions in docs/configuration.md: words in backticks
// are keys and values of notifyd.yaml.
type Config struct {
	// Schema is the schema that holds the tables; "public" by default.
	Schema string `yaml:"-"`
	// Outbox is the name of the outbox, for a program that relays several of them to the same destinations: it is
	// [delivery.Event.Outbox], and part of the event's DedupeID, because ids are unique in one outbox only. None by default.
	// A name that changes makes other ids: events that are delivered again after the change are new to consumers that
	// drop duplicates.
	Outbox string `yaml:"-"`
	// Logger gets the log of the relay; nil for none. Payloads are never logged.
	Logger *slog.Logger `yaml:"-"`
	// Observer receives incidents: dead letters, destinations that become unavailable and available, the loss of the database
	// and of the listening connection; nil for none.
	Observer delivery.Observer `yaml:"-"`
	// ListenConfig leads the listening connection past a transaction pooler, where LISTEN is accepted and never heard;
	// nil for the configuration of the pool. If the pool leads through such a pooler and the table is a queue, all connections of
	// the relay use ListenConfig, because none of them would work through the pooler.
	ListenConfig *pgx.ConnConfig `yaml:"-"`
	// Shared, if not nil, is the listening connection that this relay shares with relays of other outboxes of the same
	// database. Canary then has no effect: see [NewShared].
	Shared *Shared `yaml:"-"`
	// PollingOnly uses neither LISTEN nor NOTIFY: events are found by polling alone. It is for tables without a trigger.
	PollingOnly bool `yaml:"-"`
	// UntilIdle makes [Relay.Run] return nil once the relay is idle, for programs that a scheduler starts. A relay is idle if it
	// has applied the retention once, and twice in a row, a second apart, finds neither an event to deliver, nor a
	// delivery that runs, nor a stored delivery that is due within 5 s, nor a replay. Dead letters, paused destinations,
	// events without a route and ids of open transactions do not keep it running. A destination that is down does, as events
	// wait for it; so does a database that is down.
	UntilIdle bool `yaml:"-"`
	// Program describes the process, for people who look at outbox_relays or `notifyd status`.
	Program Program `yaml:"-"`
	// Retention is how long delivered events are kept.
	Retention Retention `yaml:"-"`

	// Connections that claim events. Fetching and settling overlap between them. In
	// a stream, one more connection reads for all destinations.
	Connections int `yaml:"connections" default:"4" jsonschema:"minimum=1,maximum=1000"`

	// Most events taken by one claim, or by one read of a stream.
	Batch int `yaml:"batch" default:"1000" jsonschema:"minimum=1,maximum=100000"`

	// Most bytes of events taken by one claim or read, with headers and aggregate
	// ids; a larger event is taken alone. `connections` times this bounds the
	// memory, twice this in a stream.
	BatchBytes int `yaml:"batch_bytes" default:"8388608" jsonschema:"minimum=1"`

	// Most bytes of the payload and headers of one event. A larger event is not
	// read: it becomes a dead letter whose reason has its size. The memory limit of
	// the process has to fit it.
	MaxEventBytes int `yaml:"max_event_bytes" default:"8388608" jsonschema:"minimum=1024,maximum=1073741824"`

	// Longest time that a transaction stays open for a delivery. Slower deliveries
	// continue under a lease. No effect in a stream.
	LockBudget time.Duration `yaml:"lock_budget" default:"100ms" jsonschema:"minimum=1ms,maximum=2s"`

	// How long a slow delivery belongs to the relay that started it, without
	// renewal. Must be longer than `lock_budget`. The leases of a dead relay are
	// taken over as soon as its connection is gone. No effect in a stream.
	Lease time.Duration `yaml:"lease" default:"30s" jsonschema:"minimum=1s"`

	// How often an idle relay polls the table for events that no notification
	// announced. While polls find events, the relay polls more often.
	PollInterval time.Duration `yaml:"poll_interval" default:"1s" jsonschema:"minimum=1ms"`

	// How often the relay sends itself a notification to prove that it receives
	// them; `0` is never. While a canary is missing, the relay listens on a new
	// connection and polls the table every 20 ms.
	Canary time.Duration `yaml:"canary" default:"5s" zero:"never" jsonschema:"minimum=100ms"`

	// How long running deliveries may take to finish after SIGTERM; `0` cancels
	// them at once.
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout" default:"20s" zero:"no time" jsonschema:"minimum=1ms"`
}

// None means never, or no time, where a Config has a default for 0.
const None time.Duration = -1

// Program describes a process.
type Program struct {
	// Version is the version of the program, "" if it is not known.
	Version string
	// Config is the whole path of the program's configuration file, "" for none.
	Config string
	// Started is when the program was started; by default when the relay was made.
	Started time.Time
}

// Retention is how long events are kept that are done. Events with dead letters are always kept.
type Retention struct {
	// How long delivered events are kept. `0` deletes them at once, in a stream
	// within a minute after the last destination has received them.
	Keep time.Duration `yaml:"keep" default:"168h" zero:"not at all" jsonschema:"minimum=0"`

	// Most events deleted by one statement.
	Batch int `yaml:"batch" default:"1000" jsonschema:"minimum=1,maximum=100000"`

	// `daily` creates a partition for each day and drops it as a whole when it is
	// no longer needed; `notifyd migrate --partitions daily` must have converted
	// the table. `none` deletes events one by one.
	Partitions Partitions `yaml:"partitions" default:"none" enum:"none,daily"`
}

// Partitions is whether a relay maintains partitions of the table.
type Partitions string

const (
	// PartitionsNone deletes events one by one.
	PartitionsNone Partitions = "none"
	// PartitionsDaily maintains the partitions of a table that `notifyd migrate --partitions daily`, or
	// outboxsql.Partition, has partitioned by day: the relay creates those of the days ahead, and drops each in which
	// every event has been done for as long as Retention.Keep. Several relays may do so. On a plain table it warns once, and
	// deletes events one by one.
	PartitionsDaily Partitions = "daily"
)

// Daily reports whether the relay maintains partitions.
func (r Retention) Daily() bool { return r.Partitions == PartitionsDaily }

// WithDefaults returns c with the defaults of the fields that are zero. None becomes 0.
func (c Config) WithDefaults() Config {
	field.Fill(&c)
	field.Fill(&c.Retention)

	if c.Schema == "" {
		c.Schema = outboxsql.DefaultSchema
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Program.Started.IsZero() {
		c.Program.Started = time.Now()
	}

	return c
}

// Validate returns every mistake in c, joined. One in a setting that notifyd.yaml has is a [*handlers.FieldError] with its
// key there.
func (c Config) Validate() error {
	c = c.WithDefaults()
	errs := []error{pgschema.Validate(c.Schema), field.Check(c), field.Under("retention", field.Check(c.Retention))}
	if c.Lease <= c.LockBudget {
		errs = append(errs, field.Errorf("lease",
			"%v is not longer than lock_budget (%v): another relay could take a delivery before it is leased", c.Lease, c.LockBudget))
	}

	return errors.Join(errs...)
}

// limits returns the limits of an engine.
func (c *Config) limits() engine.Limits {
	return engine.Limits{
		Claims: c.Connections, Batch: c.Batch, Bytes: c.BatchBytes, EventBytes: c.MaxEventBytes,
		LockBudget: c.LockBudget, Lease: c.Lease, PollInterval: c.PollInterval,
	}
}

// program describes the process for outbox_relays.
func (c *Config) program() store.Program {
	return store.Program{
		Process: os.Getpid(), Host: store.ThisHost(), Version: c.Program.Version, Config: c.Program.Config,
		StartedAt: c.Program.Started, LoadedAt: time.Now(),
	}
}

// Destination is a place that events go to.
type Destination struct {
	// Name is stored with every delivery to retry: keep it from release to release.
	Name string
	// Handler gets the events. The relay does not close it: its creator does, after Run has returned.
	Handler delivery.Handler
	// Lane is how the handler is called. The package of a handler suggests one with DefaultLane.
	Lane delivery.Lane
	// Filter runs for each event before the filters of its routes, and returns false for events to drop; nil drops none.
	Filter delivery.Filter
	// RateKey applies Lane.RateLimit to each key separately, for example to each customer; nil counts all events together. An
	// event whose key has to wait is stored until its turn, with the events behind it in its aggregate; other keys continue.
	RateKey delivery.RateKey
	// Middleware wraps the handler inside the middleware of [Relay.Use]; the first one is the outermost.
	Middleware []delivery.Middleware
}
