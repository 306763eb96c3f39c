package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

// defaultEvery is the default of Outboxes.Every.
const defaultEvery = 30 * time.Second

// Outboxes are the outboxes of a daemon that has many: those of a list, and those that a query finds.
// The zero value is a daemon with one, that of Config.Database.
type Outboxes struct {
	// Outboxes, each with its own schema or database.
	List []Outbox `yaml:"list"`

	// Statement that lists further outboxes, sent to `database.url` in a
	// transaction that cannot write. Its columns are `name`, and as needed
	// `schema`, `database` and `url`; null means the same as a key that is left
	// out.
	Query string `yaml:"query" print:"set" kind:"SQL"`

	// Hosts of database servers that the column `url` may name, in addition to the
	// hosts in the connection strings of this file. Passwords and tokens of this
	// daemon are sent to no others.
	Hosts []string `yaml:"hosts" kind:"list of hosts"`

	// How often the query is sent.
	Every time.Duration `yaml:"every" kind:"duration, at least '1s'"`
}

// Outbox is one of several outboxes. A setting that it omits has the value of the file.
type Outbox struct {
	// Name in metrics, logs, commands and the ids of events: at most 63 letters,
	// digits, `-` and `_`, beginning with a letter or a digit.
	Name string `yaml:"name" jsonschema:"required"`

	// PostgreSQL schema of its tables.
	Schema string `yaml:"schema" print:"set" unset:"'database.schema'"`

	// Name of its database, on the server and with the user of `database.url`.
	Database string `yaml:"database" print:"set" unset:"that of 'database.url'"`

	// Connection string of its database, in place of `database`.
	URL handlers.Secret `yaml:"url" unset:"'database.url'"`

	// Like `database.listen_url`, for an outbox that has a `url`.
	ListenURL handlers.Secret `yaml:"listen_url"`

	// Routes of this outbox, in place of the file's. The outbox has the
	// destinations that its routes name.
	Routes []Route `yaml:"routes" kind:"list, as 'routes'" unset:"the file's 'routes'"`
}

// Used reports whether there are many outboxes.
func (o *Outboxes) Used() bool { return len(o.List) > 0 || o.Query != "" }

// outboxName keeps names usable in metrics, logs and flags, and in the ids of events, where the
// signatures of webhooks do not allow a dot.
var outboxName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

// minEvery keeps the query from becoming a load.
const minEvery = time.Second

func (o *Outboxes) validate(d *Database) error {
	var errs []error
	if o.Every < minEvery {
		errs = append(errs, field.Errorf("outboxes.every", "must be at least %s", formatDuration(minEvery)))
	}

	places := make(map[Place]string)
	for i := range o.List {
		one := &o.List[i]
		at := fmt.Sprintf("outboxes.list.%d", i)
		for _, err := range field.Split(one.Validate()) {
			errs = append(errs, &handlers.FieldError{Path: join(at, field.Path(err)), Err: errors.New(message(err))})
		}

		if slices.ContainsFunc(o.List[:i], func(other Outbox) bool { return other.Name == one.Name }) {
			errs = append(errs, field.Errorf(at+".name", "the outbox %s is there twice", quote(one.Name)))
		}

		database := one.of(d)
		place := database.place()
		if before, ok := places[place]; ok {
			errs = append(errs, field.Errorf(at, "%s has the same schema of the same database: "+
				"give each outbox a schema or a database of its own", quote(before)))
		}
		places[place] = one.Name
	}

	return errors.Join(errs...)
}

// Validate returns the mistakes in the outbox alone, joined, each a [*handlers.FieldError].
func (o *Outbox) Validate() error {
	var errs []error
	if !outboxName.MatchString(o.Name) {
		errs = append(errs, field.Errorf("name", "the name %s must be at most 63 letters, digits, - and _, "+
			"and start with a letter or digit", quote(o.Name)))
	}
	if o.Schema != "" {
		errs = append(errs, checkSchema("schema", o.Schema))
	}

	errs = append(errs, checkURL("url", o.URL), checkURL("listen_url", o.ListenURL))

	if o.Database != "" && !o.URL.IsZero() {
		errs = append(errs, field.Errorf("database", "is that of database.url, and this outbox has a url of its own: "+
			"write it there"))
	}
	if !o.ListenURL.IsZero() && o.URL.IsZero() {
		errs = append(errs, field.Errorf("listen_url", "needs a url beside it"))
	}

	return errors.Join(errs...)
}

// Place is where the tables of an outbox are.
type Place struct{ database, schema string }

func server(host string, port uint16) string {
	return net.JoinHostPort(strings.ToLower(host), strconv.Itoa(int(port)))
}

// of returns the database of the outbox.
func (o *Outbox) of(d *Database) Database {
	at := *d
	if o.Schema != "" {
		at.Schema = o.Schema
	}

	switch {
	case !o.URL.IsZero():
		at.URL = o.URL
		at.ListenURL = o.ListenURL
	case o.Database != "":
		at.URL = withDatabase(at.URL, o.Database)
		if !at.ListenURL.IsZero() {
			at.ListenURL = withDatabase(at.ListenURL, o.Database)
		}
	}

	return at
}

// withDatabase returns a connection string with the name of the database replaced.
func withDatabase(s handlers.Secret, name string) handlers.Secret {
	text := s.Reveal()
	scheme, rest, isURL := strings.Cut(text, "://")
	if !isURL { // libpq's other form, in which the last word counts; or none, for the variables PG*
		quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(name)
		return handlers.NewSecret(strings.TrimSpace(text + " dbname='" + quoted + "'"))
	}

	rest, query, _ := strings.Cut(rest, "?")
	hosts, _, _ := strings.Cut(rest, "/")
	text = scheme + "://" + hosts + "/" + url.PathEscape(name)

	// A database among the parameters would count more than the path.
	parameters := slices.DeleteFunc(strings.Split(query, "&"), func(p string) bool {
		key, _, _ := strings.Cut(p, "=")
		key, err := url.QueryUnescape(key)
		isDatabase := key == "dbname" || key == "database"
		return p == "" || err == nil && isDatabase
	})

	if len(parameters) > 0 {
		text += "?" + strings.Join(parameters, "&")
	}
	return handlers.NewSecret(text)
}

// Place returns where the tables of the configuration are, to be compared.
func (c *Config) Place() Place { return c.Database.place() }

// For returns the configuration of one outbox: its database, its routes, and their destinations. It shares all other
// settings with c.
func (c *Config) For(o *Outbox) *Config {
	one := *c
	one.Outboxes = defaults().Outboxes
	one.Database = o.of(&c.Database)

	if !o.URL.IsZero() {
		one.own = o.Name
		one.ownPath = "outboxes.query"
		if i := slices.IndexFunc(c.Outboxes.List, func(listed Outbox) bool { return listed.Name == o.Name }); i >= 0 {
			one.ownPath = fmt.Sprintf("outboxes.list.%d", i)
		}
	}

	one.Routes = o.routes(c)

	one.whole = c.Destinations
	one.Destinations = nil
	used := c.reached(one.Routes)
	for _, d := range c.Destinations {
		if used[d.Name] {
			one.Destinations = append(one.Destinations, d)
		}
	}

	return &one
}

// routes returns the routes of the outbox: its own, or those of the file.
func (o *Outbox) routes(c *Config) []Route {
	if len(o.Routes) > 0 {
		return o.Routes
	}
	return c.Routes
}

// DatabaseSetting returns a mistake in "url" or "listen_url" of the database of the file, or of the outbox that has its
// own. The message is the name of the setting, to be completed.
func (c *Config) DatabaseSetting(name string) Mistake {
	if c.own == "" {
		return c.Mistake("database."+name, "database."+name)
	}
	return c.Mistake(c.ownPath+"."+name, "outbox "+c.own+": "+name)
}

// AlertTargets returns the destinations that get alerts, in the order of the file.
func (c *Config) AlertTargets() (all Destinations) {
	whole := c.whole
	if whole == nil {
		whole = c.Destinations
	}

	for _, d := range whole {
		if slices.Contains(c.Alerts.To, d.Name) {
			all = append(all, d)
		}
	}
	return all
}

// SameWork reports whether a relay of c would do the same as one of old: they differ at most in what
// belongs to the whole daemon.
func SameWork(old, c *Config) bool {
	d := Diff(old, c)
	own := func(change Change) bool {
		return !strings.HasPrefix(change.Path, "admin.") && !strings.HasPrefix(change.Path, "outboxes.")
	}

	if len(d.Destinations) > 0 || len(d.Routes) > 0 || slices.ContainsFunc(d.Settings, own) {
		return false
	}

	before := *old
	before.Destinations = old.AlertTargets()
	after := *c
	after.Destinations = c.AlertTargets()
	return len(Diff(&before, &after).Destinations) == 0
}

// Outbox returns the named outbox of the list, or nil.
func (o *Outboxes) Outbox(name string) *Outbox {
	i := slices.IndexFunc(o.List, func(one Outbox) bool { return one.Name == name })
	if i < 0 {
		return nil
	}
	return &o.List[i]
}
