package config_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/delivery"
)

const twoDestinations = "version: 1\ndestinations: {a: {type: log}, b: {type: log}}\nroutes:\n"

// TestWhen: a condition is compiled with the file, and decides about events; its error names the file, the route, the
// expression and the place in it.
func TestWhen(t *testing.T) {
	t.Parallel()
	c := mustParse(t, twoDestinations+`  - {match: order.*, to: a, when: payload.total > 100}
  - match: order.*
    to: b
    when: |
      headers.tenant == "acme" &&
        payload.vip
  - {match: "*", to: [a, b]}
`)
	if c.Routes[2].Filter() != nil || len(c.RoutesOf("order.placed")) != 2 || len(c.RoutesOf("x")) != 1 || strings.Join(c.RouteOf("order.placed"), " ") != "a b" {
		t.Errorf("%+v", c.Routes)
	}
	for _, f := range []struct {
		route   int
		payload string
		want    bool
		err     string
	}{
		{0, `{"total": 101}`, true, ""},
		{0, `{"total": 100}`, false, ""},
		{1, `{"vip": true}`, true, ""},
		{0, `{}`, false, `when of the route "order.*" (notifyd.yaml:4:35): payload.total > 100: column 8, at payload.total: the event has no such member`},
		{1, `{}`, false, `(notifyd.yaml:7:11): headers.tenant == "acme" && payload.vip: line 2, column 10, at payload.vip: `},
	} {
		e := &delivery.Event{Type: "order.placed", Payload: []byte(f.payload), Headers: map[string]string{"tenant": "acme"}}
		got, err := c.Routes[f.route].Filter().Match(&delivery.Candidate{Event: e})
		if got != f.want || (err == nil) != (f.err == "") || err != nil && !strings.Contains(err.Error(), f.err) {
			t.Errorf("%s: %t, %v, want %t, %s", f.payload, got, err, f.want, f.err)
		}
	}
	var printed bytes.Buffer
	if err := config.Print(&printed, c); err != nil {
		t.Fatal(err)
	}
	again := mustParse(t, printed.String())
	if d := config.Diff(c, again); !d.Empty() {
		t.Errorf("%+v\n%s", d, printed.String())
	}
	other := mustParse(t, twoDestinations+"  - {match: order.*, to: a, when: payload.total > 200}\n  - {match: '*', to: [a, b]}\n")
	if d := config.Diff(c, other).Routes; len(d) != 3 || d[0].When != "payload.total > 100" || d[2].When != "payload.total > 200" || len(d[2].Old) > 0 {
		t.Errorf("%+v", d)
	}
}

func TestWhenMistakes(t *testing.T) {
	t.Parallel()
	for routes, want := range map[string]string{
		"  - {match: a, to: a, when: total > 1}\n":                                         "4:29: routes.0.when: column 1: there is no total: an expression has payload, headers, event.type",
		"  - match: a\n    to: a\n    when: event.type == 5\n":                             "6:11: routes.0.when: column 12: == does not go with (string, int)",
		"  - {match: a, to: a, when: [1]}\n":                                               "routes.0.when: expected text, got a list",
		"  - {match: a, to: a, when: '${env:NOTHING}'}\n":                                  "routes.0.when: the expanded value is no condition",
		"  - {match: a, to: a, when: '${env:SECRET}'}\n":                                   "4:29: routes.0.when: the expanded value is no condition that notifyd understands (line 1, column 9)",
		"  - {match: a, to: a, when: 'true'}\n  - {match: a, to: b, when: 'true'}\n":       `routes.1.match: "a" has a route on line 4: add the destinations there`,
		"  - {match: a, to: [a, b], when: 'true'}\n  - {match: a, to: b, when: 'false'}\n": `routes.1.to.0: "a" leads to "b" on line 4 already: write both conditions there, with || between them`,
		"  - {match: a, to: a, wen: payload.x}\n":                                          `unknown key "wen" in routes.0 (did you mean "when"?)`,
	} {
		lookup := func(name string) (string, bool) {
			value, ok := map[string]string{"NOTHING": "", "SECRET": "hunter2 hunter3"}[name]
			return value, ok
		}
		_, err := config.Parse("notifyd.yaml", []byte(twoDestinations+routes), registry(), lookup)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s got %v\nwant %s", routes, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter") {
			t.Errorf("%v shows an expansion", err)
		}
	}
}
