package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

type result struct {
	code           int
	stdout, stderr string
}

// command runs a command line in an environment of its own.
func invoke(t *testing.T, args ...string) result {
	t.Helper()
	return commandIn(t, nil, args...)
}

func file(t *testing.T, data string) string {
	t.Helper()
	return testenv.WriteFile(t, filepath.Join(t.TempDir(), "notifyd.yaml"), data)
}

const good = "version: 1\ndestinations: {a: {type: log}, b: {type: log}}\nroutes: [{match: '*', to: [a, b]}]\n"

func TestCheckConfig(t *testing.T) {
	t.Parallel()
	path := file(t, good)
	if got, want := invoke(t, "check-config", "-c", path), (result{0, path + ": ok, 2 destinations, 1 route\n", ""}); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	path = file(t, "version: 1\nrelay: {batch: 0}\nlogs: {}\n")
	want := result{78, "", path + ":2:16: relay.batch: \"0\" is too small: the least is 1\n" +
		path + ":3:1: unknown key \"logs\" (did you mean \"log\"?)\n"}
	if got := invoke(t, "check-config", "--config="+path); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	path = file(t, "version: 1\ndestinations:\n  a: {type: log}\n")
	want = result{0, path + ": ok, 1 destination, 0 routes\n", path + ":3:3: warning: no route leads to the destination \"a\"\n"}
	if got := invoke(t, "check-config", "-c", path); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	want = result{78, "", "/not/there: cannot be read: no such file or directory\n"}
	if got := invoke(t, "check-config", "-c", "/not/there"); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	cases := []struct {
		args string
		want string
	}{
		{"--nope", "notifyd: unknown flag: --nope\nsee notifyd --help\n"},
		{"nope", "notifyd: unknown command \"nope\" for notifyd\nsee notifyd --help\n"},
		{"confg print", "notifyd: unknown command \"confg\" for notifyd (did you mean config?)\nsee notifyd --help\n"},
		{"check-config --nope", "notifyd: unknown flag: --nope\nsee notifyd check-config --help\n"},
		{"check-config more", "notifyd: unknown command \"more\" for \"notifyd check-config\"\nsee notifyd check-config --help\n"},
		{"check-config --config", "notifyd: flag needs an argument: --config\nsee notifyd check-config --help\n"},
		{"config", "notifyd: notifyd config needs a command\nsee notifyd config --help\n"},
		{"config prin", "notifyd: unknown command \"prin\" for notifyd config (did you mean print?)\nsee notifyd config --help\n"},
		{"config init a b", "notifyd: accepts at most 1 arg(s), received 2\nsee notifyd config init --help\n"},
		{"version --log-level=loud", "notifyd: invalid argument \"loud\" for \"--log-level\" flag: must be one of debug, info, warn, error\nsee notifyd version --help\n"},
		{"completion nope", "notifyd: unknown command \"nope\" for notifyd completion\nsee notifyd completion --help\n"},
	}
	for _, c := range cases {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			if got, want := invoke(t, strings.Fields(c.args)...), (result{64, "", c.want}); got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"--help"}, {"help"}, {"config", "--help"}, {"help", "config", "init"}, {"completion", "bash"}} {
		if got := invoke(t, args...); got.code != 0 || got.stdout == "" || got.stderr != "" {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

// TestExamplesInHelp: every command shows how it is used, in lines that begin
// with the command itself.
func TestExamplesInHelp(t *testing.T) {
	t.Parallel()
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Example) {
			if !strings.HasPrefix(line, "  notifyd ") || cmd.HasParent() && !strings.HasPrefix(line, "  "+cmd.CommandPath()) {
				t.Errorf("%s has the example %q", cmd.CommandPath(), line)
			}
		}
		if cmd.Example == "" && !cmd.Hidden {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(newRootCmd(&command.App{}))
	if got := invoke(t); got.code != 0 || got.stdout != invoke(t, "--help").stdout || !strings.Contains(got.stdout, "\nExamples:\n  notifyd demo ") {
		t.Errorf("notifyd alone: %+v", got)
	}
}

// TestOneWayToAskForJSON: -o json, for every command that has a form for programs.
func TestOneWayToAskForJSON(t *testing.T) {
	t.Parallel()
	var check func(*cobra.Command) int
	check = func(cmd *cobra.Command) (found int) {
		if cmd.Flags().Lookup("json") != nil {
			t.Errorf("%s has --json: -o json is the way", cmd.CommandPath())
		}
		if f := cmd.Flags().Lookup("output"); f != nil {
			if found++; f.Shorthand != "o" || f.Value.Set("json") != nil {
				t.Errorf("%s: -o json is refused", cmd.CommandPath())
			}
		}
		for _, sub := range cmd.Commands() {
			found += check(sub)
		}
		return found
	}
	if check(newRootCmd(&command.App{})) == 0 {
		t.Error("no command has -o")
	}
}

func TestConfigInit(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new.yaml")
	if got := invoke(t, "config", "init", path); got.code != 0 || !strings.HasPrefix(got.stderr, "wrote "+path) {
		t.Fatalf("init: %+v", got)
	}
	if got := invoke(t, "check-config", "-c", path); got != (result{0, path + ": ok, 1 destination, 2 routes\n", ""}) {
		t.Errorf("check-config: %+v", got)
	}
	if got := invoke(t, "config", "init", path); got.code != 1 || !strings.Contains(got.stderr, "exists: --force overwrites it") {
		t.Errorf("second init: %+v", got)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 10000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := invoke(t, "config", "init", "--force", "-c", path); got.code != 0 {
		t.Errorf("init --force: %+v", got)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := invoke(t, "config", "init", "-"); got != (result{0, string(data), ""}) {
		t.Errorf("init -: %+v", got)
	}
	if got := invoke(t, "config", "init", "/not/there/x.yaml"); got.code != 1 {
		t.Errorf("init to nowhere: %+v", got)
	}
}

func TestConfigPrint(t *testing.T) {
	t.Parallel()
	path := file(t, good+"database: {url: 'postgres://u:hunter2@h/db'}\n")
	got := invoke(t, "config", "print", "-c", path, "--log-level", "debug", "--log-format=json")
	for _, want := range []string{"url: postgres://u:${redacted}@h/db\n", "  level: debug\n  format: json\n", "    output: stdout\n"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%q is missing in %+v", want, got)
		}
	}
	if got.code != 0 || strings.Contains(got.stdout, "hunter2") {
		t.Errorf("%+v", got)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	if got := invoke(t, "version"); got.code != 0 || !strings.HasPrefix(got.stdout, "notifyd ") || !strings.Contains(got.stdout, "go1.") {
		t.Errorf("%+v", got)
	}
	var info buildInfo
	if got := invoke(t, "version", "-o", "json"); json.Unmarshal([]byte(got.stdout), &info) != nil || info.Go == "" || info.Version == "" {
		t.Errorf("%+v", got)
	}
	if flag, cmd := invoke(t, "--version"), invoke(t, "version"); flag != cmd {
		t.Errorf("--version: %+v, and the command: %+v", flag, cmd)
	}
	b := buildInfo{Version: "v1.2.3", Commit: "abc", Modified: true, Go: "go1.26", Platform: "linux/amd64"}
	if got := b.String(); got != "notifyd v1.2.3 (commit abc, modified, go1.26, linux/amd64)" {
		t.Error(got)
	}
}
