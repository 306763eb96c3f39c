package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/cmd/internal/doctor"
)

// examineBy runs doctor and returns what it says of the destinations, by name.
func examineBy(t *testing.T, path string, more ...string) (destinations map[string]doctor.Finding, r result) {
	t.Helper()
	r = invoke(t, append([]string{"doctor", "-c", path, "-o", "json"}, more...)...)
	var report doctor.Report
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("%v in %+v", err, r)
	}
	destinations = make(map[string]doctor.Finding)
	for _, f := range report.Findings {
		if name, ok := strings.CutPrefix(f.Check, "destination "); ok {
			destinations[name] = f
		}
	}
	return destinations, r
}

// TestDoctorExitCode: warnings count with --strict alone.
func TestDoctorExitCode(t *testing.T) {
	t.Parallel()
	url := database(t)
	execute(t, url, `ALTER TABLE outbox_events DISABLE TRIGGER outbox_events_notify`)
	r := invoke(t, "doctor", "--database-url", url)
	if r.code != 0 || !regexp.MustCompile(`(?m)^warning +trigger +The trigger outbox_events_notify is disabled.*\n +cure: ALTER TABLE`).MatchString(r.stdout) || !regexp.MustCompile(`^(examining .*\n)*$`).MatchString(r.stderr) {
		t.Errorf("%+v", r)
	}
	if r := invoke(t, "doctor", "--database-url", url, "--strict"); r.code != 1 || !strings.Contains(r.stderr, "doctor has found") {
		t.Errorf("strict: %+v", r)
	}
	for args, want := range map[string]string{
		"doctor -o yaml": "must be one of table, json", "doctor x": "unknown command", "status --output xml": "must be one of table, json",
		"doctor --database-url http://x": "not a connection string", "status --schema " + strings.Repeat("x", 64): "--schema",
	} {
		if r := invoke(t, strings.Fields(args)...); r.code != command.ExitUsage || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: %+v", args, r)
		}
	}
	for _, name := range []string{"status", "doctor"} {
		if r := invoke(t, "__complete", name, "--output", ""); r.stdout != "table\njson\n:4\n" {
			t.Errorf("completion of %s --output: %+v", name, r)
		}
	}
	if r := invoke(t, "status", "--database-url", "postgres://127.0.0.1:1/x"); r.code != 1 || !strings.Contains(r.stderr, "start the server") {
		t.Errorf("status of no server: %+v", r)
	}
	if r := invoke(t, "doctor", "--database-url", "postgres://x:swordfish@127.0.0.1:1/x"); r.code != 1 || !strings.Contains(r.stdout, "The database cannot be reached") ||
		strings.Contains(r.stdout+r.stderr, "swordfish") {
		t.Errorf("doctor of no server: %+v", r)
	}
}
