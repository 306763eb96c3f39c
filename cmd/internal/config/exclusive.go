package config

import (
	"errors"
	"slices"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/field"
)

// checkExclusive refuses a value that several destinations have, or several outboxes would have, where one alone may.
func (c *Config) checkExclusive() error {
	type claim struct{ setting, value string }
	owners := make(map[claim]string)
	var errs []error

	for i := range c.Destinations {
		d := &c.Destinations[i]
		s, ok := d.Settings.(Exclusive)
		if !ok {
			continue
		}

		setting, values := s.Exclusive(max(1, d.Shards))
		if len(values) == 0 {
			continue
		}

		path := "destinations." + d.Name + "." + setting
		taken := slices.IndexFunc(values, func(value string) bool { return owners[claim{setting, value}] != "" })
		if taken >= 0 {
			before := owners[claim{setting, values[taken]}]
			errs = append(errs, field.Errorf(path, "%s is that of destinations.%s, too: give each one of its own",
				quote(values[taken]), before))
			continue
		}

		for _, value := range values {
			owners[claim{setting, value}] = d.Name
		}

		switch users := c.outboxesOf(d.Name); {
		case len(users) > 1:
			errs = append(errs, field.Errorf(path, "the outboxes %s and %s would share it: "+
				"leave it out, so that each has one of its own", users[0], users[1]))
		case c.Outboxes.Query != "" && c.reached(c.Routes)[d.Name]:
			errs = append(errs, field.Errorf(path, "the outboxes that outboxes.query finds would share it: "+
				"leave it out, so that each has one of its own"))
		}
	}

	return errors.Join(errs...)
}

// outboxesOf returns the names of the listed outboxes whose routes lead to a destination.
func (c *Config) outboxesOf(destination string) (names []string) {
	for i := range c.Outboxes.List {
		o := &c.Outboxes.List[i]
		if c.reached(o.routes(c))[destination] {
			names = append(names, o.Name)
		}
	}
	return names
}

// reached returns the destinations to which the routes lead, and those to which dead letters of these lead.
func (c *Config) reached(routes []Route) map[string]bool {
	used := make(map[string]bool)
	for _, r := range routes {
		for _, name := range r.To {
			used[name] = true
		}
	}

	for range c.Destinations { // a chain has each destination once
		for i := range c.Destinations {
			if d := &c.Destinations[i]; used[d.Name] && d.OnDead.To != "" {
				used[d.OnDead.To] = true
			}
		}
	}

	return used
}

// checkDeadLetters checks where dead letters lead.
func (c *Config) checkDeadLetters() error {
	routes := c.Routes
	for i := range c.Outboxes.List {
		routes = append(slices.Clip(routes), c.Outboxes.List[i].Routes...)
	}

	var all []dispatch.Receiver
	for i := range c.Destinations {
		d := &c.Destinations[i]
		all = append(all, dispatch.Receiver{
			Name:   d.Name,
			Lane:   d.Lane.Lane,
			Routed: leadTo(routes, d.Name),
			Exact:  d.needsOrder() != "",
		})
	}

	return field.Under("destinations", dispatch.CheckDeadLetters(all))
}

// leadTo reports whether any of the routes leads to a destination.
func leadTo(routes []Route, destination string) bool {
	return slices.ContainsFunc(routes, func(r Route) bool { return slices.Contains(r.To, destination) })
}
