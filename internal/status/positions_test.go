package status

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/observe"
)

// TestStatusOfStream reads a stream with a position that is owned, one that is
// not, and one of a destination that is gone.
func TestStatusOfStream(t *testing.T) {
	t.Parallel()
	for name, partitioned := range map[string]bool{"plain": false, "partitioned": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := stream(t, partitioned)
			route := func(string) []string { return []string{"mail", "audit"} }
			s, err := Read(t.Context(), conn, Options{Schema: "public", Route: route, Destinations: []string{"mail", "audit"}})
			if err != nil {
				t.Fatal(err)
			}
			text := s.Table(View{Clean: strings.TrimSpace})
			for _, c := range [][2]string{{`(?m)^(\(unrouted.*) \d+$`, "$1 4711"}, {`session \d+`, "session 4711"}, {`(\dh)\d\dm`, "${1}00m"}, {`\ds ago`, "0s ago"}, {` +`, " "}} {
				text = regexp.MustCompile(c[0]).ReplaceAllString(text, c[1])
			}
			const want = `action required:
No relay delivers audit: its shard has no owner.
notifyd run, with a configuration that has it; notifyd doctor, if one runs
No relay delivers mail: its shard has no owner.
notifyd run, with a configuration that has it; notifyd doctor, if one runs
An event has waited 3h00m for audit.
notifyd doctor, and the last error of audit
The configuration has no destination gone, and its position keeps the events above 2 from being purged.
put it back, or notifyd positions forget "gone"

destination state type fresh retry running parked dead oldest next try per s failed/s
mail ? - 0 0 0 0 0 - - - -
audit ? - 2 1 0 0 0 3h00m 1h00m - -
gone not configured - 3 0 0 0 0 - - - -

position head lag open blocked oldest purge session
(unrouted scanner) 5 0 0 0 - - 4711
audit 4 2 1 1 2h00m - none
gone 2 3 0 0 - - none
mail 5 0 0 0 - replay 1 none

replay of number ids left delivered failed skipped rate
mail 1 3 1 0 0 50/s

failing:
audit: event 1 (a), attempt 2, 0s ago: no
`
			action, rest, _ := strings.Cut(text, "\n\n")
			_, tables, _ := strings.Cut(rest, "\n\n")
			if table := action + "\n\n" + tables; table != want {
				t.Errorf("got\n%s\nwant\n%s", table, want)
			}
			if !strings.Contains(text, fmt.Sprintf("version %d, stream\n", s.Schema.Latest)) || len(s.Relays) != 1 || s.Relays[0].Owner != 7 {
				t.Errorf("%s\n%+v", text, s.Relays)
			}
			var keys struct {
				Mode    string
				Backlog struct{ Positions []map[string]any }
			}
			data, err := json.Marshal(s)
			if err == nil {
				err = json.Unmarshal(data, &keys)
			}
			if err != nil || keys.Mode != "stream" || len(keys.Backlog.Positions) != 4 {
				t.Fatalf("%s, %v", data, err)
			}
			for _, key := range []string{"destination", "shard", "number", "head", "open", "lag", "lowest", "holds_back_retention", "delivered", "updated_at"} {
				if _, ok := keys.Backlog.Positions[0][key]; !ok {
					t.Errorf("no key %s in %s", key, data)
				}
			}
		})
	}
}

// stream makes a stream in which a session owns the router's shard.
func stream(t *testing.T, partitioned bool) *pgx.Conn {
	t.Helper()
	url := testdb.URL(t, testdb.Tables{Partitioned: partitioned})
	conn, owner := testdb.Connect(t, url), testdb.Connect(t, url)
	exec(t, conn, `UPDATE outbox_mode SET mode = 'stream'`, `DROP INDEX outbox_events_fresh`,
		`INSERT INTO outbox_events (event_type, payload, created_at) SELECT 'a', '1', now() - (4 - i) * interval '1 h' FROM generate_series(1, 5) i`,
		`UPDATE outbox_events SET created_at = now() - interval '2 h' WHERE id >= 4`,
		`INSERT INTO outbox_positions (destination, head, open, owner) VALUES ('', 5, '{}', 7), ('audit', 4, '{[4,5)}', 8), ('gone', 2, '{}', NULL), ('mail', 5, '{}', NULL)`,
		`INSERT INTO outbox_replays (destination, from_id, to_id, head, number, created_by, delivered, failed, skipped, open, rate) VALUES ('mail', 2, 5, 3, 1000, 'ann', 1, 0, 0, '{[2,3)}', 50)`,
		`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, ordering_key, last_error, available_at)
			VALUES (1, 'audit', 'a', 'retry', 2, 'k', 'no', now() + interval '90 min')`)
	testdb.Member(t, owner, 7, "")
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for s := range slices.Values(statements) {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// TestManyRanges: status names a position with many open ranges, with the transaction that holds the ids, and a
// destination that waits for the search for events without a route.
func TestManyRanges(t *testing.T) {
	t.Parallel()
	s := Status{Backlog: observe.Backlog{Positions: []observe.Position{
		{Destination: "mail", Shards: 1, Ranges: observe.ManyRanges + 1, OpenTransaction: "pid 7", Session: &observe.ShardSession{}},
		{Destination: "stock", Shards: 1, Ranges: observe.ManyRanges, Unhanded: true, Session: &observe.ShardSession{}},
	}}}
	var texts []string
	for _, a := range s.Problems([]string{"mail", "stock"}) {
		if a.Kind == KindPosition {
			texts = append(texts, a.Destination+": "+a.Text)
		}
	}
	if len(texts) != 2 || !strings.Contains(texts[0], "mail: The position of mail has 4097 open ranges") || !strings.Contains(texts[0], "pid 7") || !strings.Contains(texts[1], "stock: stock waits") {
		t.Error(texts)
	}
}
