//go:build testall

package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/cmd/internal/doctor"
)

// TestDoctorDestinations connects to a server of every kind, and to none of them.
func TestDoctorDestinations(t *testing.T) {
	t.Parallel()
	e := startEverything(t, "doctor")
	all, r := examineBy(t, file(t, e.config()))
	if len(all) != len(destinations.Registry("", nil, nil)) {
		t.Errorf("%d destinations: %+v", len(all), r)
	}
	for name, f := range all {
		if f.Severity != doctor.OK {
			t.Errorf("%s: %+v", name, f)
		}
	}
	// Nothing listens on the port 1 of the loopback address.
	gone := regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(e.config(), "127.0.0.1:1")
	gone = regexp.MustCompile(`port: \d+`).ReplaceAllString(gone, "port: 1")
	gone = strings.ReplaceAll(gone, "database: {url: \"postgres", "database: {url: \""+e.database+"\", listen_url: \"postgres")
	all, r = examineBy(t, file(t, gone), "--database-url", e.database)
	for name, f := range all {
		if name != "log" && name != "file" && (f.Severity != doctor.Error || !strings.Contains(f.Text, "refused") || f.Cure == "") {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if r.code != 1 || !strings.Contains(r.stderr, "doctor has found") || len(all) != len(destinations.Registry("", nil, nil)) {
		t.Errorf("exit code %d, %d destinations: %s", r.code, len(all), r.stderr)
	}
	topic, _ := examineBy(t, file(t, strings.Replace(e.config(), "topic: "+e.name, "topic: nowhere", 1)))
	if f := topic["kafka"]; f.Severity != doctor.Error || !strings.Contains(f.Text, "UNKNOWN_TOPIC_OR_PARTITION") {
		t.Errorf("a topic that does not exist: %+v", f)
	}
	queue, _ := examineBy(t, file(t, strings.Replace(e.config(), "queue_url: \""+e.queue.URL, "queue_url: \""+e.queue.URL+"x", 1)))
	if f := queue["sqs"]; f.Severity != doctor.Error {
		t.Errorf("a queue that does not exist: %+v", f)
	}
	table, _ := examineBy(t, file(t, strings.Replace(e.config(), "source: shop", "source: shop, table: nowhere", 1)))
	if f := table["postgres"]; f.Severity != doctor.Error || !strings.Contains(f.Text, "create the table") {
		t.Errorf("a table that does not exist: %+v", f)
	}
	for _, secret := range []string{"swordfish", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"} {
		if strings.Contains(r.stdout+r.stderr, secret) {
			t.Error("a secret is shown")
		}
	}
}
