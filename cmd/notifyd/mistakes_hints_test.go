package main

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
)

// TestMistakesHaveCures: what newcomers write in the wrong place, or in the words of other tools, is answered with what to
// write, at its line and column, and without mistakes that follow from it.
func TestMistakesHaveCures(t *testing.T) {
	t.Parallel()
	const log, all = "destinations: {a: {type: log}, b: {type: log}}\n", "routes: [{match: '*', to: [a, b]}]\n"
	for name, c := range map[string]struct{ text, want string }{
		"settings in the column of names": {
			"destinations:\n  a:\n  type: log\n  concurrency: 3\n  b: {type: log}\n" + all,
			`:4:3: "type" is a setting of a destination, in the column of their names: indent it if it belongs to "a"` + "\n" +
				`:5:3: "concurrency" is a setting of a destination, in the column of their names: indent it if it belongs to "a"`,
		},
		"a setting after a destination": {"destinations:\n  a: {type: log}\n  backoff: {initial: 1s}\n  b: {type: log}\n" + all, `:4:3: "backoff" is a setting of a destination, in the column of their names: indent it if it belongs to "a"`},
		"a wrong column":                {"destinations:\n  a:\n    type: log\n   output: stderr\n" + all, ":5:4: not valid YAML: did not find expected key while parsing a block mapping that starts on line 3 (check the indentation: the keys of one mapping begin in one column, here in column 3)"},
		"a setting of a section":        {"listen: 127.0.0.1:9470\nkeep: 3d\n" + log + all, `:2:1: unknown key "listen": it belongs to admin` + "\n" + `:3:1: unknown key "keep": it belongs to retention`},
		"a setting of destinations":     {"max_attempts: 3\n" + log + all, `:2:1: unknown key "max_attempts": it belongs to a destination`},
		"words of other tools":          {"retries: 3\nmode: stream\n" + log + all, `:2:1: unknown key "retries": write max_attempts and retry of a destination` + "\n" + `:3:1: unknown key "mode": write notifyd migrate --mode: it is a property of the table`},
		"in a destination":              {"destinations: {a: {type: log, workers: 3}, b: {type: log}}\n" + all, `:2:31: unknown key "workers" in destinations.a: write concurrency of a destination`},
		"types by their protocol":       {"destinations: {a: {type: smtp}, b: {type: http}}\n" + all, `:2:26: unknown destination type "smtp" in destinations.a (did you mean "email"?)` + "\n" + `:2:43: unknown destination type "http" in destinations.b (did you mean "webhook"?)`},
		"names in one text":             {log + "routes: [{match: '*', to: 'a, b'}]\n", `:3:27: routes.0.to.0: "a, b" is one name: write a list, [a, b]`},
		"types in one route":            {log + "routes: [{match: [x, y], to: a}, {match: '*', to: b}]\n", `:3:18: routes.0.match: expected text, got a list: write a route for each`},
		"a number in quotes":            {"relay: {batch: '10'}\n" + log + all, `:2:16: relay.batch: expected a whole number, got "10": remove the quotes`},
		"a condition that ends":         {log + "routes: [{match: '*', to: [a, b], when: 'payload.total >'}]\n", `:3:41: routes.0.when: column 16: it is not an expression: it ends where something has to follow`},
	} {
		path := file(t, "version: 1\n"+c.text)
		want := path + strings.ReplaceAll(c.want, "\n:", "\n"+path+":") + "\n"
		if got := invoke(t, "check-config", "-c", path); got != (result{command.ExitConfig, "", want}) {
			t.Errorf("%s:\ngot  %+v\nwant %s", name, got, want)
		}
	}

	path := file(t, "version: 1\n"+log+"routes: [{match: order., to: a}, {match: '*', to: b}]\n")
	if got := invoke(t, "check-config", "-c", path); got.code != 0 || got.stderr != path+`:3:18: warning: "order." matches only the type that is spelt so, with the dot: write "order.*" for all types that begin with it`+"\n" {
		t.Errorf("a prefix without a star: %+v", got)
	}
}

// TestSecondRelayOfHost: an address that another process has is answered with what to change.
func TestSecondRelayOfHost(t *testing.T) {
	t.Parallel()
	other, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	config := file(t, fmt.Sprintf("version: 1\ndatabase: {url: %q}\nadmin: {listen: %q}\ndestinations: {a: {type: log}}\nroutes: [{match: '*', to: a}]\n", database(t), other.Addr()))
	if got := invoke(t, "run", "-c", config); got.code == 0 || !strings.Contains(got.stderr, "another process has this port, perhaps another relay: give each program of a host its own address") {
		t.Errorf("%+v", got)
	}
}
