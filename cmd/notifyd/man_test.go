package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func pages(t *testing.T, env vars) map[string]string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "man", "man1")
	if got := commandIn(t, env, "man", dir); got != (result{}) {
		t.Fatalf("%+v", got)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[f.Name()] = string(data)
	}
	return all
}

// TestMan writes the pages twice with one date, and looks at some.
func TestMan(t *testing.T) {
	t.Parallel()
	epoch := vars{"SOURCE_DATE_EPOCH": "1700000000"}
	one := pages(t, epoch)
	if !maps.Equal(one, pages(t, epoch)) {
		t.Error("the pages differ from one time to the next")
	}
	for name, want := range map[string]string{
		"notifyd.1": "notifyd - Deliver events from a PostgreSQL outbox table", "notifyd-run.1": `"Nov 2023"`,
		"notifyd-migrate.1": `\fB--print-grants\fP`, "notifyd-config-init.1": "writes a commented configuration file",
	} {
		if !strings.Contains(one[name], want) {
			t.Errorf("%s lacks %q:\n%.2000s", name, want, one[name])
		}
	}
	if _, ok := one["notifyd-man.1"]; ok {
		t.Error("a hidden command has a page")
	}
	if got := commandIn(t, vars{"SOURCE_DATE_EPOCH": "now"}, "man", t.TempDir()); got.code != 1 || !strings.Contains(got.stderr, "must be a number of seconds") {
		t.Errorf("%+v", got)
	}
}

// TestCompletion: the scripts are there, and the program answers them.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got := invoke(t, "completion", shell); got.code != 0 || got.stderr != "" || !strings.Contains(got.stdout, "__complete") {
			t.Errorf("%s: code %d, %s", shell, got.code, got.stderr)
		}
	}
	if got := invoke(t, "__complete", "migrate", "st"); got.code != 0 || !strings.HasPrefix(got.stdout, "status\t") {
		t.Errorf("%+v", got)
	}
}
