package config

import (
	"reflect"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v4"
)

// Change is a setting with different values in two configurations.
type Change struct {
	// Path is the path of the setting, such as "relay.batch" or "destinations.mail.host".
	Path string `json:"path"`
	// Old and New are the values as [Print] shows them: without secrets, and with
	// the unexpanded text of the file. They may be equal. One is "" if the setting
	// is missing there.
	Old string `json:"old"`
	New string `json:"new"`
}

// Hidden reports whether the values themselves are not shown.
func (c Change) Hidden() bool { return c.Old == c.New }

// DestinationChange is the change of a destination that one or both of two
// configurations have.
type DestinationChange struct {
	Name string `json:"name"`
	// Kind is "added", "removed" or "changed".
	Kind string `json:"kind"`
	// Type is the destination's type, the new one if the type has changed.
	Type string `json:"type"`
	// Settings are the settings that differ, with paths inside the destination; if
	// the type differs, only the change of "type".
	Settings []Change `json:"settings,omitempty"`
}

// RouteChange is the change of a route. Old is empty if it was added, New if it
// was removed. The order of destinations makes no difference.
type RouteChange struct {
	Match string `json:"match"`
	// When is the condition of the route, as the file has it; a route whose condition has changed was removed and
	// added.
	When string   `json:"when,omitempty"`
	Old  []string `json:"old"`
	New  []string `json:"new"`
}

// Difference is the difference between two configurations. The order of
// destinations and routes makes no difference.
type Difference struct {
	Destinations []DestinationChange `json:"destinations"`
	Routes       []RouteChange       `json:"routes"`
	// Settings are the other settings: of the database, the relay and so on.
	Settings []Change `json:"settings"`
}

// Empty reports whether nothing differs.
func (d Difference) Empty() bool {
	return len(d.Destinations) == 0 && len(d.Routes) == 0 && len(d.Settings) == 0
}

// Names summarizes the changes: a word for each destination and route, and the
// paths of the other settings, without values.
func (d Difference) Names() []string {
	names := []string{}
	for _, c := range d.Destinations {
		names = append(names, "destinations."+c.Name+" "+c.Kind)
	}
	for _, r := range d.Routes {
		names = append(names, "routes "+r.Match)
	}
	for _, c := range d.Settings {
		names = append(names, c.Path)
	}
	return names
}

// Diff returns the difference of c from old. It compares the effective values,
// also of secrets, and returns only values that may be shown.
func Diff(old, c *Config) Difference {
	d := Difference{
		Destinations: []DestinationChange{},
		Routes:       diffRoutes(old.Routes, c.Routes),
		Settings:     diffLeaves(flattenConfig(old), flattenConfig(c)),
	}

	for _, was := range old.Destinations {
		is := findDestination(c, was.Name)
		if is == nil {
			d.Destinations = append(d.Destinations, DestinationChange{Name: was.Name, Kind: "removed", Type: was.Type})
			continue
		}
		if settings := diffDestination(old, was, c, *is); len(settings) > 0 {
			change := DestinationChange{Name: was.Name, Kind: "changed", Type: is.Type, Settings: settings}
			d.Destinations = append(d.Destinations, change)
		}
	}
	for _, is := range c.Destinations {
		if findDestination(old, is.Name) == nil {
			d.Destinations = append(d.Destinations, DestinationChange{Name: is.Name, Kind: "added", Type: is.Type})
		}
	}
	return d
}

// Touches reports whether a setting differs whose path has the prefix.
func (d Difference) Touches(prefix string) bool {
	return slices.ContainsFunc(d.Settings, func(change Change) bool { return strings.HasPrefix(change.Path, prefix) })
}

// SameDestination reports whether both configurations have the destination, with the same settings.
func SameDestination(a, b *Config, name string) bool {
	whole := func(c *Config) *Config {
		if c.whole == nil {
			return c
		}
		one := *c
		one.Destinations = c.whole
		return &one
	}

	a = whole(a)
	b = whole(b)
	before := findDestination(a, name)
	after := findDestination(b, name)
	return before != nil && after != nil && len(diffDestination(a, *before, b, *after)) == 0
}

func findDestination(c *Config, name string) *Destination {
	for i := range c.Destinations {
		if c.Destinations[i].Name == name {
			return &c.Destinations[i]
		}
	}
	return nil
}

func diffDestination(oldConfig *Config, old Destination, newConfig *Config, is Destination) []Change {
	if old.Type != is.Type {
		return []Change{{Path: "type", Old: old.Type, New: is.Type}}
	}
	changes := diffLeaves(flattenDestination(oldConfig, old), flattenDestination(newConfig, is))
	for i := range changes {
		changes[i].Path = strings.TrimPrefix(changes[i].Path, "destinations."+is.Name+".")
	}
	return changes
}

func diffRoutes(old, is []Route) []RouteChange {
	changes := []RouteChange{}
	find := func(all []Route, r Route) []string {
		for _, other := range all {
			if other.Match == r.Match && other.When == r.When {
				return other.To
			}
		}
		return []string{}
	}

	change := func(r Route, old, is []string) {
		c := RouteChange{Match: r.Match, Old: old, New: is}
		if r.filter != nil {
			c.When = r.filter.String()
		}
		changes = append(changes, c)
	}

	for _, r := range old {
		if to := find(is, r); !SameSet(r.To, to) {
			change(r, r.To, to)
		}
	}

	for _, r := range is {
		if len(find(old, r)) == 0 {
			change(r, []string{}, r.To)
		}
	}

	return changes
}

// SameSet reports whether two lists have the same elements, in any order.
func SameSet(a, b []string) bool {
	a = slices.Sorted(slices.Values(a))
	b = slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// leaf is a setting with no settings below it.
type leaf struct{ path, shown, actual string }

// flattenConfig lists all settings but destinations and routes.
func flattenConfig(c *Config) (all []leaf) {
	shown := printer{origins: *c.origins}
	actual := printer{reveal: true}

	for _, s := range settingsOf(reflect.ValueOf(c).Elem()) {
		if s.name != "destinations" && s.name != "routes" {
			all = flatten(all, s.name, shown.setting(s, ""), actual.setting(s, ""))
		}
	}
	return all
}

func flattenDestination(c *Config, d Destination) (all []leaf) {
	shown := printer{origins: *c.origins}
	actual := printer{reveal: true}

	path := "destinations." + d.Name
	for _, s := range d.effective() {
		all = flatten(all, join(path, s.name), shown.setting(s, path), actual.setting(s, path))
	}
	return all
}

// flatten walks the two nodes of one value, which have the same shape.
func flatten(all []leaf, path string, shown, actual *yaml.Node) []leaf {
	switch {
	case shown == nil || actual == nil:
		return all
	case shown.Kind == yaml.MappingNode && shown.Style != yaml.FlowStyle: // a mapping on one line is one setting
		for i := 0; i+1 < len(shown.Content); i += 2 {
			all = flatten(all, join(path, shown.Content[i].Value), shown.Content[i+1], actual.Content[i+1])
		}
		return all
	default:
		return append(all, leaf{path, oneLeaf(shown), oneLeaf(actual)})
	}
}

// oneLeaf is a node on one line.
func oneLeaf(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode {
		return n.Value
	}

	parts := make([]string, len(n.Content))
	for i, item := range n.Content {
		parts[i] = oneLeaf(item)
	}

	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(parts); i += 2 {
			parts[i/2] = parts[i] + ": " + parts[i+1]
		}
		return "{" + strings.Join(parts[:len(parts)/2], ", ") + "}"
	}

	return "[" + strings.Join(parts, ", ") + "]"
}

func diffLeaves(old, is []leaf) []Change {
	changes := []Change{}
	find := func(all []leaf, path string) (leaf, bool) {
		i := slices.IndexFunc(all, func(l leaf) bool { return l.path == path })
		if i < 0 {
			return leaf{}, false
		}
		return all[i], true
	}

	for _, was := range old {
		if l, found := find(is, was.path); !found || l.actual != was.actual {
			changes = append(changes, Change{Path: was.path, Old: was.shown, New: l.shown})
		}
	}

	for _, l := range is {
		if _, found := find(old, l.path); !found {
			changes = append(changes, Change{Path: l.path, New: l.shown})
		}
	}

	return changes
}
