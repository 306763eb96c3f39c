package console

import (
	"bufio"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/testenv/testdb"
	"github.com/notifyd/notifyd/ops"
)

// TestDestinationThatIsDown: the page says when it is probed, and for which relays a pause holds.
func TestDestinationThatIsDown(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	s.exec(`INSERT INTO outbox_deliveries (event_id, event_type, destination, state, available_at) VALUES (4711, 'a', 'hook', 'retry', now() - interval '5 min')`)
	s.awaitReading()
	page := s.get(Path + "destination?name=hook")
	for _, want := range []string{"<dt>Next try</dt><dd>a probe, now</dd>", "A pause applies to all relays, and lasts until the destination is resumed."} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

func TestOverview(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	s.dead("order.placed", "mail", "550 no such user")
	s.exec(`INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1'), ('b', '2')`)
	s.exec(`INSERT INTO outbox_deliveries (event_id, event_type, state) VALUES (4711, 'nobody.wants', 'unrouted')`)
	s.awaitReading()
	page := s.get(Path)
	for _, want := range []string{
		"Dead letters of mail: 1.", "hook is down", "No route matches the event type nobody.wants", `aria-label="Waiting: now `, "This relay is listening",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the overview lacks %q:\n%s", want, page)
		}
	}
}

// TestLive reads a stream for longer than the server's own limits, and sees the
// rate and the backlog change. The database is queried while there are viewers,
// and not afterwards.
func TestLive(t *testing.T) {
	t.Parallel()
	s := prepare(t, nil)
	s.server.Config.ReadTimeout, s.server.Config.WriteTimeout = 2*time.Second, 5*time.Second
	s.server.Start()
	r := s.request(http.MethodGet, Path+"live/overview", nil)
	begin := time.Now()
	response, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if kind := response.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Errorf("content type %q", kind)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	seen := ""
	for lines.Scan() {
		seen = lines.Text()
		if strings.Contains(seen, "<strong>0/s</strong>") && strings.Contains(seen, "Delivered") {
			s.relay.deliver(7) // changes until the change shows
		}
		if strings.Contains(seen, "Delivered <strong>") && !strings.Contains(seen, "<strong>0/s") && time.Since(begin) > 6*time.Second {
			break
		}
		s.relay.deliver(1)
	}
	if lines.Err() != nil || !strings.Contains(seen, "Delivered <strong>") {
		t.Errorf("the stream ended with %v: %q", lines.Err(), seen)
	}
	if s.relay.queryCount() == 0 {
		t.Error("the database was never queried")
	}
	if err := response.Body.Close(); err != nil {
		t.Error(err)
	}
	deadline := time.After(patience)
	for viewers := 1; viewers > 0; {
		s.console.sampler.mu.Lock()
		viewers = s.console.sampler.viewers
		changed := s.console.sampler.changed
		s.console.sampler.mu.Unlock()
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("the server does not notice that the browser is gone")
		}
	}
	if a := s.do(s.request(http.MethodGet, Path+"live/nothing", nil)); a.code != http.StatusNotFound {
		t.Errorf("an unknown stream: %d", a.code)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	form := url.Values{"destination": {"mail"}}
	a := s.post(Path+"destinations", Path+"destinations/pause", form)
	if a.code != http.StatusSeeOther || !s.relay.paused["mail"] {
		t.Fatalf("pause: %d\n%s", a.code, a.body)
	}
	if page := s.get(a.header.Get("Location")); !strings.Contains(page, "The pause is stored. Each relay takes note within about a second; deliveries that are under way") || !strings.Contains(page, "destinations/resume") {
		t.Errorf("the page does not show it:\n%s", page)
	}
	if a := s.post(Path+"destinations", Path+"destinations/resume", form); a.code != http.StatusSeeOther || s.relay.paused["mail"] {
		t.Errorf("resume: %d\n%s", a.code, a.body)
	}
	if a := s.post(Path+"destinations", Path+"destinations/pause", url.Values{"destination": {"nobody"}}); a.code != http.StatusNotFound {
		t.Errorf("an unknown destination: %d\n%s", a.code, a.body)
	}
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	var ids []int64
	for i := range 120 {
		ids = append(ids, s.dead("order.placed", "mail", fmt.Sprintf("550 no user %d", i)))
	}
	other := s.dead("order.paid", "hook", "404 nothing there")
	page := s.get(Path + "dead")
	if !strings.Contains(page, `data-label="How many">120</td>`) || !strings.Contains(page, "404 nothing there") {
		t.Fatalf("the groups:\n%s", page)
	}
	errorGroup := query[string](s, `SELECT error_fingerprint FROM outbox_deliveries WHERE event_id = $1`, ids[0])
	group := Path + "dead/group?" + url.Values{"destination": {"mail"}, "fingerprint": {errorGroup}}.Encode()
	seen := 0
	for next, pages := group, 0; next != "" && pages < 5; pages++ {
		text := s.get(next)
		seen += strings.Count(text, `<th scope="row"`)
		next = linkNext(text)
	}
	if seen != 120 {
		t.Errorf("%d letters on all pages of the group", seen)
	}
	if text := s.get(group); !strings.Contains(text, "Replay all 120</button>") || !strings.Contains(text, "Discard all 120</button>") {
		t.Errorf("the buttons do not say how many there are:\n%s", text)
	}
	choose := url.Values{"destination": {"mail"}, "fingerprint": {errorGroup}, "reason": {"fixed"}}
	a := s.post(group, Path+"dead/replay", choose)
	if a.code != http.StatusSeeOther {
		t.Fatalf("replay: %d\n%s", a.code, a.body)
	}
	if page := s.get(a.header.Get("Location")); !strings.Contains(page, "120 of 120 replayed for mail") || !strings.Contains(page, "<dt>Still waiting</dt><dd>120</dd>") {
		t.Errorf("the page does not report the action:\n%s", page)
	}
	if n := query[int](s, `SELECT count(*) FROM outbox_deliveries WHERE destination = 'mail' AND state = 'retry' AND replays = 1`); n != 120 {
		t.Errorf("%d were replayed", n)
	}
	if n := query[int](s, `SELECT count(*) FROM outbox_audit WHERE actor = 'console' AND action = 'replay' AND details->>'reason' = 'fixed'`); n != 120 {
		t.Errorf("%d are in the audit", n)
	}
	discardOne(s, other)
	for _, form := range []url.Values{
		{"destination": {"mail"}},
		{"destination": {"mail"}, "fingerprint": {errorGroup}, "chosen": {"yes"}},
		{"destination": {"mail"}, "fingerprint": {errorGroup}, "rate": {"-1"}},
		{"destination": {"mail"}, "fingerprint": {errorGroup}, "rate": {"NaN"}},
	} {
		if a := s.post("", Path+"dead/replay", form); a.code != http.StatusBadRequest {
			t.Errorf("a replay of %v: %d", form, a.code)
		}
	}
}

// discardOne discards the dead letter of hook on the page of its event.
func discardOne(s *site, other int64) {
	s.Helper()
	event := fmt.Sprintf("%sevents/%d", Path, other)
	one := url.Values{"destination": {"hook"}, "event": {fmt.Sprint(other)}}
	if a := s.post(event, Path+"dead/discard", one); a.code != http.StatusBadRequest {
		s.Errorf("discarding without being sure: %d", a.code)
	}
	one.Set("sure", "yes")
	if a := s.post(event, Path+"dead/discard", one); a.code != http.StatusSeeOther {
		s.Errorf("discard: %d\n%s", a.code, a.body)
	}
	if query[bool](s, `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE event_id = $1)`, other) {
		s.Error("it was not discarded")
	}
	if page := s.get(event); !strings.Contains(page, "discard</td>") {
		s.Errorf("the page of the event does not show it:\n%s", page)
	}
}

// linkNext returns the address of the link to the next page, "" for none.
func linkNext(page string) string {
	before, _, ok := strings.Cut(page, `" rel="next"`)
	if !ok {
		return ""
	}
	return strings.ReplaceAll(before[strings.LastIndex(before, `href="`)+len(`href="`):], "&amp;", "&")
}

func TestEvents(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	s.exec(`INSERT INTO outbox_events (event_type, payload, state, aggregate_type, aggregate_id)
		SELECT CASE WHEN i % 2 = 0 THEN 'order.placed' ELSE 'order.paid' END, '1', CASE WHEN i % 10 = 0 THEN 'fresh' ELSE 'done' END,
			'order', (i % 7)::text FROM generate_series(1, 300) i`)
	s.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT i, 'mail', 'order.paid', 'dead' FROM generate_series(1, 99, 2) i`)
	count := func(q string) (n int) {
		t.Helper()
		last := int64(1 << 62)
		for next, pages := Path+"events?"+q, 0; next != ""; pages++ {
			if pages == 20 {
				t.Fatalf("%s: the pages do not end", q)
			}
			text := s.get(next)
			for _, part := range strings.Split(text, `<th scope="row" class="n"><a href="/console/events/`)[1:] {
				var id int64
				if _, err := fmt.Sscanf(part, "%d", &id); err != nil || id >= last {
					t.Errorf("%s: event %d comes after %d (%v)", q, id, last, err)
				}
				last = id
				n++
			}
			next = linkNext(text)
		}
		return n
	}
	for q, want := range map[string]int{
		"": 300, "type=order.placed": 150, "type=order.*": 300, "type=pay.*": 0, "state=waiting": 30, "state=dead": 50, "aggregate_type=order&aggregate_id=3": 43,
		"state=waiting&type=order.paid": 0, "state=done&aggregate_id=0&type=order.placed": 17,
	} {
		if got := count(q); got != want {
			t.Errorf("%q finds %d, want %d", q, got, want)
		}
	}
	if a := s.do(s.request(http.MethodGet, Path+"events?id=+42+", nil)); a.header.Get("Location") != Path+"events/42" {
		t.Errorf("an id leads to %q", a.header.Get("Location"))
	}
	for _, q := range []string{"events?id=x", "events?state=gone", "events?type=pay*", "events?upto=x", "events?type=%00", "events?aggregate_id=%ff", "events/x", "dead?fingerprint=zz", "dead/group"} {
		if a := s.do(s.request(http.MethodGet, Path+q, nil)); a.code != http.StatusBadRequest {
			t.Errorf("%s: %d", q, a.code)
		}
	}
	for _, q := range []string{"events/99999", "nowhere"} {
		if a := s.do(s.request(http.MethodGet, Path+q, nil)); a.code != http.StatusNotFound || !strings.Contains(a.body, "<h1>Not Found") {
			t.Errorf("%s: %d", q, a.code)
		}
	}
}

// TestSearchGoesOn: an event behind more events than one search reads is found by
// continuing the search.
func TestSearchGoesOn(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	s.exec(`INSERT INTO outbox_events (event_type, payload, state) VALUES ('rare', '1', 'done')`)
	s.exec(`INSERT INTO outbox_events (event_type, payload, state) SELECT 'often', '1', 'done' FROM generate_series(1, $1::int)`, ops.DefaultSearch+5)
	first := s.get(Path + "events?type=rare")
	next := linkNext(first)
	if !strings.Contains(first, "None among these") || next == "" {
		t.Fatalf("the first page:\n%s", first)
	}
	if second := s.get(next); !strings.Contains(second, `/console/events/1"`) || linkNext(second) != "" {
		t.Errorf("the second page:\n%s", second)
	}
}

func TestRelays(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	if page := s.get(Path + "relays"); !strings.Contains(page, "None.") {
		t.Errorf("without a relay:\n%s", page)
	}
}

// TestRelaysSayWhatTheyAre: the page names the process that a person would look for, and a reload that it has refused.
func TestRelaysSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("stream %t", stream), func(t *testing.T) {
			t.Parallel()
			var s *site
			if stream {
				s = serveStream(t, false)
			} else {
				s = serve(t, nil)
			}
			conn, err := s.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			owner := store.NewOwner()
			_, err = conn.Exec(t.Context(), `SELECT pg_advisory_lock_shared($1)`, owner)
			if err != nil {
				t.Fatal(err)
			}
			if stream {
				testdb.Member(t, conn.Conn(), owner, "mail")
			}
			s.exec(`INSERT INTO outbox_relays (owner, process, host, version, config, started_at, loaded_at, refused)
				VALUES ($1, 4711, 'web-1', 'v9', '/etc/x', now() - interval '1 min', now(), 'line 3: no')`, owner)
			page := s.get(Path + "relays")
			for _, want := range []string{"4711 on web-1, v9", "reload refused</span> line 3: no"} {
				if !strings.Contains(page, want) {
					t.Errorf("the page lacks %q:\n%s", want, page)
				}
			}
		})
	}
}
