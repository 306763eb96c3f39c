package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
)

// needy is a file whose variables are not set: the connection strings', those of
// destinations, also behind anchors and merges, and one where a number belongs.
const needy = `version: 1
database: {url: "${env:NO_DATABASE}", listen_url: "${file:/not/there}"}
destinations:
  hook: &hook
    type: webhook
    url: https://hooks.example.com/${env:NO_TOKEN}
    bearer_token: ${env:NO_TOKEN}
    concurrency: ${env:NO_NUMBER}
    order: none
  other: {<<: *hook, signing_secrets: ["${env:NO_SECRET}"], on_dead: continue}
  third: *hook
routes:
  - {match: order.*, to: [hook, other]}
`

// TestCommandsNeedNoOtherSecrets runs what works on the tables without a variable of a
// destination, and with --database-url without those of the file's connection strings.
func TestCommandsNeedNoOtherSecrets(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, mode)
			flagged, named := file(t, needy), file(t, strings.Replace(needy, `{url: "${env:NO_DATABASE}", listen_url: "${file:/not/there}"}`, `{url: "${env:DATABASE}"}`, 1))
			for _, args := range []string{
				"migrate", "migrate status", "migrate --mode " + mode, "migrate print", "migrate --print-grants", "publish order.placed", "publish nobody.asked", "status -o json",
				"dlq list", "dlq replay --all",
			} {
				words := strings.Fields(args)
				if args != "migrate print" && args != "migrate --print-grants" {
					words = append(words, "--database-url", url)
				}
				if r := invoke(t, append(words, "-c", flagged)...); r.code != 0 {
					t.Errorf("%s with --database-url: %+v", args, r)
				}
				if r := commandIn(t, vars{"DATABASE": url}, append(strings.Fields(args), "-c", named)...); r.code != 0 {
					t.Errorf("%s: %+v", args, r)
				}
			}
			r := invoke(t, "status", "-c", flagged, "--database-url", url)
			for _, want := range []string{"hook", "other"} { // by the routes, and in a queue by nothing else
				if mode == "queue" && !strings.Contains(r.stdout, want) {
					t.Errorf("status does not know %s:\n%s", want, r.stdout)
				}
			}
			if r := invoke(t, "publish", "x", "-c", flagged); r.code != command.ExitConfig || !strings.Contains(r.stderr, "NO_DATABASE is not set") {
				t.Errorf("without the flag: %+v", r)
			}
		})
	}
}

// TestDoctorTakesTheFlag in place of both connection strings of the file: it asks no
// database but that one.
func TestDoctorTakesTheFlag(t *testing.T) {
	t.Parallel()
	url := database(t)
	path := file(t, fmt.Sprintf("version: 1\ndatabase: {url: '${env:NO_DATABASE}', listen_url: 'postgres://127.0.0.1:1/none'}\n%s",
		strings.TrimPrefix(good, "version: 1\n")))
	if r := invoke(t, "doctor", "-c", path, "--database-url", url); r.code != 0 || strings.Contains(r.stdout, "127.0.0.1:1") {
		t.Errorf("%+v", r)
	}
	path = file(t, needy)
	if r := invoke(t, "doctor", "-c", path, "--database-url", url); r.code != command.ExitConfig || strings.Contains(r.stderr, "NO_DATABASE") || !strings.Contains(r.stderr, "NO_TOKEN") {
		t.Errorf("a destination cannot be opened without its secret: %+v", r)
	}
}
