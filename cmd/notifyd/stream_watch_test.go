package main

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/cmd/internal/doctor"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
	"github.com/notifyd/notifyd/internal/status"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// becomeStream makes the table of a database a stream, partitioned or not.
func becomeStream(t *testing.T, url string, partitioned bool) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if partitioned {
		err = outboxsql.Partition(t.Context(), conn, "public", outboxsql.PartitionOptions{})
	}
	if err == nil {
		err = outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeStream, outboxsql.ModeOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// queueOnly are the metrics that a relay of a stream does not have.
var queueOnly = regexp.MustCompile(`^notifyd_(claim|quer(y|ies)_|leases_)`)

// TestWatchStream has a daemon deliver a stream, and asks every command about it.
func TestWatchStream(t *testing.T) {
	t.Parallel()
	for name, partitioned := range map[string]bool{"plain": false, "partitioned": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, sink := database(t), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
			becomeStream(t, url, partitioned)
			base := shopConfig(url, sink.Port())
			if partitioned {
				base += "retention: {keep: 24h, partitions: daily}\n"
			}
			d := startDaemon(t, nil, "run", "-c", file(t, base+"\nadmin:\n  listen: 127.0.0.1:0\n"))
			d.stderr.await(t, `"relay started"`)
			address := regexp.MustCompile(`"msg":"admin server listening","listen":"([^"]+)"`).FindStringSubmatch(d.stderr.text())[1]
			path := file(t, base+"\nadmin:\n  listen: "+address+"\n")
			untilReady(t, "http://"+address+"/readyz")

			sink.Fail(smtpsink.Fault{Stage: smtpsink.Rcpt, Code: 550, Text: "5.1.1 no such user"})
			id := publishTo(t, url, "order.placed", order)
			until(t, url, `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE state = 'dead')`)
			if r := invoke(t, "dlq", "show", id, "-c", path); r.code != 0 || !strings.Contains(r.stdout, "mail: dead") || strings.Contains(r.stdout, "fresh") {
				t.Errorf("dlq show: %+v", r)
			}
			if r := invoke(t, "dlq", "replay", id, "-c", path); r.code != 0 {
				t.Errorf("dlq replay: %+v", r)
			}
			mails(t, sink, 1)
			until(t, url, `SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`)

			atTheTip := func(r result) bool {
				var s status.Status
				return json.Unmarshal([]byte(r.stdout), &s) == nil && s.Relay != nil && len(s.Attention) == 0 && s.Backlog.Fresh.N == 0 && len(s.Backlog.Positions) == 3 &&
					s.Mode == outboxsql.ModeStream && len(s.Relays) == 1 && s.Relays[0].Owner != 0
			}
			r := commandUntil(t, "at the tip", atTheTip, "status", "-c", path, "-o", "json")
			for _, key := range []string{`"destination": "mail"`, `"lag": 0`, `"application_name": "notifyd/leases"`} {
				if !strings.Contains(r.stdout, key) {
					t.Errorf("status lacks %s:\n%s", key, r.stdout)
				}
			}
			watchedByDoctor(t, path)
			watchedByPrometheus(t, "http://"+address+"/metrics")
			if code := d.end(t); code != 0 {
				t.Errorf("exit code %d:\n%s", code, d.stderr.text())
			}
		})
	}
}

// watchedByDoctor fails the test if a check of a stream that is well finds something.
func watchedByDoctor(t *testing.T, path string) {
	t.Helper()
	r := invoke(t, "doctor", "-c", path, "-o", "json")
	var report doctor.Report
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("%v in %+v", err, r)
	}
	checked := 0
	for _, f := range report.Findings {
		if !slices.Contains([]string{"schema", "suppression", "relays", "rights", "partitions", "autovacuum", "dead rows", "payloads", "stream", "shards", "positions", "gaps"}, f.Check) {
			continue
		}
		checked++
		if f.Severity != doctor.OK {
			t.Errorf("%+v", f)
		}
	}
	if checked != 12 {
		t.Errorf("%d of the checks were made: %+v", checked, report)
	}
}

// watchedByPrometheus compares what a relay of a stream exports with the page.
func watchedByPrometheus(t *testing.T, address string) {
	t.Helper()
	text := untilSays(t, address, "notifyd_canary_round_trip_seconds", "\nnotifyd_oldest_waiting_seconds 0", "\nnotifyd_mode{mode=\"stream\"} 1\n",
		`notifyd_position_lag{destination="mail",shard="0"} 0`, `notifyd_position_lag{destination="",shard="0"} 0`, `notifyd_position_unowned{destination="audit",shard="0"} 0`)
	exported := names(`(?m)^# TYPE (notifyd_\w+) `, text)
	documented := slices.DeleteFunc(names("(?m)^\\| `(notifyd_\\w+)`", testenv.ReadFile(t, "../../docs/metrics.md")), func(n string) bool {
		return queueOnly.MatchString(n) || strings.HasPrefix(n, "notifyd_outbox") || n == "notifyd_replay_remaining" || n == "notifyd_database_refuses" || n == "notifyd_destination_connected" || n == "notifyd_destination_blocked" || n == "notifyd_destination_unconfirmed"
	})
	if !slices.Equal(exported, documented) {
		t.Errorf("exported:\n%v\ndocumented:\n%v", exported, documented)
	}
}
