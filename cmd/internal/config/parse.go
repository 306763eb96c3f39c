package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

// Parse reads a configuration from memory. The name appears in messages, and
// relative paths in "${file:PATH}" start at its folder. The error, if any, is an
// [*Error] with every mistake that could be found.
func Parse(name string, data []byte, registry Registry, lookup LookupEnv) (*Config, error) {
	return parse(name, data, registry, lookup, part{})
}

// parse reads a part of a configuration.
func parse(name string, data []byte, registry Registry, lookup LookupEnv, p part) (*Config, error) {
	list := newMistakes(name)
	expand := &expander{lookup: lookup, dir: filepath.Dir(name)}
	root := parseTree(data, list, expand, p)
	if root == nil {
		return nil, list.err()
	}

	c := defaults()
	c.file = name
	c.root = root
	d := &fileDecoder{decoder: decoder{list, expand, c.origins}, registry: registry, partial: p}

	d.decodeStruct(root, "", topLevel(c))

	if root.kind == kindMap {
		c.Destinations = d.destinations(root.get("destinations"), p.names)
		d.checkVersion(root, c.Version)
		if p.url == "" {
			d.fillURL(root, c, lookup)
		}
		d.checkWhole(root, c)
	}

	if err := list.err(); err != nil {
		return nil, err
	}

	if len(c.Alerts.On) == 0 {
		c.Alerts.On = alertKinds()
	}

	if p.url != "" { // checked by its reader, which knows its source
		c.Database.URL = handlers.NewSecret(p.url)
	}

	if p.keys == nil {
		c.warn()
	}

	return c, nil
}

// topLevel lists the keys of the file. It includes destinations, which [fileDecoder] decodes.
func topLevel(c *Config) []setting {
	all := settingsOf(reflect.ValueOf(c).Elem())
	for i := range all {
		if all[i].name == "destinations" {
			all[i].targets = nil
		}
	}
	return all
}

func (d *fileDecoder) checkVersion(root *node, version int) {
	const path = "version"
	n := root.get(path)
	switch {
	case n == nil || d.list.explains(path):
	case n.hidden:
		d.list.add(n.at, path, "version: write the version out: version: %d", supportedVersion)
	case n.kind == kindScalar && version != supportedVersion:
		d.list.add(n.at, path, "version %d is not supported: this notifyd reads version %d", version, supportedVersion)
	}
}

// checkWhole checks settings that depend on each other.
func (d *fileDecoder) checkWhole(root *node, c *Config) {
	d.validate(c.validate(), root, "")

	var names []string
	if n := root.get("destinations"); n != nil {
		for _, e := range n.entries { // also those with mistakes: they exist
			names = append(names, e.name)
		}
	}

	line := func(path string) int { return locate(root, path).line }
	d.validate(checkRoutes(c.Routes, "routes", names, line), root, "")
	d.compileFilters(root, c.Routes, "routes")
	d.validate(c.Outboxes.validate(&c.Database), root, "")

	if !d.partial.leavesOut("destinations") {
		for i := range c.Outboxes.List {
			o := &c.Outboxes.List[i]
			at := fmt.Sprintf("outboxes.list.%d", i)
			d.validate(checkRoutes(o.Routes, at+".routes", names, line), root, "")
			d.compileFilters(root, o.Routes, at+".routes")
		}
		d.validate(errors.Join(c.checkExclusive(), c.checkDeadLetters()), root, "")
	}

	if len(c.Alerts.To) > 0 {
		d.validate(errors.Join(checkTo(c.Alerts.To, names, "alerts.to")...), root, "")
	}
}

// EmptyURL describes the mistake of an empty connection string, often from an unset variable. An empty string does not
// select the server of the PG* variables.
const EmptyURL = "is empty: give it the connection string, or have neither database.url nor DATABASE_URL, to connect by the variables PG*"

// TrimURL removes the line break at the end of a connection string that a variable has from a file.
func TrimURL(url string) string { return strings.TrimRight(url, "\r\n") }

func trimmed(url handlers.Secret) handlers.Secret {
	if url.IsZero() {
		return url
	}
	return handlers.NewSecret(TrimURL(url.Reveal()))
}

// fillURL falls back to $DATABASE_URL. Without it the URL stays empty, and pgx
// reads the PG* variables, as psql does.
func (d *fileDecoder) fillURL(root *node, c *Config, lookup LookupEnv) {
	const path = "database.url"
	c.Database.URL = trimmed(c.Database.URL)
	c.Database.ListenURL = trimmed(c.Database.ListenURL)
	value, ok := lookup("DATABASE_URL")
	value = TrimURL(value)
	if !c.Database.URL.IsZero() || d.list.explains(path) {
		return
	}

	switch n := find(root, path); {
	case n.hidden && n.text == "" && !strings.HasSuffix(n.raw, ":-}"): // an empty default is intended
		d.list.add(n.at, path, "%s: the expanded value %s", path, EmptyURL)
		return
	case !ok:
		return
	case value == "":
		d.list.add(pos{1, 1}, path, "the environment variable DATABASE_URL, which stands in for %s, %s", path, EmptyURL)
		return
	}

	c.Database.URL = handlers.NewSecret(value)
	(*c.origins)[path] = "${env:DATABASE_URL}"
	d.expand.keep(value)

	if err := checkURL(path, c.Database.URL); err != nil {
		d.list.add(pos{1, 1}, path, "the environment variable DATABASE_URL, which stands in for %s, is %s", path, message(err))
	}
}

// reachable returns the destinations that routes, alerts or dead letters lead to.
func (c *Config) reachable() map[string]bool {
	routes := c.Routes
	for i := range c.Outboxes.List {
		routes = append(slices.Clip(routes), c.Outboxes.List[i].Routes...)
	}

	all := map[string]bool{}
	for _, r := range routes {
		for _, name := range r.To {
			all[name] = true
		}
	}
	for _, name := range c.Alerts.To {
		all[name] = true
	}
	for i := range c.Destinations {
		all[c.Destinations[i].OnDead.To] = true
	}
	return all
}

// warn records settings that are allowed but probably not intended.
func (c *Config) warn() {
	add := func(path, format string, args ...any) {
		c.Warnings = append(c.Warnings, c.Mistake(path, "warning: "+fmt.Sprintf(format, args...)))
	}

	for i, r := range c.Routes {
		if strings.HasSuffix(r.Match, ".") {
			add(fmt.Sprintf("routes.%d.match", i), "%q matches only the type that is spelt so, with the dot: "+
				"write %q for all types that begin with it", r.Match, r.Match+"*")
		}
	}

	hasWay := c.reachable()
	for _, dest := range c.Destinations {
		if !hasWay[dest.Name] {
			add("destinations."+dest.Name, "no route leads to the destination %q", dest.Name)
		}

		if s, ok := dest.Settings.(Warner); ok {
			for _, w := range field.Split(s.Warnings()) {
				path := join("destinations."+dest.Name, field.Path(w))
				add(path, "%s%s", prefix(path), oneLine(message(w)))
			}
		}
	}

	if len(c.Destinations) == 0 {
		add("destinations", "there are no destinations: nothing will be delivered")
	}

	sortMistakes(c.Warnings)
}
