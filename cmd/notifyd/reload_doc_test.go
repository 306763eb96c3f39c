//go:build unix

package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestReloadPage runs docs/reload.md, and brings about each exit code in its table.
func TestReloadPage(t *testing.T) {
	t.Parallel()
	s := newStage(t, database(t))
	old, next := planFiles(t, s.url)
	s.write("etc/notifyd/config.yaml", testenv.ReadFile(t, old))
	s.write("new.yaml", testenv.ReadFile(t, next))
	const plan = "notifyd plan -c new.yaml --against /etc/notifyd/config.yaml"
	s.follow("docs/reload.md", map[string]act{
		"notifyd reload":                {as: "%s -c etc/notifyd/config.yaml", code: command.ExitFailure}, // none runs; TestReloadCommand has one
		plan + " -o json --exit-code":   {code: command.ExitChanges, says: `^\{`},
		plan + " --offline --exit-code": {code: command.ExitChanges, says: `~ audit \(log\)`},
	})
	s.write("gone.yaml", strings.Replace(testenv.ReadFile(t, next), "database:", "database: {url: 'postgres://127.0.0.1:1/none'}\n#", 1))
	s.write("wrong.yaml", testenv.ReadFile(t, next)+"more: 1\n")
	for line, want := range map[string]int{
		"plan -c new.yaml --against new.yaml --exit-code":                0,
		"plan -c gone.yaml --against new.yaml":                           1,
		"plan --more":                                                    64,
		"plan -c new.yaml --against etc/notifyd/config.yaml --exit-code": 3,
		"plan -c wrong.yaml":                                             78,
	} {
		s.command(step{language: "sh", text: "notifyd " + line}, act{code: want})
		if !regexp.MustCompile(`(?m)^\| ` + strconv.Itoa(want) + ` \|`).MatchString(testenv.ReadFile(t, root+"docs/reload.md")) {
			t.Errorf("the page does not have the exit code %d", want)
		}
	}
}
