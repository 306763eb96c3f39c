package config

import (
	"strings"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/cmd/internal/alert"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/credential"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/laneconf"
	"github.com/notifyd/notifyd/internal/when"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// supportedVersion is the only value that the key "version" may have.
const supportedVersion = 1

// Config is the content of notifyd.yaml, with the defaults filled in.
type Config struct {
	// Version of the file format.
	Version int `yaml:"version" jsonschema:"required" kind:"'1'"`

	// PostgreSQL database that holds the outbox.
	Database Database `yaml:"database"`

	// How the relay reads events from the outbox.
	Relay notifyd.Config `yaml:"relay"`

	// How long delivered events are kept.
	Retention notifyd.Retention `yaml:"retention"`

	// Level and format of the log.
	Log Log `yaml:"log"`

	// Where events go, by a name of your choice.
	Destinations Destinations `yaml:"destinations"`

	// Which events go to which destinations.
	Routes []Route `yaml:"routes"`

	// HTTP server for metrics, health and the web console.
	Admin Admin `yaml:"admin"`

	// Alerts about dead letters, outages and events that wait too long.
	Alerts Alerts `yaml:"alerts"`

	// Several outboxes in one daemon, in place of the one of `database`.
	Outboxes Outboxes `yaml:"outboxes" unset:"none"`

	// Warnings are about settings that are allowed but probably not intended.
	Warnings []Mistake `yaml:"-"`

	// origins is a pointer so that %+v of a Config does not print it.
	origins *origins
	// file is the name of the file, and root its content, for the places of settings. It is a pointer so that %+v of a
	// Config does not print it.
	file string
	root *node
	// whole has all destinations of the file if Destinations belong to one outbox, and is nil otherwise.
	whole Destinations
	// own is the name of an outbox that has its own connection strings, and empty otherwise; ownPath is where the file has
	// them.
	own, ownPath string
}

// Wrong returns an error about a destination, such as that it cannot be opened,
// as an [*Error] with the position of the destination. The text must not hold a
// secret.
func (c *Config) Wrong(destination string, err error) error {
	path := "destinations." + destination
	return &Error{[]Mistake{c.Mistake(path, path+": "+oneLine(err.Error()))}}
}

// Mistake returns a mistake with the position of the setting at path, or of the innermost setting around it that the
// file has.
func (c *Config) Mistake(path, message string) Mistake {
	m := Mistake{File: c.file, Message: message}
	if c.root != nil {
		at := locate(c.root, path)
		m.Line = at.line
		m.Column = at.col
	}

	return m
}

// origins maps the path of each expanded value to its text in the file, which
// [Print] shows in place of the value.
type origins map[string]string

// Log holds the level and format of the log.
type Log struct {
	// Lowest level that is written.
	Level string `yaml:"level" enum:"debug,info,warn,error"`

	// `auto` is text on a terminal and JSON elsewhere.
	Format string `yaml:"format" enum:"auto,text,json"`
}

// Admin is the HTTP server for operators.
type Admin struct {
	// Where `/metrics`, `/livez`, `/readyz` and `/version` are served, such as
	// `127.0.0.1:9470`. Without a token, every client that reaches the address has
	// access.
	Listen string `yaml:"listen" kind:"address and port"`

	// URL path under which clients reach the server, such as `/ops`, if a reverse
	// proxy also serves other programs. The console's links begin with it. Requests
	// are answered with and without it, so the proxy may strip it.
	Prefix string `yaml:"prefix" print:"set" kind:"path of a URL" unset:"none"`

	// Certificate to serve HTTPS with, TLS 1.2 or newer.
	TLS AdminTLS `yaml:"tls" unset:"none: HTTP is served"`

	// Token that clients must send as `Authorization: Bearer TOKEN`, 16 characters
	// or more. `/livez` and the short answer of `/readyz` need none.
	Token handlers.Secret `yaml:"token"`

	// Serves profiles of the process at `/debug/pprof/`. Other machines need the
	// token.
	Pprof bool `yaml:"pprof"`

	// Serves the web console at `/console/`. Without a token, `listen` must be a
	// loopback address.
	Console bool `yaml:"console"`

	// The console shows and changes nothing: no pause, no replay, no discard.
	ReadOnly bool `yaml:"read_only"`

	// Second token to log in to the console with, 16 characters or more: that login
	// shows everything and changes nothing. It opens no path but the console's.
	ReadOnlyToken handlers.Secret `yaml:"read_only_token" print:"set"`

	// Request header in which a proxy names the person who acts at the console,
	// such as `X-Forwarded-User`. The name is the actor in `outbox_audit`.
	ActorHeader string `yaml:"actor_header" print:"set" unset:"none: the actor is 'console'"`

	// Addresses and networks of the proxies whose `actor_header` counts, such as
	// `127.0.0.1` or `10.1.0.0/16`. The header of any other client is ignored.
	//
	// See [Admin.Proxies].
	TrustedProxies []string `yaml:"trusted_proxies" print:"set" kind:"list of addresses and networks"`

	// Whether the console shows the payloads of events.
	Payloads string `yaml:"payloads" enum:"shown,hidden"`
}

// AdminTLS are PEM files. They are read again when they change.
type AdminTLS struct {
	// PEM file of the certificate and of those that lead to its authority, relative
	// to the configuration file. Read again when it changes; an unusable file
	// leaves the old certificate in use.
	CertFile string `yaml:"cert_file" kind:"path"`

	// PEM file of the key that belongs to `cert_file`. Read again when it changes.
	KeyFile string `yaml:"key_file" kind:"path"`
}

// Alerts configures notifications about problems that require an operator.
type Alerts struct {
	// Destinations that receive the alerts, as events of the type `notifyd.alert`.
	To []string `yaml:"to" kind:"list of names"`

	// Incidents to report.
	On []string `yaml:"on" enum:"dead_letter,destination,database,listener,relay,retention,waiting" unset:"all"`

	// Shortest time between two alerts. Incidents in between go into the next one.
	Every time.Duration `yaml:"every"`

	// How long an event may wait, retries included, before an alert reports it; `0`
	// is never.
	OldestWaiting time.Duration `yaml:"oldest_waiting"`
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

	// Applies the rate limit to each value of the expression, such as
	// `payload.customer_id`, separately. Events for which the expression fails
	// share one limit.
	RateKey string `yaml:"rate_key" print:"set" kind:"expression in CEL"`

	key *when.Expression // of RateKey; nil without one
}

// NeedsStream returns the settings that a queue cannot honor, with their places and messages such as
// "destinations.mail.order: aggregate".
func (c *Config) NeedsStream() (all []Mistake) {
	for _, d := range c.Destinations {
		settings := laneconf.NeedsStream(d.Lane.Lane)
		if setting := d.needsOrder(); setting != "" {
			settings = append(settings, setting)
		}

		for _, setting := range settings {
			message := "destinations." + d.Name + "." + setting
			path, _, _ := strings.Cut(message, ": ")
			all = append(all, c.Mistake(path, message))
		}
	}
	return all
}

// IgnoredByStream returns a warning for each setting of the file that has no effect in a stream.
func (c *Config) IgnoredByStream() (all []Mistake) {
	paths := []string{"relay.lock_budget", "relay.lease"}
	for _, d := range c.Destinations {
		paths = append(paths, "destinations."+d.Name+".priority")
	}

	for _, path := range paths {
		if has(c.root, path) {
			all = append(all, c.Mistake(path, "warning: "+path+": has no effect in a stream"))
		}
	}
	sortMistakes(all)

	return all
}

// Route sends the events whose type matches to one or more destinations.
type Route struct {
	// An event type, a prefix such as `order.*`, or `*` for every event. The most
	// specific match wins.
	Match string `yaml:"match" jsonschema:"required"`

	// Destinations that receive the event, independently of each other.
	To []string `yaml:"to" jsonschema:"required,minItems=1" kind:"list of names"`

	// Condition over `payload`, `headers` and `event`, such as
	// `payload.total > 100`. Only events that meet it go to the destinations; an
	// event for which it fails becomes a dead letter.
	When string `yaml:"when" print:"set" kind:"condition in CEL"`

	filter *Filter // nil without When
	place  string  // file, line and column of match
}

// defaults returns the settings of an empty file.
func defaults() *Config {
	alerts := alert.DefaultConfig()
	c := &Config{
		Database: Database{
			Schema:           outboxsql.DefaultSchema,
			PasswordCommand:  []string{},
			PasswordLifetime: credential.DefaultLifetime,
			passwords:        &credential.Passwords{},
		},
		Log:      Log{Level: "info", Format: "auto"},
		Admin:    Admin{Payloads: "shown"},
		Alerts:   Alerts{To: []string{}, On: []string{}, Every: alerts.Every, OldestWaiting: alerts.OldestWaiting},
		Outboxes: Outboxes{List: []Outbox{}, Hosts: []string{}, Every: defaultEvery},
		origins:  &origins{},
	}

	field.Fill(&c.Relay)
	field.Fill(&c.Retention)
	return c
}

// defaultLane returns the lane of a destination without settings.
func defaultLane() Lane { return Lane{Lane: laneconf.WithDefaults(delivery.Lane{})} }
