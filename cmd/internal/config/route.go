package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/routing"
)

const (
	wildcard       = "*"
	prefixWildcard = ".*"
)

var (
	errMatchEmpty = errors.New(`is empty: write an event type, a prefix like "order.*", or "*" for every event`)
	errMatchSpace = errors.New("contains a space or another character that event types cannot have")
	errMatchStar  = errors.New(`the star may only stand alone ("*") or after a final dot ("order.*")`)
)

// checkMatch accepts an event type, "prefix.*" and "*".
func checkMatch(match string) error {
	if match == "" {
		return errMatchEmpty
	}

	if strings.ContainsFunc(match, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return errMatchSpace
	}

	name := match
	if match == wildcard {
		name = ""
	} else if before, ok := strings.CutSuffix(match, prefixWildcard); ok && before != "" {
		name = before
	}

	if strings.Contains(name, wildcard) {
		return errMatchStar
	}
	return nil
}

// checkRoutes checks the routes of the list at a path against each other and against the names of
// the destinations. line returns the line of a setting. A match may come again with another condition,
// and with other destinations.
func checkRoutes(routes []Route, at string, names []string, line func(path string) int) error {
	var errs []error
	first := map[[2]string]string{}
	leads := map[[2]string]string{}
	for i, r := range routes {
		path := fmt.Sprintf("%s.%d", at, i)
		match := path + ".match"
		rule := [2]string{r.Match, strings.TrimSpace(r.When)}

		if err := checkMatch(r.Match); err != nil {
			errs = append(errs, &handlers.FieldError{Path: match, Err: err})
		} else if before, ok := first[rule]; ok {
			errs = append(errs, field.Errorf(match, "%s has a route on line %d: add the destinations there",
				quote(r.Match), line(before)))
		} else {
			first[rule] = match
		}

		errs = append(errs, checkTo(r.To, names, path+".to")...)
		for n, name := range r.To {
			at := fmt.Sprintf("%s.to.%d", path, n)
			before, ok := leads[[2]string{r.Match, name}]
			switch {
			case !ok:
				leads[[2]string{r.Match, name}] = at
			case !strings.HasPrefix(before, path+".") && first[rule] == match:
				errs = append(errs, field.Errorf(at, "%s leads to %s on line %d already: "+
					"write both conditions there, with || between them", quote(r.Match), quote(name), line(before)))
			}
		}
	}

	return errors.Join(errs...)
}

func checkTo(to, names []string, path string) []error {
	if len(to) == 0 {
		return []error{field.Errorf(path, "names no destination")}
	}

	var errs []error
	for i, name := range to {
		at := fmt.Sprintf("%s.%d", path, i)
		switch {
		case !slices.Contains(names, name) && strings.Contains(name, ","):
			errs = append(errs, field.Errorf(at, "%s is one name: write a list, [%s]", quote(name), name))
		case !slices.Contains(names, name):
			errs = append(errs, field.Errorf(at, "there is no destination %s%s", quote(name), suggest(name, names)))
		case slices.Contains(to[:i], name):
			errs = append(errs, field.Errorf(at, "the destination %s is there twice", quote(name)))
		}
	}

	return errs
}

// RouteOf returns the destinations of an event type, nil if no route matches it, whatever the conditions
// of its routes. The most specific match wins, as it does in the relay.
func (c *Config) RouteOf(eventType string) (to []string) {
	for _, r := range c.RoutesOf(eventType) {
		to = append(to, r.To...)
	}
	return to
}

// RoutesOf returns the routes of an event type: those with the most specific match.
func (c *Config) RoutesOf(eventType string) (all []Route) {
	patterns := make([]string, len(c.Routes))
	for i, r := range c.Routes {
		patterns[i] = r.Match
	}

	best := routing.Best(patterns, eventType)
	for _, r := range c.Routes {
		if best >= 0 && r.Match == patterns[best] {
			all = append(all, r)
		}
	}
	return all
}

// Covers reports whether every event type that the pattern matches has a route.
func (c *Config) Covers(pattern string) bool {
	prefix, isPrefix := strings.CutSuffix(pattern, wildcard)

	for _, r := range c.Routes {
		wide, isWide := strings.CutSuffix(r.Match, wildcard)
		if r.Match == pattern || isWide && strings.HasPrefix(prefix, wide) {
			return true
		}
	}

	return !isPrefix && len(c.RouteOf(pattern)) > 0
}
