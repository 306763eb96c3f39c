package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pageConfigs returns the complete configurations on a page of the documentation.
func pageConfigs(t *testing.T, page string) []string {
	t.Helper()
	doc, err := os.ReadFile(root + page)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, block := range strings.Split(string(doc), "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if strings.HasPrefix(block, "version: ") {
			all = append(all, block)
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no configuration", page)
	}
	return all
}

// checkPage pastes the configurations of a page and checks them. files are
// those that they name.
func checkPage(t *testing.T, page string, env vars, files map[string]string) {
	t.Helper()
	env["DATABASE_URL"] = "postgres://localhost/app"
	for _, yaml := range pageConfigs(t, page) {
		path := file(t, yaml)
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := commandIn(t, env, "check-config", "-c", path); got.code != 0 {
			t.Errorf("%s: %+v\n%s", page, got, yaml)
		}
	}
}

func TestSlackPage(t *testing.T) {
	t.Parallel()
	checkPage(t, "docs/destinations/slack.md", vars{"SLACK_TOKEN": "xoxb-1"}, map[string]string{
		"slack-webhook": "https://hooks.slack.com/services/T0/B0/x\n",
	})
}

func TestSlackMistakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ settings, want string }{
		"token":   {"text: x", ":3:3: destinations.team.token: missing: "},
		"blocks":  {"token: x\n    channel: C1\n    blocks: '[{\"type\":\"section\"}]'", ":7:13: destinations.team.blocks: has a mistake in block 1: text and fields are missing"},
		"timeout": {"token: x\n    channel: C1\n    text: x\n    timeout: 10s", ":8:14: destinations.team.timeout: must be longer than request_timeout (15s)"},
		"tls":     {"token: x\n    channel: C1\n    text: x\n    tls: {ca_file: nowhere.pem}", ":8:20: destinations.team.tls.ca_file: cannot be read"},
		"webhook": {"webhook_url: hooks.slack.com/sesame-open\n    text: x", ":5:18: destinations.team.webhook_url: must be a URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := file(t, "version: 1\ndestinations:\n  team:\n    type: slack\n    "+c.settings+"\nroutes: [{match: '*', to: team}]\n")
			got := invoke(t, "check-config", "-c", path)
			if got.code != 78 || !strings.HasPrefix(got.stderr, path+c.want) || strings.Contains(got.stderr, "sesame") {
				t.Errorf("got  %+v\nwant %s", got, c.want)
			}
		})
	}
}
