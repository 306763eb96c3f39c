package dispatch

import (
	"errors"
	"strings"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/field"
)

// Receiver is a destination, as [CheckDeadLetters] sees it.
type Receiver struct {
	// Name is the name of the destination.
	Name string
	// Lane has its settings.
	Lane delivery.Lane
	// Routed means that a route leads to it.
	Routed bool
	// Exact means that it keeps its own position.
	Exact bool
}

// CheckDeadLetters checks delivery.OnDead.To of all destinations. It returns every mistake, joined, each a
// [*handlers.FieldError] whose path begins with the name of the destination.
//
// A receiver has no routes: an event and the report of its dead letter would share one row, and a stream would confuse
// them. It has one shard: the relay that writes a report does not know the shards of another relay. It keeps no position:
// only its own relay writes the rows of such a destination.
func CheckDeadLetters(all []Receiver) error {
	byName := make(map[string]*Receiver, len(all))
	for i := range all {
		byName[all[i].Name] = &all[i]
	}

	var errs []error
	for i := range all {
		to := all[i].Lane.OnDead.To
		if to == "" {
			continue
		}

		wrong := func(format string, args ...any) {
			errs = append(errs, field.Errorf(all[i].Name+".on_dead.to", format, args...))
		}

		receiver := byName[to]
		path := circle(byName, &all[i])
		switch {
		case path != nil:
			wrong("dead letters would go round in a circle (%s): end the chain at one of them", strings.Join(path, " to "))
		case receiver == nil:
			wrong("there is no destination %q: add it to the same relay, without a route", to)
		case receiver.Routed:
			wrong("a route leads to %q, which would take a dead letter for an event of its own: name a destination without routes", to)
		case receiver.Exact:
			wrong("%q keeps its own position, and dead letters have none: name a destination without exactly_once", to)
		case receiver.Lane.Shards > 1:
			wrong("%q has several shards: remove shards there", to)
		}
	}

	return errors.Join(errs...)
}

// circle returns the path of dead letters from a destination back to it, and nil if they end elsewhere.
func circle(byName map[string]*Receiver, from *Receiver) (path []string) {
	path = []string{from.Name}
	for at, n := from, 0; at != nil && n < len(byName); n++ {
		to := at.Lane.OnDead.To
		path = append(path, to)
		if to == from.Name {
			return path
		}
		at = byName[to]
	}

	return nil
}
