package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLoadDatabase reads a file whose other secrets, and even destinations, are missing.
func TestLoadDatabase(t *testing.T) {
	t.Parallel()
	load := func(text string, env map[string]string) (*Config, error) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "notifyd.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return LoadDatabase(path, "", func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	}
	const rest = `
destinations:
  mail: {type: unknown, password: "${env:MISSING}", more: &url "${env:THE_URL}", file: "${file:/not/there}"}
routes: [{match: "*", to: nowhere}]
`
	env := map[string]string{"THE_URL": "postgres://h/db"}
	for _, text := range []string{
		"version: 1\ndatabase: {url: \"${env:THE_URL}\", schema: shop}\nretention: {keep: 0}" + rest,
		"version: 1" + rest + "database: {url: *url, schema: shop}\nretention: {keep: 0s}\n",
	} {
		c, err := load(text, env)
		if err != nil || c.Database.URL.Reveal() != "postgres://h/db" || c.Database.Schema != "shop" || c.Retention.Keep != 0 {
			t.Errorf("%s:\n%+v, %v", text, c, err)
		}
	}
	c, err := load("version: 1"+rest, map[string]string{"DATABASE_URL": "postgres://other/db"})
	if err != nil || c.Database.URL.Reveal() != "postgres://other/db" || c.Database.Schema != "public" || c.Retention.Keep != 7*24*time.Hour {
		t.Errorf("defaults: %+v, %v", c, err)
	}
	for text, want := range map[string]string{
		"version: 1\ndatabase: {url: \"${env:MISSING}\"}":    "the environment variable MISSING is not set",
		"version: 2\ndatabase: {schema: x}":                  "version 2 is not supported",
		"database: {schema: x}":                              `the key "version" is missing`,
		"version: 1\ndatabase: {shema: x}":                   `unknown key "shema"`,
		"version: 1\ndatabse: {schema: x}":                   `unknown key "databse" (did you mean "database"?)`,
		"version: 1\ndatabase: {url: \"mysql://swordfish\"}": "not a PostgreSQL connection string",
		"[]":   "expected a mapping",
		"a: [": "",
		"":     "the file is empty",
	} {
		if _, err := load(text, nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "swordfish") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if _, err := load("&a {<<: *a, version: 1}", nil); err == nil || !strings.Contains(err.Error(), "the anchor contains itself") {
		t.Errorf("a file that merges itself: %v", err)
	}
	if _, err := LoadDatabase(filepath.Join(t.TempDir(), "none.yaml"), "", nil); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("no file: %v", err)
	}
}
