package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
)

// deadLetters reads destinations of which two have routes.
func deadLetters(t *testing.T, destinations string) (*Config, error) {
	t.Helper()
	file := "version: 1\ndatabase: {url: postgres://db}\n" +
		"outboxes:\n  list:\n    - {name: north, database: north}\n    - {name: south, database: south, routes: [{match: '*', to: [b.c]}]}\n" +
		"destinations:\n" + destinations + "routes: [{match: '*', to: [a.b]}]\n"
	return Parse("notifyd.yaml", []byte(file), Registry{"bare": func() Settings { return &bareSettings{} }}, func(name string) (string, bool) {
		value, ok := map[string]string{"WORD": "block", "NAME": "park", "EMPTY": "", "OTHER": "hidden"}[name]
		return value, ok
	})
}

// TestOnDeadTo: a receiver of dead letters needs no route, and belongs to the outboxes whose dead letters reach it.
func TestOnDeadTo(t *testing.T) {
	t.Parallel()
	c, err := deadLetters(t, "  a.b: {type: bare, on_dead: {to: park.1}}\n  b.c: {type: bare}\n  park.1: {type: bare, on_dead: {to: park.2, then: block}}\n  park.2: {type: bare}\n")
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

// TestOnDeadForms: a word or a mapping is read, printed as it was written, and read again.
func TestOnDeadForms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in, out, diff, stream string
		want                  delivery.OnDead
	}{
		{"on_dead: ", "on_dead: continue", "", "", delivery.OnDead{Then: delivery.OnDeadContinue}},
		{"on_dead: continue", "on_dead: continue", "", "", delivery.OnDead{Then: delivery.OnDeadContinue}},
		{"on_dead: block", "on_dead: block", "[{on_dead continue block}]", "notifyd.yaml:8:30: destinations.a.b.on_dead: block", delivery.OnDead{Then: delivery.OnDeadBlock}},
		{"on_dead: '${env:WORD}'", "on_dead: ${env:WORD}", "[{on_dead continue ${env:WORD}}]", "notifyd.yaml:8:30: destinations.a.b.on_dead: block", delivery.OnDead{Then: delivery.OnDeadBlock}},
		{"on_dead: {to: park}", "on_dead: {to: park, then: continue}", "[{on_dead continue {to: park, then: continue}}]", "", delivery.OnDead{To: "park", Then: delivery.OnDeadContinue}},
		{"on_dead: {to: park, then: }", "on_dead: {to: park, then: continue}", "[{on_dead continue {to: park, then: continue}}]", "", delivery.OnDead{To: "park", Then: delivery.OnDeadContinue}},
		{
			"on_dead: {to: '${env:NAME}', then: '${env:WORD}'}", "on_dead: {to: '${env:NAME}', then: '${env:WORD}'}", "[{on_dead continue {to: ${env:NAME}, then: ${env:WORD}}}]",
			"notifyd.yaml:8:56: destinations.a.b.on_dead.then: block",
			delivery.OnDead{To: "park", Then: delivery.OnDeadBlock},
		},
	} {
		const others = "  b.c: {type: bare}\n  park: {type: bare}\n"
		plain, err := deadLetters(t, "  a.b: {type: bare}\n"+others)
		if err != nil {
			t.Fatal(err)
		}
		read, err := deadLetters(t, "  a.b: {type: bare, "+c.in+"}\n"+others)
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		var b strings.Builder
		if err := Print(&b, read); err != nil {
			t.Fatal(err)
		}
		_, printed, _ := strings.Cut(b.String(), "  a.b:\n")
		if at := strings.Index(printed, "on_dead"); !strings.HasPrefix(printed[max(at, 0):], c.out+"\n") {
			t.Errorf("%s is printed as\n%s", c.in, printed)
		}
		again, err := deadLetters(t, "  a.b:\n    type: bare\n    "+c.out+"\n"+others)
		if err != nil || again.Destinations[0].OnDead != c.want || read.Destinations[0].OnDead != c.want {
			t.Errorf("%s: %+v, and again %+v, %v", c.in, read.Destinations[0].OnDead, again, err)
		}
		var changes []string
		for _, d := range Diff(plain, read).Destinations {
			changes = append(changes, fmt.Sprint(d.Settings))
		}
		if got := strings.Join(changes, " "); got != c.diff {
			t.Errorf("%s: difference %s, want %s", c.in, got, c.diff)
		}
		if got := strings.Trim(fmt.Sprint(read.NeedsStream()), "[]"); got != c.stream {
			t.Errorf("%s needs a stream for %q", c.in, got)
		}
	}
}

// TestOnDeadMistakes: a mistake is at the line and column of the setting, and has a cure.
func TestOnDeadMistakes(t *testing.T) {
	t.Parallel()
	const word, missing = "continue, block", "add the name of a destination, or write on_dead: "
	for _, c := range []struct{ settings, at, want string }{
		{"on_dead: {to: nobody}", "nobody", `on_dead.to: there is no destination "nobody": add it`},
		{"on_dead: {to: b.c}", "b.c", `on_dead.to: a route leads to "b.c"`},
		{"on_dead: {to: sharded}", "sharded", `on_dead.to: "sharded" has several shards`},
		{"order: none, on_dead: {to: a.b}", "a.b}", "on_dead.to: dead letters would go round in a circle (a.b to a.b)"},
		{"on_dead: {to: [a, b]}", "[a", "on_dead.to: expected text, got a list"},
		{"on_dead: {to: 5}", "5", "on_dead.to: expected text, got a number: put it in quotes"},
		{"on_dead: {to: '${env:OTHER}'}", "'$", "on_dead.to: there is no destination"},
		{"on_dead: {}", "on_dead", "on_dead.to: missing: " + missing + "continue"},
		{"on_dead: {then: block}", "on_dead", "on_dead.to: missing: " + missing + "block"},
		{"on_dead: {to: , then: block}", "to", "on_dead.to: missing: " + missing + "block"},
		{"on_dead: {to: ''}", "''", "on_dead.to: missing: " + missing + "continue"},
		{"on_dead: {to: '${env:EMPTY}'}", "'$", "on_dead.to: missing: " + missing + "continue"},
		{"on_dead: {to: sharded, the: block}", "the", `unknown key "the" in destinations.a.b.on_dead (did you mean "then"?)`},
		{"on_dead: {to: sharded, then: blok}", "blok", `on_dead.then: "blok" is not one of ` + word + ` (did you mean "block"?)`},
		{"on_dead: [parking]", "[", "on_dead: expected " + word + " or a mapping of keys and values, got a list"},
		{"on_dead: blok", "blok", `on_dead: "blok" is not one of ` + word + ` (did you mean "block"?)`},
		{"on_dead: parking", "parking", `on_dead: "parking" is not one of ` + word + `: write {to: parking} if it is the name of a destination`},
		{"on_dead: '${env:OTHER}'", "'$", "on_dead: the expanded value is not one of " + word},
		{"dead_letters_to: sharded", "dead", `unknown key "dead_letters_to" in destinations.a.b`},
	} {
		_, err := deadLetters(t, "  a.b: {type: bare, "+c.settings+"}\n  b.c: {type: bare}\n  sharded: {type: bare, shards: 2}\n")
		line := "  a.b: {type: bare, " + c.settings
		want := c.want
		if strings.HasPrefix(want, "on_dead") {
			want = "destinations.a.b." + want
		}
		want = fmt.Sprintf("notifyd.yaml:8:%d: %s", strings.LastIndex(line, c.at)+1, want)
		if err == nil || !slices.ContainsFunc(strings.Split(err.Error(), "\n"), func(line string) bool { return strings.Contains(line, want) }) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v\nwant %s", c.settings, err, want)
		}
	}
}
