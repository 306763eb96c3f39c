package config

import (
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/alert"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/when"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// supportedVersion is the only value that the key "version" may have.
const supportedVersion = 1

// Config is the content of notifyd.yaml, with the defaults filled in.
type Config struct {
	Version      int               `yaml:"version" jsonschema:"required" jsonschema_description:"Version of the file format. Always 1."`
	Database     Database          `yaml:"database" jsonschema_description:"The PostgreSQL database that holds the outbox."`
	Relay        notifyd.Config    `yaml:"relay" jsonschema_description:"How the relay takes events from the outbox."`
	Retention    notifyd.Retention `yaml:"retention" jsonschema_description:"How long delivered events are kept."`
	Log          Log               `yaml:"log" jsonschema_description:"Contents and format of the log."`
	Destinations Destinations      `yaml:"destinations" jsonschema_description:"Where events go, by a name of your choice."`
	Routes       []Route           `yaml:"routes" jsonschema_description:"Which events go to which destinations."`
	Admin        Admin             `yaml:"admin" jsonschema_description:"The HTTP server for metrics and health."`
	Alerts       Alerts            `yaml:"alerts" jsonschema_description:"Notifications about dead letters, outages and events that wait too long."`
	Outboxes     Outboxes          `yaml:"outboxes" jsonschema_description:"Many outboxes in one daemon, in place of the one of database."`

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
	URL       handlers.Secret `yaml:"url" jsonschema_description:"Connection string, postgres://user:password@host:5432/db. Falls back to $DATABASE_URL, then to the PG* variables of libpq."`
	ListenURL handlers.Secret `yaml:"listen_url" jsonschema_description:"Connection string that leads directly to the database if url leads through a pooler in transaction mode, where LISTEN hears nothing and a queue does not work. Falls back to url."`
	Schema    string          `yaml:"schema" jsonschema_description:"PostgreSQL schema that holds the outbox tables."`
}

// Log holds the level and format of the log.
type Log struct {
	Level  string `yaml:"level" jsonschema:"enum=debug,enum=info,enum=warn,enum=error" jsonschema_description:"Lowest level that is written."`
	Format string `yaml:"format" jsonschema:"enum=auto,enum=text,enum=json" jsonschema_description:"text or json; auto means text on a terminal, json elsewhere."`
}

// Admin is the HTTP server for operators.
type Admin struct {
	Listen string `yaml:"listen" jsonschema_description:"Address to serve /metrics, /livez, /readyz and /version on, such as 127.0.0.1:9470; none by default."`
	// TLS is the server's certificate.
	TLS   AdminTLS        `yaml:"tls" jsonschema_description:"Certificate to serve HTTPS with; HTTP by default."`
	Token handlers.Secret `yaml:"token" jsonschema_description:"Token that requests must send as Authorization: Bearer, for everything but /livez and the bare answer of /readyz; 16 characters or more. None by default."`
	Pprof bool            `yaml:"pprof" jsonschema_description:"Serve profiles of the process at /debug/pprof/."`
	// Console and the fields below configure the web console.
	Console  bool   `yaml:"console" jsonschema_description:"Serve the web console at /console/ of admin.listen, which must be a loopback address unless there is a token."`
	ReadOnly bool   `yaml:"read_only" jsonschema_description:"The console shows and changes nothing: no pause, no replay, no discard."`
	Payloads string `yaml:"payloads" jsonschema:"enum=shown,enum=hidden" jsonschema_description:"Whether the console shows the payloads of events."`
}

// AdminTLS are PEM files. They are read again when they change.
type AdminTLS struct {
	CertFile string `yaml:"cert_file" jsonschema_description:"PEM file of the certificate, and of those that lead to its authority, relative to the configuration file. It is read again when it changes."`
	KeyFile  string `yaml:"key_file" jsonschema_description:"PEM file of the key that belongs to cert_file."`
}

// Alerts configures notifications about problems that the relay cannot fix by itself.
type Alerts struct {
	To            []string      `yaml:"to" jsonschema_description:"Names of destinations that get alerts, as events of the type notifyd.alert; none by default."`
	On            []string      `yaml:"on" jsonschema:"enum=dead_letter,enum=destination,enum=database,enum=listener,enum=relay,enum=retention,enum=waiting" jsonschema_description:"Incidents to report: dead_letter, destination, database, listener, relay, retention, waiting. All by default."`
	Every         time.Duration `yaml:"every" jsonschema_description:"Shortest time between two alerts; incidents in between go into the next one."`
	OldestWaiting time.Duration `yaml:"oldest_waiting" jsonschema_description:"How long an event may wait, retries included, before an alert reports it; 0 for never."`
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
	delivery.Lane
	RateKey string `yaml:"rate_key" print:"set" jsonschema_description:"Expression in CEL, such as payload.customer_id or headers['tenant'], that gives each of its values the rate limit for itself. Events for which it fails have one together."`

	key *when.Expression // of RateKey; nil without one
}

// NeedsStream returns the settings that a queue cannot honor, such as
// "destination mail: order: aggregate".
func (c *Config) NeedsStream() (settings []string) {
	for _, d := range c.Destinations {
		for _, setting := range d.NeedsStream() {
			settings = append(settings, "destination "+d.Name+": "+setting)
		}
		if setting := d.needsOrder(); setting != "" {
			settings = append(settings, "destination "+d.Name+": "+setting)
		}
	}
	return settings
}

// Route sends the events whose type matches to one or more destinations.
type Route struct {
	Match string   `yaml:"match" jsonschema:"required" jsonschema_description:"An event type, a prefix like order.*, or * for every event. The most specific match wins."`
	To    []string `yaml:"to" jsonschema:"required,minItems=1" jsonschema_description:"Names of destinations."`
	When  string   `yaml:"when" print:"set" jsonschema_description:"Condition in CEL over payload, headers and event, such as payload.total > 100. Only events that meet it go to the destinations; one for which it fails becomes a dead letter."`

	filter *Filter // nil without When
}

// defaults returns the settings of an empty file.
func defaults() *Config {
	alerts := alert.DefaultConfig()
	c := &Config{
		Database: Database{Schema: outboxsql.DefaultSchema},
		Log:      Log{Level: "info", Format: "auto"},
		Admin:    Admin{Payloads: "shown"},
		Alerts:   Alerts{To: []string{}, On: []string{}, Every: alerts.Every, OldestWaiting: alerts.OldestWaiting},
		Outboxes: Outboxes{List: []Outbox{}, Every: defaultEvery},
		origins:  &origins{},
	}
	field.Fill(&c.Relay)
	field.Fill(&c.Retention)
	return c
}

// defaultLane returns the lane of a destination without settings.
func defaultLane() Lane { return Lane{Lane: delivery.Lane{}.WithDefaults()} }
