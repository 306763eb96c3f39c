package config

import (
	"fmt"
	"strings"
	"testing"
)

// deadLetters reads destinations of which two have routes.
func deadLetters(t *testing.T, destinations string) (*Config, error) {
	t.Helper()
	file := "version: 1\ndatabase: {url: postgres://db}\n" +
		"outboxes:\n  list:\n    - {name: north, database: north}\n    - {name: south, database: south, routes: [{match: '*', to: [b.c]}]}\n" +
		"destinations:\n" + destinations + "routes: [{match: '*', to: [a.b]}]\n"
	return Parse("notifyd.yaml", []byte(file), Registry{"bare": func() Settings { return &bareSettings{} }}, func(string) (string, bool) { return "", false })
}

// TestDeadLettersTo: a receiver of dead letters needs no route, and belongs to the outboxes whose dead letters reach it.
func TestDeadLettersTo(t *testing.T) {
	t.Parallel()
	c, err := deadLetters(t, "  a.b: {type: bare, dead_letters_to: park.1}\n  b.c: {type: bare}\n  park.1: {type: bare, dead_letters_to: park.2}\n  park.2: {type: bare}\n")
	if err != nil || len(c.Warnings) > 0 {
		t.Fatal(err, c)
	}
	for name, want := range map[string]string{"north": "a.b park.1 park.2", "south": "b.c"} {
		var got []string
		for _, d := range c.For(c.Outboxes.Outbox(name)).Destinations {
			got = append(got, d.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s has %v, want %s", name, got, want)
		}
	}
}

// TestDeadLettersToMistakes: a mistake is at the line and column of the setting.
func TestDeadLettersToMistakes(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{
		"dead_letters_to: nobody":           `there is no destination "nobody"`,
		"dead_letters_to: b.c":              `a route leads to "b.c"`,
		"dead_letters_to: sharded":          `"sharded" has several shards`,
		"order: none, dead_letters_to: a.b": "dead letters would go round in a circle (a.b to a.b)",
		"dead_letters_to: [a, b]":           "expected text",
	} {
		_, err := deadLetters(t, "  a.b: {type: bare, "+settings+"}\n  b.c: {type: bare}\n  sharded: {type: bare, shards: 2}\n")
		column := strings.Index("  a.b: {type: bare, "+settings, "dead_letters_to") + len("dead_letters_to: ") + 1
		place := fmt.Sprintf("notifyd.yaml:8:%d: destinations.a.b.dead_letters_to: ", column)
		if err == nil || !strings.Contains(err.Error(), place+want) {
			t.Errorf("%s: %v, want %s%s", settings, err, place, want)
		}
	}
}
