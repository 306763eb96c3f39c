package console

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestReplayTellsWhatBecame: letters that die again at once are not shown as a success, and those
// that wait are counted.
func TestReplayTellsWhatBecame(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	var ids []string
	for i := range 4 {
		ids = append(ids, fmt.Sprint(s.dead("order.placed", "mail", fmt.Sprintf("550 no user %d", i))))
	}
	// A destination that refuses a replayed event again, within the same transaction.
	s.exec(`CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.event_id = 1 THEN NEW.state := 'dead'; NEW.last_error := 'still no user'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER again BEFORE UPDATE ON outbox_deliveries FOR EACH ROW EXECUTE FUNCTION again()`)
	a := s.post("", Path+"dead/replay", url.Values{"destination": {"mail"}, "event": ids[:3], "rate": {"1000"}})
	if a.code != http.StatusSeeOther {
		t.Fatalf("replay: %d\n%s", a.code, a.body)
	}
	page := s.get(a.header.Get("Location"))
	for _, want := range []string{"3 of 3 replayed for mail", `<dt>Dead again</dt><dd><strong class="badge bad">1</strong>`, "<dt>Still waiting</dt><dd>2</dd>", "still no user", "Letters that died again"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if got := query[string](s, `SELECT string_agg(event_id || ' ' || state || replays, ', ' ORDER BY event_id) FROM outbox_deliveries`); got != "1 dead1, 2 retry1, 3 retry1, 4 dead0" {
		t.Errorf("deliveries %s", got)
	}
	if a := s.do(s.request(http.MethodGet, Path+"dead/replays?id=unheard", nil)); a.code != http.StatusNotFound {
		t.Errorf("an unknown replay: %d", a.code)
	}
}

// TestReplayIsStopped between two letters, and says how far it came.
func TestReplayIsStopped(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	for range 5 {
		s.dead("order.placed", "mail", "550 no user")
	}
	begun, err := s.outbox.start(t.Context(), ops.DeadLetterFilter{Destination: "mail"}, ops.BulkAction{Actor: consoleActor, Reason: "", Rate: 0.001})
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(patience)
	for !query[bool](s, `SELECT EXISTS (SELECT FROM outbox_audit)`) {
		if time.Now().After(deadline) {
			t.Fatal("nothing is replayed")
		}
	}
	location := Path + "dead/replays?id=" + begun.ID
	if page := s.get(location); !strings.Contains(page, `action="/console/dead/replays/stop"`) {
		t.Errorf("it cannot be stopped:\n%s", page)
	}
	if a := s.post(location, Path+"dead/replays/stop", url.Values{"id": {begun.ID}}); a.code != http.StatusSeeOther {
		t.Errorf("stop: %d\n%s", a.code, a.body)
	}
	if page := s.get(location); !strings.Contains(page, "1 of 5 replayed for mail") || !strings.Contains(page, "Stopped: the remaining letters") {
		t.Errorf("the page does not say so:\n%s", page)
	}
}

// TestReplaysAreBounded, and end with the console.
func TestReplaysAreBounded(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	s.dead("order.placed", "mail", "550 no user")
	s.dead("order.placed", "mail", "550 no user")
	var first *replay
	for i := range replaysRunning + 1 {
		r, err := s.outbox.start(t.Context(), ops.DeadLetterFilter{Destination: "mail"}, ops.BulkAction{Actor: consoleActor, Reason: "", Rate: 0.000001})
		if full := i == replaysRunning; (err != nil) != full {
			// Those that found nothing left to replay have ended.
			t.Logf("replay %d: %v", i, err)
		}
		if first == nil {
			first = r
		}
	}
	s.outbox.replays.end()
	select {
	case <-first.over:
	default:
		t.Error("the first is still under way")
	}
	if _, err := s.outbox.start(t.Context(), ops.DeadLetterFilter{Destination: "mail"}, ops.BulkAction{Actor: consoleActor, Reason: "", Rate: 0}); err == nil {
		t.Error("a replay begins after the end")
	}
}

// TestEditNeedsPrivilege: a relay whose role may not change payloads offers no form for that, and says who may. If the
// privilege goes while somebody types, the text is not lost.
func TestEditNeedsPrivilege(t *testing.T) {
	t.Parallel()
	role := fmt.Sprintf("console_%d", rand.Uint32())
	var owner *pgxpool.Pool
	s := serve(t, func(c *setup) {
		owner = c.Database.Pool
		grants, err := outboxsql.Grants(outboxsql.DefaultSchema, outboxsql.Roles{Relay: role})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := owner.Exec(t.Context(), "CREATE ROLE "+role+"; "+grants); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := owner.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
				t.Error(err)
			}
		})
		as := owner.Config()
		as.ConnConfig.RuntimeParams["role"] = role
		if c.Database.Pool, err = pgxpool.NewWithConfig(t.Context(), as); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Database.Pool.Close)
	})
	event := fmt.Sprintf("%sevents/%d", Path, s.dead("order.placed", "mail", "550 no"))
	if page := s.get(event); strings.Contains(page, `name="payload"`) || !strings.Contains(page, "The owner of the tables edits this one: notifyd dlq edit ") {
		t.Errorf("without the privilege:\n%s", page)
	}
	form := url.Values{"event": {event[strings.LastIndexByte(event, '/')+1:]}, "payload": {`{"a": 1}`}, "reason": {"typo"}}
	if a := s.post("", Path+"events/edit", form); a.code != http.StatusServiceUnavailable || !strings.Contains(a.body, "{&#34;a&#34;: 1}</textarea>") {
		t.Errorf("the text is lost: %d\n%s", a.code, a.body)
	}
	if _, err := owner.Exec(t.Context(), "GRANT UPDATE (payload, payload_bytes) ON outbox_events TO "+role); err != nil {
		t.Fatal(err)
	}
	if a := s.post(event, Path+"events/edit", form); a.code != http.StatusSeeOther {
		t.Errorf("with the privilege: %d\n%s", a.code, a.body)
	}
}

// TestEditAndRetry: a payload is edited byte for byte, and a waiting delivery is made due.
func TestEditAndRetry(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	id := s.dead("order.placed", "mail", "550 no")
	event := fmt.Sprintf("%sevents/%d", Path, id)
	if page := s.get(event); !strings.Contains(page, `name="payload"`) || strings.Contains(page, "Retry now") {
		t.Errorf("the page of a dead letter:\n%s", page)
	}
	form := url.Values{"event": {fmt.Sprint(id)}, "payload": {"{\"a\":  1.0,\r\n \"b\": 2}"}, "reason": {"typo"}}
	a := s.post(event, Path+"events/edit", form)
	if a.code != http.StatusSeeOther || !strings.Contains(s.get(a.header.Get("Location")), "Edited. Nothing is delivered yet") {
		t.Errorf("edit: %d\n%s", a.code, a.body)
	}
	if got := query[string](s, `SELECT payload::text || (SELECT (old_payload->>'secret') || (details->>'reason') FROM outbox_audit) FROM outbox_events`); got != "{\"a\":  1.0,\n \"b\": 2}PAYLOAD-TEXTtypo" {
		t.Errorf("after the edit: %q", got)
	}
	form.Set("payload", "{")
	a = s.post(event, Path+"events/edit", form)
	if a.code != http.StatusBadRequest || !strings.Contains(a.body, "not JSON") || !strings.Contains(a.body, "readonly>\n{</textarea>") || !strings.Contains(a.body, "readonly>\ntypo</textarea>") {
		t.Errorf("of no JSON: %d\n%s", a.code, a.body)
	}
	retry := url.Values{"event": {fmt.Sprint(id)}, "destination": {"mail"}}
	if a := s.post("", Path+"events/retry", retry); a.code != http.StatusConflict || !strings.Contains(a.body, "its state is dead") {
		t.Errorf("retry of a dead one: %d\n%s", a.code, a.body)
	}
	s.exec(`UPDATE outbox_deliveries SET state = 'retry', available_at = now() + interval '1 h'`)
	if page := s.get(event); strings.Contains(page, `name="payload"`) || !strings.Contains(page, "Retry now") || !strings.Contains(page, "in 59 min") {
		t.Errorf("the page of a waiting delivery:\n%s", page)
	}
	form.Set("payload", "2")
	if a := s.post("", Path+"events/edit", form); a.code != http.StatusConflict || !strings.Contains(a.body, "on its way") {
		t.Errorf("edit on its way: %d\n%s", a.code, a.body)
	}
	a = s.post(event, Path+"events/retry", retry)
	if a.code != http.StatusSeeOther || !strings.Contains(s.get(a.header.Get("Location")), "due now") {
		t.Errorf("retry: %d\n%s", a.code, a.body)
	}
	if !query[bool](s, `SELECT available_at <= now() AND (SELECT count(*) = 1 FROM outbox_audit WHERE action = 'retry' AND actor = 'console') FROM outbox_deliveries`) {
		t.Error("it is not due, or not in the audit")
	}

	bury := url.Values{"event": {fmt.Sprint(id)}, "destination": {"mail"}, "reason": {"no such address"}}
	if page := s.get(event); !strings.Contains(page, "Make it a dead letter") {
		t.Errorf("it cannot be buried:\n%s", page)
	}
	a = s.post(event, Path+"events/bury", bury)
	if a.code != http.StatusSeeOther || !strings.Contains(s.get(a.header.Get("Location")), "It is a dead letter now") {
		t.Errorf("bury: %d\n%s", a.code, a.body)
	}
	if !query[bool](s, `SELECT state = 'dead' AND (SELECT details->>'reason' = 'no such address' FROM outbox_audit WHERE action = 'bury' AND actor = 'console') FROM outbox_deliveries`) {
		t.Error("it is not dead, or not in the audit")
	}
	if a := s.post("", Path+"events/bury", bury); a.code != http.StatusConflict || !strings.Contains(a.body, "being delivered at this moment, or has ended") {
		t.Errorf("bury of a dead one: %d\n%s", a.code, a.body)
	}
}

// TestBytesAreShown as far as people can read them, and not edited.
func TestBytesAreShown(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	event := fmt.Sprintf("%sevents/%d", Path, s.dead("order.placed", "mail", "550 no"))
	s.exec(`UPDATE outbox_events SET payload = NULL, payload_bytes = '\x003c623e', content_type = 'avro/binary'`)
	s.exec(`INSERT INTO outbox_audit (event_id, action, actor, details, old_payload_bytes) SELECT id, 'edit', 'ann', '{}', '\xff01' FROM outbox_events`)
	page := s.get(event)
	for _, want := range []string{"Content type avro/binary", "4 bytes\n00000000  00 3c 62 3e ", "|.&lt;b&gt;|", "The payload before:", "2 bytes\n00000000  ff 01 "} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is missing in\n%s", want, page)
		}
	}
	if strings.Contains(page, `name="payload"`) {
		t.Error("it can be edited")
	}
	s.exec(`UPDATE outbox_events SET payload_bytes = 'text <b>', content_type = NULL`)
	if page := s.get(event); !strings.Contains(page, `>text &lt;b&gt;</pre>`) || strings.Contains(page, "Content type") {
		t.Errorf("of text:\n%s", page)
	}
}

// TestHiddenPayloadsAreNotEdited, nor shown for that.
func TestHiddenPayloadsAreNotEdited(t *testing.T) {
	t.Parallel()
	s := serve(t, func(c *setup) { c.HidePayloads = true })
	id := s.dead("order.placed", "mail", "550 no")
	event := fmt.Sprintf("%sevents/%d", Path, id)
	if page := s.get(event); strings.Contains(page, `name="payload"`) {
		t.Errorf("it can be edited:\n%s", page)
	}
	if a := s.post("", Path+"events/edit", url.Values{"event": {fmt.Sprint(id)}, "payload": {"1"}}); a.code != http.StatusForbidden {
		t.Errorf("edit: %d", a.code)
	}
}

// TestChartsFillWithoutViewers: the backlog is sampled without viewers.
func TestChartsFillWithoutViewers(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	s.exec(`INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1'), ('b', '2')`)
	deadline := time.After(patience)
	for {
		snap, changed := s.outbox.sampler.next()
		if n := len(snap.points); n > 0 && snap.points[n-1].waiting >= 0 {
			break
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("the backlog is never sampled")
		}
	}
	if s.relay.queryCount() == 0 {
		t.Error("the database was never queried")
	}
}

// TestChart: the axis ends at a round number, and the values are there for the pointer.
func TestChart(t *testing.T) {
	t.Parallel()
	c := newChart("Latency", "slow", duration, series{"p99", []float64{0.1, 0.31}}, series{"p50", []float64{0.001, 0.002}})
	if c.Top != "500 ms" || c.Mid != "250 ms" || fmt.Sprintf("%q", c.Now) != `["p99 310 ms" "p50 2 ms"]` || c.Data != "0.1,0.31;0.001,0.002" || fmt.Sprint(c.Names) != "[p99 p50]" {
		t.Errorf("%+v", c)
	}
	for top, want := range map[float64]string{3: "5 ", 1: "1 ", 2: "2 1", 40: "50 25"} {
		if c := newChart("Waiting", "wait", eventCount, series{"", []float64{top}}); c.Top+" "+c.Mid != want {
			t.Errorf("the axis of %v events says %q", top, c.Top+" "+c.Mid)
		}
	}
	for f, want := range map[float64]float64{0: 1, 0.9: 1, 1: 1, 1.1: 2, 3: 5, 51: 100, 0.0021: 0.005} {
		if got := roundUp(f); got < want*0.999 || got > want*1.001 {
			t.Errorf("%v: %v, want %v", f, got, want)
		}
	}
}

// TestRelative: how long ago a moment was.
func TestRelative(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "just now", 999 * time.Millisecond: "just now", 59 * time.Second: "59 s ago", -90 * time.Second: "in 1 min", 3 * time.Hour: "3 h ago",
		47 * time.Hour: "47 h ago", 49 * time.Hour: "2 days ago", 800 * 24 * time.Hour: "2 years ago",
	} {
		if got := relative(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
	if got := explain(fmt.Errorf("x: %w", ops.ErrNotWaiting)); got.code != http.StatusConflict || errors.Is(got, ops.ErrNotWaiting) {
		t.Errorf("%+v", got)
	}
}
