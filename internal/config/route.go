package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/field"
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

// checkRoutes checks the routes against each other and against the names of
// the destinations. line returns the line of a setting.
func checkRoutes(routes []Route, names []string, line func(path string) int) error {
	var errs []error
	first := map[string]string{}
	for i, r := range routes {
		path := fmt.Sprintf("routes.%d", i)
		match := path + ".match"
		if err := checkMatch(r.Match); err != nil {
			errs = append(errs, &field.Error{Path: match, Err: err})
		} else if before, ok := first[r.Match]; ok {
			errs = append(errs, field.Errorf(match, "%s has a route on line %d: add the destinations there", quote(r.Match), line(before)))
		} else {
			first[r.Match] = match
		}
		errs = append(errs, checkTo(r.To, names, path+".to")...)
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
		case !slices.Contains(names, name):
			errs = append(errs, field.Errorf(at, "there is no destination %s%s", quote(name), suggest(name, names)))
		case slices.Contains(to[:i], name):
			errs = append(errs, field.Errorf(at, "the destination %s is there twice", quote(name)))
		}
	}
	return errs
}

// RouteOf returns the destinations of an event type, nil if no route matches it.
// The most specific match wins, as it does in the relay.
func (c *Config) RouteOf(eventType string) []string {
	patterns := make([]string, len(c.Routes))
	for i, r := range c.Routes {
		patterns[i] = r.Match
	}
	if best := delivery.BestPattern(patterns, eventType); best >= 0 {
		return c.Routes[best].To
	}
	return nil
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
