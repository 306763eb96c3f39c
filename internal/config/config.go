package config

import (
	"strconv"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/alert"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/when"
)

// supportedVersion is the only value that the key "version" may have.
const supportedVersion = 1

// Config is the content of notifyd.yaml, with the defaults filled in.
type Config struct {
	Version      int          `yaml:"version" jsonschema:"required" jsonschema_description:"Version of the file format." kind:"'1'"`
	Database     Database     `yaml:"database" jsonschema_description:"PostgreSQL database that holds the outbox."`
	Relay        Relay        `yaml:"relay" jsonschema_description:"How the relay reads events from the outbox."`
	Retention    Retention    `yaml:"retention" jsonschema_description:"How long delivered events are kept."`
	Log          Log          `yaml:"log" jsonschema_description:"Level and format of the log."`
	Destinations Destinations `yaml:"destinations" jsonschema_description:"Where events go, by a name of your choice."`
	Routes       []Route      `yaml:"routes" jsonschema_description:"Which events go to which destinations."`
	Admin        Admin        `yaml:"admin" jsonschema_description:"HTTP server for metrics, health and the web console."`
	Alerts       Alerts       `yaml:"alerts" jsonschema_description:"Alerts about dead letters, outages and events that wait too long."`
	Outboxes     Outboxes     `yaml:"outboxes" jsonschema_description:"Several outboxes in one daemon, in place of the one of 'database'." unset:"none"`

	// Warnings are about settings that are allowed but probably not intended.
	Warnings []Mistake `yaml:"-"`

	// origins is a pointer so that %+v of a Config does not print it.
	origins *origins
	// places holds the position of each destination.
	places map[string]Mistake
	// whole are all destinations of the file, where Destinations are those of one outbox; nil else.
	whole Destinations
	// place is where the connection strings of one outbox stand; "" for those of the database of the file.
	place string
}

// Wrong returns an error about a destination, such as that it cannot be opened,
// as an [*Error] with the position of the destination. The text must not hold a
// secret.
func (c *Config) Wrong(destination string, err error) error {
	m := c.places[destination]
	m.Message = "destinations." + destination + ": " + oneLine(err.Error())
	return &Error{[]Mistake{m}}
}

// origins maps the path of each expanded value to its text in the file, which
// [Print] shows in place of the value.
type origins map[string]string

// Database holds the connection to PostgreSQL.
type Database struct {
	URL       handlers.Secret `yaml:"url" jsonschema_description:"Connection string: 'postgres://user:password@host:5432/db', or 'host=... dbname=...'." unset:"'$DATABASE_URL', then the variables 'PG*' of libpq"`
	ListenURL handlers.Secret `yaml:"listen_url" jsonschema_description:"Connection string that leads directly to the database. Needed where 'url' leads through a pooler in transaction mode, where LISTEN hears nothing: a stream uses it for LISTEN, a queue for everything." unset:"'database.url'"`
	Schema    string          `yaml:"schema" jsonschema_description:"PostgreSQL schema that holds the outbox tables."`
}

// Relay holds the limits of the relay.
type Relay struct {
	Connections     int           `yaml:"connections" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Connections that claim events. Fetching and settling overlap between them."`
	Batch           int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events taken by one claim."`
	BatchBytes      int           `yaml:"batch_bytes" jsonschema:"minimum=1" jsonschema_description:"Most bytes of events taken by one claim, with headers and aggregate ids; a larger event is taken alone."`
	MaxEventBytes   int           `yaml:"max_event_bytes" jsonschema:"minimum=1024,maximum=1073741824" jsonschema_description:"Most bytes of the payload and headers of one event; a larger one is not read, and becomes a dead letter."`
	LockBudget      time.Duration `yaml:"lock_budget" jsonschema_description:"Longest time that a transaction stays open for a delivery. Slower deliveries continue under a lease."`
	Lease           time.Duration `yaml:"lease" jsonschema_description:"How long a slow delivery belongs to the relay that started it. Must be longer than lock_budget."`
	PollInterval    time.Duration `yaml:"poll_interval" jsonschema_description:"How often an idle relay polls the table for events that no notification announced."`
	Canary          time.Duration `yaml:"canary" jsonschema_description:"How often the relay proves, by a notification to itself, that it hears notifications; 0 for never."`
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout" jsonschema_description:"How long running deliveries may take to finish after SIGTERM."`
}

// Retention holds the settings for events that are done.
type Retention struct {
	Keep  time.Duration `yaml:"keep" jsonschema_description:"How long delivered events are kept; 0 deletes them at once."`
	Batch int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events deleted by one statement."`
	// Partitions is none or daily.
	Partitions string `yaml:"partitions" jsonschema:"enum=none,enum=daily" jsonschema_description:"daily creates a partition for each day and drops it as a whole when all its events are done; notifyd migrate --partitions daily must have partitioned the table. none deletes events one by one."`
}

// Daily reports whether the relay maintains partitions.
func (r Retention) Daily() bool { return r.Partitions == "daily" }

// Log holds the level and format of the log.
type Log struct {
	Level  string `yaml:"level" jsonschema:"enum=debug,enum=info,enum=warn,enum=error" jsonschema_description:"Lowest level that is written."`
	Format string `yaml:"format" jsonschema:"enum=auto,enum=text,enum=json" jsonschema_description:"'auto' is text on a terminal and JSON elsewhere."`
}

// Admin is the HTTP server for operators.
type Admin struct {
	Listen string `yaml:"listen" jsonschema_description:"Where '/metrics', '/livez', '/readyz' and '/version' are served, such as '127.0.0.1:9470'. Without a token, every client that reaches the address has access." kind:"address and port"`
	// TLS is the server's certificate.
	TLS   AdminTLS        `yaml:"tls" jsonschema_description:"Certificate to serve HTTPS with, TLS 1.2 or newer." unset:"none: HTTP is served"`
	Token handlers.Secret `yaml:"token" jsonschema_description:"Token that clients must send as 'Authorization: Bearer TOKEN', 16 characters or more. '/livez' and the short answer of '/readyz' need none."`
	Pprof bool            `yaml:"pprof" jsonschema_description:"Serves profiles of the process at '/debug/pprof/'. Other machines need the token."`
	// Console and the fields below configure the web console.
	Console  bool   `yaml:"console" jsonschema_description:"Serves the web console at '/console/'. Without a token, 'listen' must be a loopback address."`
	ReadOnly bool   `yaml:"read_only" jsonschema_description:"The console shows and changes nothing: no pause, no replay, no discard."`
	Payloads string `yaml:"payloads" jsonschema:"enum=shown,enum=hidden" jsonschema_description:"Whether the console shows the payloads of events."`
}

// AdminTLS are PEM files. They are read again when they change.
type AdminTLS struct {
	CertFile string `yaml:"cert_file" jsonschema_description:"PEM file of the certificate and of those that lead to its authority, relative to the configuration file. Read again when it changes; an unusable file leaves the old certificate in use." kind:"path"`
	KeyFile  string `yaml:"key_file" jsonschema_description:"PEM file of the key that belongs to 'cert_file'. Read again when it changes." kind:"path"`
}

// Alerts configures notifications about problems that the relay cannot fix by itself.
type Alerts struct {
	To            []string      `yaml:"to" jsonschema_description:"Destinations that receive the alerts, as events of the type 'notifyd.alert'." kind:"list of names"`
	On            []string      `yaml:"on" jsonschema:"enum=dead_letter,enum=destination,enum=database,enum=listener,enum=relay,enum=retention,enum=waiting" jsonschema_description:"Incidents to report." unset:"all"`
	Every         time.Duration `yaml:"every" jsonschema_description:"Shortest time between two alerts. Incidents in between go into the next one."`
	OldestWaiting time.Duration `yaml:"oldest_waiting" jsonschema_description:"How long an event may wait, retries included, before an alert reports it; '0' is never."`
}

// alertKinds are the words of alerts.on.
func alertKinds() []string {
	return []string{"dead_letter", "destination", "database", "listener", "relay", "retention", "waiting"}
}

// Destinations are the destinations in the order of the file.
type Destinations []Destination

// Destination is one place that events go to.
type Destination struct {
	// Name is the destination's key in the file.
	Name string
	// Type is the name that selected Settings from the [Registry].
	Type string
	Lane
	// Settings is the pointer that the registry's [Type] returned, filled.
	Settings Settings
}

// Lane holds the settings that destinations of every type have.
type Lane struct {
	Concurrency  int           `yaml:"concurrency" jsonschema:"minimum=1,maximum=10000" jsonschema_description:"Deliveries that run at the same time."`
	Batch        int           `yaml:"batch" jsonschema:"minimum=1,maximum=100000" jsonschema_description:"Most events passed to a destination in one call, if its type supports batches."`
	Timeout      time.Duration `yaml:"timeout" jsonschema_description:"Longest time that one delivery may take."`
	MaxAttempts  int           `yaml:"max_attempts" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Failed attempts after which an event becomes a dead letter. An outage of the destination costs none."`
	Priority     int           `yaml:"priority" jsonschema:"minimum=-100,maximum=100" jsonschema_description:"How urgent the destination is: while there is a backlog, the relay looks for events of destinations of higher priority first."`
	Order        string        `yaml:"order" jsonschema:"enum=auto,enum=none,enum=aggregate,enum=total" former:"true=aggregate,false=none" jsonschema_description:"aggregate delivers the events of an aggregate in the order of their ids, each after its predecessors; only a stream can. total does so for all events of the destination, as if they were of one aggregate. none gives up order: an event that fails holds up no other. auto is aggregate in a stream and none in a queue."`
	OnDead       string        `yaml:"on_dead" jsonschema:"enum=continue,enum=block" jsonschema_description:"Fate of the later events of an aggregate behind a dead letter: continue, or block, which holds them back until it is replayed or discarded, and which only a stream can do."`
	StartFrom    string        `yaml:"start_from" jsonschema_description:"Where the destination begins in a stream that does not know it yet: beginning, now, the id of an event in quotes, or a time such as 2026-11-01T00:00:00Z; ${file:PATH} reads it from a file, as any text. With auto, a table's first destinations begin at the beginning, or where its queue has ended, and later ones now. It counts once: notifyd positions seek moves a destination that has a position."`
	Shards       int           `yaml:"shards" jsonschema:"minimum=1,maximum=64" jsonschema_description:"How many relays of a stream may deliver to the destination at once. Each shard gets the events whose aggregate hashes to it, and has concurrency and batch to itself. All relays must have the same number."`
	RateLimit    Rate          `yaml:"rate_limit" print:"set" jsonschema_description:"Most deliveries in a time, over all relays together: 100/s, 500/m, 10000/h or 50000/d. Events that may not go yet wait, and no attempt counts. No limit by default."`
	RateBurst    int           `yaml:"rate_burst" jsonschema:"minimum=0,maximum=1000000000" jsonschema_description:"Most deliveries at once after a quiet time; 0 is as many as go in a second, and at least 1."`
	RateKey      string        `yaml:"rate_key" print:"set" jsonschema_description:"Expression in CEL, such as payload.customer_id or headers['tenant'], that gives each of its values the rate limit for itself. Events for which it fails have one together."`
	ExpiresAfter time.Duration `yaml:"expires_after" jsonschema_description:"Age from which on an event is not delivered any more, and is no dead letter; it counts from when the event was written, or became available. 0 is never."`
	Backoff      Backoff       `yaml:"backoff" jsonschema_description:"Pause between the attempts for one event."`

	key *when.Expression // of RateKey; nil without one
}

// The values of Lane.Order.
const (
	OrderAuto      = "auto"
	OrderNone      = "none"
	OrderAggregate = "aggregate"
	OrderTotal     = "total"
)

// StartAuto is the default of Lane.StartFrom.
const StartAuto = "auto"

// OnDeadBlock is a value of Lane.OnDead.
const OnDeadBlock = "block"

// NeedsStream returns the settings that a queue cannot honor, such as
// "destination mail: order: aggregate".
func (c *Config) NeedsStream() (settings []string) {
	for _, d := range c.Destinations {
		if d.Order == OrderAggregate || d.Order == OrderTotal {
			settings = append(settings, "destination "+d.Name+": order: "+d.Order)
		}
		if d.OnDead == OnDeadBlock {
			settings = append(settings, "destination "+d.Name+": on_dead: "+OnDeadBlock)
		}
		if setting := d.needsOrder(); setting != "" {
			settings = append(settings, "destination "+d.Name+": "+setting)
		}
		if d.StartFrom != StartAuto {
			settings = append(settings, "destination "+d.Name+": start_from: "+d.StartFrom)
		}
		if d.Shards > 1 {
			settings = append(settings, "destination "+d.Name+": shards: "+strconv.Itoa(d.Shards))
		}
	}
	return settings
}

// Backoff is the growth of the pause between attempts. The actual pause is a
// random part of it, so that events that failed together do not return together.
type Backoff struct {
	Initial    time.Duration `yaml:"initial" jsonschema_description:"Pause after the first failure."`
	Max        time.Duration `yaml:"max" jsonschema_description:"The pause does not grow beyond this."`
	Multiplier float64       `yaml:"multiplier" jsonschema:"minimum=1,maximum=100" jsonschema_description:"Factor by which the pause grows with each failure."`
}

// Route sends the events whose type matches to one or more destinations.
type Route struct {
	Match string   `yaml:"match" jsonschema:"required" jsonschema_description:"An event type, a prefix such as 'order.*', or '*' for every event. The most specific match wins."`
	To    []string `yaml:"to" jsonschema:"required,minItems=1" jsonschema_description:"Destinations that receive the event, independently of each other." kind:"list of names"`
	When  string   `yaml:"when" print:"set" jsonschema_description:"Condition over 'payload', 'headers' and 'event', such as 'payload.total > 100'. Only events that meet it go to the destinations; an event for which it fails becomes a dead letter." kind:"condition in CEL"`

	filter *Filter // nil without When
}

// defaults returns the settings of an empty file. Those of the relay and its
// lanes are the library's own.
func defaults() *Config {
	relay, alerts := engine.DefaultLimits(), alert.DefaultConfig()
	return &Config{
		Database: Database{Schema: "public"},
		Relay: Relay{
			Connections:     relay.Claims,
			Batch:           relay.Batch,
			BatchBytes:      relay.Bytes,
			MaxEventBytes:   relay.EventBytes,
			LockBudget:      relay.LockBudget,
			Lease:           relay.Lease,
			PollInterval:    relay.PollInterval,
			Canary:          engine.DefaultCanary,
			ShutdownTimeout: dispatch.DefaultShutdownTimeout,
		},
		Retention: Retention{Keep: engine.DefaultRetention, Batch: engine.DefaultPurgeBatch, Partitions: "none"},
		Log:       Log{Level: "info", Format: "auto"},
		Admin:     Admin{Payloads: "shown"},
		Alerts:    Alerts{To: []string{}, On: []string{}, Every: alerts.Every, OldestWaiting: alerts.OldestWaiting},
		Outboxes:  Outboxes{List: []Outbox{}, Every: defaultEvery},
		origins:   &origins{},
	}
}

// defaultLane returns the lane of a destination without settings. It has no nil map or list: Print
// writes {} or [], which is read back as empty and not as nil.
func defaultLane() Lane {
	lane := dispatch.DefaultLaneConfig()
	return Lane{
		Concurrency: lane.Concurrency,
		Batch:       lane.Batch,
		Timeout:     lane.Timeout,
		MaxAttempts: lane.MaxAttempts,
		Priority:    lane.Priority,
		Order:       OrderAuto,
		OnDead:      "continue",
		StartFrom:   StartAuto,
		Shards:      1,
		Backoff:     Backoff{Initial: lane.Backoff.Initial, Max: lane.Backoff.Max, Multiplier: lane.Backoff.Multiplier},
	}
}
