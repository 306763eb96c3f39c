package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers/postgres"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestPostgresPage: the table of the page is the one of the package, and a worker by the page's statements handles
// what a relay by the page's configuration has written.
func TestPostgresPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(root + "docs/destinations/postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, part := range strings.Split(string(page), "```sql\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		blocks = append(blocks, block)
	}
	if len(blocks) != 3 || blocks[0] != postgres.Schema(postgres.Config{}) {
		t.Fatalf("%d statements; the first is %s", len(blocks), blocks[0])
	}
	url, inbox := database(t), testenv.Database(t)
	execute(t, inbox, blocks[0])
	execute(t, inbox, blocks[1])
	path := file(t, "database: {url: \""+url+"\"}\n"+pasted(t, "postgres.md"))
	if got := commandIn(t, vars{"INBOX_URL": inbox}, "check-config", "-c", path); got.code != 0 {
		t.Fatalf("check-config: %+v", got)
	}
	d := startDaemon(t, vars{"INBOX_URL": inbox}, "run", "-c", path)
	publishTo(t, url, "order.placed", order, "--aggregate", "order/7")
	until(t, inbox, `SELECT count(*) = 1 FROM received_events WHERE handled_at IS NULL`)
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
	}
	execute(t, inbox, blocks[2])
	if n := query[int](t, inbox, `SELECT count(*) FROM received_events WHERE handled_at IS NOT NULL AND payload::text = '`+order+`'`); n != 1 {
		t.Errorf("%d events are handled", n)
	}
}

// TestPostgresConflicts: rows that the database refuses for other transactions' sake, as it does under load, are
// written at once, without an attempt, a pause or a word about a destination that works.
func TestPostgresConflicts(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	url, inbox := databaseOf(t, "stream"), testenv.Database(t)
	execute(t, inbox, postgres.Schema(postgres.Config{})+`
		CREATE SEQUENCE tries; ALTER TABLE received_events ADD COLUMN n bigserial;
		CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE i bigint := nextval('tries'); BEGIN
			IF i % 32 = 0 THEN RAISE 'could not serialize access' USING ERRCODE = '40001'; END IF;
			IF i % 32 = 16 THEN RAISE 'deadlock detected' USING ERRCODE = '40P01'; END IF;
			RETURN NEW; END $$;
		CREATE TRIGGER conflict BEFORE INSERT ON received_events FOR EACH ROW EXECUTE FUNCTION conflict()`)
	const events = 300
	execute(t, url, fmt.Sprintf(`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', '7', 'order.placed', '{}' FROM generate_series(1, %d)`, events))
	// However slow the machine is, the tries of one batch are not over.
	config := strings.Replace(pasted(t, "postgres.md"), "source: shop", "source: shop\n    request_timeout: 5m\n    timeout: 10m", 1)
	d := startDaemon(t, vars{"INBOX_URL": inbox}, "run", "-c", file(t, "database: {url: \""+url+"\"}\nlog: {level: debug}\n"+config))
	until(t, inbox, `SELECT count(*) = $1 FROM received_events`, events)
	untilDone(t, url)
	if code := d.end(t); code != 0 || strings.Contains(d.stderr.text(), "destination down") || strings.Contains(d.stderr.text(), "delivery failed") {
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
	}
	if !query[bool](t, inbox, `SELECT array_agg(event_id ORDER BY n) = array_agg(event_id ORDER BY event_id) AND (SELECT last_value > $1 FROM tries) FROM received_events`, events) {
		t.Error("the rows are not in the order of the events, or nothing was refused")
	}
}
