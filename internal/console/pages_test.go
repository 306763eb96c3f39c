package console

import (
	"bufio"
	"context"
	"fmt"
	"html"
	"html/template"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
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
	s.exec(`INSERT INTO outbox_deliveries (event_id, event_type, destination, state, available_at) VALUES (4712, 'a', 'hook', 'retry', now())`) // down with nothing to deliver is no problem
	s.awaitReading()
	page := s.get(Path)
	for _, want := range []string{
		"<p>mail has 1 dead letter.</p>", "To do:</span> fix the cause, then notifyd dlq replay --destination mail", `<a href="/console/dead?destination=mail">Show the dead letters</a>`,
		"The destination hook has been down for ", `<a href="/console/destination?name=hook">Show hook</a>`,
		"No route matches 1 event of type nobody.wants.", "add a route for it to the configuration, and reload", `aria-label="Waiting: now `,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the overview lacks %q:\n%s", want, page)
		}
	}
	if problems, charts := strings.Index(page, "Action required"), strings.Index(page, `class="charts"`); problems > charts {
		t.Errorf("the charts are before the problems:\n%s", page)
	}
}

// TestReceiverOfDeadLetters: the pages of a destination and of a dead letter name the destination that gets the report.
func TestReceiverOfDeadLetters(t *testing.T) {
	t.Parallel()
	s := serve(t, func(c *setup) {
		relay, _ := c.Relay.(*fakeRelay)
		relay.stats.Destinations = []observe.DestinationStats{{Name: "mail", DeadLettersTo: "parking"}, {Name: "parking"}}
	})
	id := s.dead("order.placed", "mail", "550 no such user")
	s.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, dead_letters) VALUES ($1, 'parking', 'order.placed', 'retry', '[{"destination": "mail"}]')`, id)
	s.awaitReading()
	const receiver = `<dt>Dead letters go to</dt><dd><a href="/console/destination?name=parking">parking</a></dd>`
	for path, want := range map[string]string{
		Path:                                "<p>mail has 1 dead letter; dead letters go to parking.</p>",
		Path + "destination?name=mail":      receiver,
		Path + fmt.Sprintf("events/%d", id): `<h3>parking</h3> <span class="badge warn">waiting</span> <span class="what">due now, reports the dead letter of mail</span>`,
	} {
		if page := s.get(path); !strings.Contains(page, want) {
			t.Errorf("%s lacks %q:\n%s", path, want, page)
		}
	}
	if page := s.get(Path + "destination?name=parking"); strings.Contains(page, "Dead letters go to") {
		t.Errorf("the page of the receiver:\n%s", page)
	}
}

// TestThrottledUntil: the pages of a destination and of a waiting event name the end of a requested pause.
func TestThrottledUntil(t *testing.T) {
	t.Parallel()
	until := time.Now().Add(50 * time.Minute)
	s := serve(t, func(c *setup) {
		relay, _ := c.Relay.(*fakeRelay)
		relay.stats.Destinations = []observe.DestinationStats{{Name: "mail", State: observe.BreakerThrottled, Trouble: observe.Trouble{ThrottledUntil: until, ThrottledBy: 5}}}
	})
	id := s.dead("order.placed", "mail", "451 slow down")
	s.exec(`UPDATE outbox_deliveries SET state = 'retry'`)
	s.awaitReading()
	for path, want := range map[string]string{
		Path + "destination?name=mail":      `by the answer to event <a href="/console/events/5">5</a></dd>`,
		Path + fmt.Sprintf("events/%d", id): `by the answer to event 5</span>`,
	} {
		if page := s.get(path); !strings.Contains(page, want) || !strings.Contains(strings.ToLower(page), "throttled") {
			t.Errorf("%s lacks %q:\n%s", path, want, page)
		}
	}
}

// TestResumeFromTheOverview: a paused destination has its button among the problems.
func TestResumeFromTheOverview(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	s.relay.set("mail", true)
	s.exec(`INSERT INTO outbox_pauses (destination, paused_by, reason, paused_at) VALUES ('mail', 'ann', 'load', now() - interval '90 s'), ('gone', 'ann', '', now())`)
	s.awaitReading()
	page := s.get(Path)
	if !strings.Contains(page, "The destination mail was paused 1m3") || !strings.Contains(page, "ago by ann: load.") || strings.Contains(page, "b-resume-gone") {
		t.Errorf("the overview:\n%s", page)
	}
	a := s.post(Path, Path+"destinations/resume", url.Values{"destination": {"mail"}, "back": {"overview"}})
	if a.code != http.StatusSeeOther || a.header.Get("Location") != Path+"?done=resumed" || s.relay.paused["mail"] {
		t.Errorf("resume: %d %s", a.code, a.header.Get("Location"))
	}
	if page := s.get(a.header.Get("Location")); !strings.Contains(page, "Resumed.") {
		t.Errorf("the page does not report it:\n%s", page)
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
		s.outbox.sampler.mu.Lock()
		viewers = s.outbox.sampler.viewers
		changed := s.outbox.sampler.changed
		s.outbox.sampler.mu.Unlock()
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
	ask := Path + "destinations/pause?destination=mail"
	if page := s.get(Path + "destinations"); !strings.Contains(page, `href="`+ask+`"`) {
		t.Errorf("no link to the page that asks:\n%s", page)
	}
	if page := s.get(ask + "&back=destination"); !strings.Contains(page, `name="reason"`) || !strings.Contains(page, `href="/console/destination?name=mail"`) || s.relay.paused["mail"] {
		t.Errorf("the page that asks:\n%s", page)
	}
	if a := s.do(s.request(http.MethodGet, Path+"destinations/pause?destination=nobody", nil)); a.code != http.StatusNotFound {
		t.Errorf("an unknown destination: %d\n%s", a.code, a.body)
	}
	form := url.Values{"destination": {"mail"}, "reason": {"the server moves"}}
	a := s.post(ask, Path+"destinations/pause", form)
	if a.code != http.StatusSeeOther || !s.relay.paused["mail"] || s.relay.reason != "the server moves" {
		t.Fatalf("pause: %d\n%s", a.code, a.body)
	}
	if page := s.get(a.header.Get("Location")); !strings.Contains(page, "The pause is stored. Each relay takes note within about a second; deliveries that are under way") || !strings.Contains(page, "destinations/resume") {
		t.Errorf("the page does not show it:\n%s", page)
	}
	if a := s.post(Path+"destinations", Path+"destinations/resume", form); a.code != http.StatusSeeOther || s.relay.paused["mail"] {
		t.Errorf("resume: %d\n%s", a.code, a.body)
	}
	if a := s.post("", Path+"destinations/pause", url.Values{"destination": {"nobody"}}); a.code != http.StatusNotFound {
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
	group := Path + "dead?" + url.Values{"destination": {"mail"}, "fingerprint": {errorGroup}}.Encode()
	if got := s.letters(group); got != 120 {
		t.Errorf("%d letters on all pages of the group", got)
	}
	if text := s.get(group); !strings.Contains(text, "all 50 on this page") || !strings.Contains(text, "all 120 that match the filter") {
		t.Errorf("the page does not say how many there are:\n%s", text)
	}
	choose := url.Values{"destination": {"mail"}, "fingerprint": {errorGroup}, "which": {"all"}, "do": {"replay"}}
	confirm := s.post(group, Path+"dead/confirm", choose)
	if confirm.code != http.StatusOK || !strings.Contains(confirm.body, "<h2>Replay 120 dead letters</h2>") || !strings.Contains(confirm.body, `name="n" value="120"`) || !strings.Contains(confirm.body, "Replay 120</button>") {
		t.Fatalf("the confirmation: %d\n%s", confirm.code, confirm.body)
	}
	if list := `name="list" value="` + template.HTMLEscapeString(group) + `"`; !strings.Contains(confirm.body, list) {
		t.Errorf("the confirmation forgets the list:\n%s", confirm.body)
	}
	choose = url.Values{"destination": {"mail"}, "fingerprint": {errorGroup}, "all": {"yes"}, "n": {"119"}, "reason": {"fixed"}, "list": {group}}
	back := `<a href="` + template.HTMLEscapeString(group) + `">Back`
	r := s.request(http.MethodPost, Path+"dead/replay", choose)
	r.Header.Set("Referer", s.server.URL+Path+"dead/confirm") // which is no page to go back to
	if a := s.do(r); a.code != http.StatusConflict || !strings.Contains(a.body, back) {
		t.Errorf("an error forgets the list: %d\n%s", a.code, a.body)
	}
	choose.Set("n", "120")
	a := s.post("", Path+"dead/replay", choose)
	if a.code != http.StatusSeeOther {
		t.Fatalf("replay: %d\n%s", a.code, a.body)
	}
	if page := s.get(a.header.Get("Location")); !strings.Contains(page, back+" to the dead letters") {
		t.Errorf("the replay forgets the list:\n%s", page)
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
	s.exec(`INSERT INTO outbox_audit (event_id, action, actor, destination) VALUES ($1, 'delivered', 'relay', 'mail')`, ids[0])
	page = s.get(s.outbox.eventPath(ids[0]))
	if !strings.Contains(page, `data-label="Who">console (`) || strings.Contains(page, ">relay (") || !strings.Contains(page, "Replays that were delivered: mail <time") {
		t.Errorf("a relay is no person:\n%s", page)
	}
	discardOne(s, other)
	for _, form := range []url.Values{
		{"destination": {"mail"}},
		{"destination": {"mail"}, "fingerprint": {errorGroup}, "chosen": {"yes"}},
		{"destination": {"mail"}, "fingerprint": {errorGroup}},
		{"event": {"1"}},
		{"event": {"1"}, "all": {"yes"}},
		{"letter": {"1"}},
		{"letter": {"x mail"}},
		{"all": {"yes"}, "rate": {"-1"}},
		{"all": {"yes"}, "rate": {"NaN"}},
		{"all": {"yes"}, "n": {"x"}},
	} {
		if a := s.post("", Path+"dead/replay", form); a.code != http.StatusBadRequest {
			t.Errorf("a replay of %v: %d", form, a.code)
		}
	}
}

// letters counts the rows of a list of dead letters, on all its pages.
func (s *site) letters(path string) (n int) {
	s.Helper()
	seen := make(map[string]bool)
	for next := path; next != ""; {
		if seen[next] {
			s.Fatalf("%s: the pages do not end", path)
		}
		seen[next] = true
		text := s.get(next)
		_, list, _ := strings.Cut(text, `aria-label="List of dead letters"`)
		n += strings.Count(list, `<th scope="row"`)
		next = linkNext(text)
	}
	return n
}

// TestDeadLettersInBulk: filters last over all pages, and an action takes just what was confirmed: the chosen letters, those
// of the page, or all that match, with an entry in the audit for each.
func TestDeadLettersInBulk(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	for i := range 60 {
		s.dead("order.placed", "mail", fmt.Sprintf("550 no user %d", i))
		s.dead("order.paid", "mail", "551 other")
	}
	both := s.dead("order.placed", "hook", "404 nothing there")
	s.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, error_class, last_error) VALUES ($1, 'mail', 'order.placed', 'dead', 'event', 'x')`, both)
	for q, want := range map[string]int{
		"": 122, "destination=mail": 121, "destination=hook": 1, "type=order.placed": 62, "type=order.*": 122, "destination=mail&type=order.paid": 60,
		"destination=mail&type=user.*": 0, "destination=none": 0,
	} {
		if got := s.letters(Path + "dead?" + q); got != want {
			t.Errorf("%q finds %d, want %d", q, got, want)
		}
	}
	second := linkNext(s.get(Path + "dead?destination=mail&type=order.placed"))
	if page := s.get(second); !strings.Contains(page, "all 11 on this page") || !strings.Contains(page, "all 61 that match the filter") || !strings.Contains(page, `href="/console/dead?destination=mail&amp;type=order.placed">First page`) {
		t.Errorf("the second page:\n%s", page)
	}
	page := Path + "dead?destination=mail&type=order.placed"
	one := fmt.Sprintf("%d mail", both)
	confirm := s.post(page, Path+"dead/confirm", url.Values{"which": {"chosen"}, "letter": {one, "1 mail"}, "shown": {one, "1 mail", "3 mail"}, "do": {"discard"}})
	if confirm.code != http.StatusOK || !strings.Contains(confirm.body, "<h2>Discard 2 dead letters</h2>") || strings.Count(confirm.body, `name="letter"`) != 2 || !strings.Contains(confirm.body, "Discard 2</button>") {
		t.Fatalf("the confirmation: %d\n%s", confirm.code, confirm.body)
	}
	chosen := url.Values{"letter": {one, "1 mail"}, "n": {"2"}, "reason": {"obsolete"}}
	if a := s.post("", Path+"dead/discard", chosen); a.code != http.StatusBadRequest {
		t.Errorf("discarding without being sure: %d", a.code)
	}
	chosen.Set("sure", "yes")
	a := s.post("", Path+"dead/discard", chosen)
	if a.code != http.StatusSeeOther || !strings.Contains(s.get(a.header.Get("Location")), "Discarded: 2.") {
		t.Fatalf("discard: %d\n%s", a.code, a.body)
	}
	if got := query[string](s, `SELECT string_agg(concat_ws(' ', action, event_id, destination, actor, details->>'reason'), ', ' ORDER BY event_id) FROM outbox_audit`); got !=
		fmt.Sprintf("discard 1 mail console obsolete, discard %d mail console obsolete", both) {
		t.Error(got)
	}
	if !query[bool](s, `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE event_id = $1 AND destination = 'hook')`, both) {
		t.Error("the letter of the other destination is gone")
	}
	if a := s.post(page, Path+"dead/confirm", url.Values{"which": {"chosen"}, "letter": {one}}); a.code != http.StatusConflict {
		t.Errorf("confirming what is gone: %d\n%s", a.code, a.body)
	}
	if a := s.post(page, Path+"dead/confirm", url.Values{"which": {"chosen"}, "all": {"yes"}}); a.code != http.StatusBadRequest {
		t.Errorf("choosing nothing: %d\n%s", a.code, a.body)
	}

	confirm = s.post(page, Path+"dead/confirm", url.Values{"which": {"page"}, "shown": {"3 mail", "5 mail", "7 mail"}, "do": {"replay"}})
	if !strings.Contains(confirm.body, "Replay 3</button>") || strings.Count(confirm.body, `name="letter"`) != 3 {
		t.Errorf("all on the page: %d\n%s", confirm.code, confirm.body)
	}

	all := url.Values{"destination": {"mail"}, "type": {"order.placed"}, "all": {"yes"}, "n": {"58"}}
	if a := s.post("", Path+"dead/replay", all); a.code != http.StatusConflict || !strings.Contains(a.body, "you have confirmed 58 dead letters, and there are 59 by now") {
		t.Errorf("more than was confirmed: %d\n%s", a.code, a.body)
	}
	all.Set("n", "59")
	if a := s.post("", Path+"dead/replay", all); a.code != http.StatusSeeOther {
		t.Fatalf("replay: %d\n%s", a.code, a.body)
	}
	if got := query[string](s, `SELECT concat_ws(' ', count(*) FILTER (WHERE state = 'retry' AND event_type = 'order.placed' AND destination = 'mail'), count(*) FILTER (WHERE state <> 'dead')) FROM outbox_deliveries`); got != "59 59" {
		t.Errorf("replayed: %s", got)
	}
	if a := s.post("", Path+"dead/discard", url.Values{"all": {"yes"}, "n": {"61"}, "sure": {"yes"}}); a.code != http.StatusSeeOther || query[int](s, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead'`) != 0 {
		t.Errorf("discard all: %d\n%s", a.code, a.body)
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
	return html.UnescapeString(before[strings.LastIndex(before, `href="`)+len(`href="`):])
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
		"destination=mail&state=dead": 50, "destination=mail&state=dead&since=1h": 50, "destination=nobody&state=dead": 0,
	} {
		if got := count(q); got != want {
			t.Errorf("%q finds %d, want %d", q, got, want)
		}
	}
	if a := s.do(s.request(http.MethodGet, Path+"events?id=+42+", nil)); a.header.Get("Location") != Path+"events/42" {
		t.Errorf("an id leads to %q", a.header.Get("Location"))
	}
	for _, q := range []string{"events?id=x", "events?state=gone", "events?type=pay*", "events?since=yesterday", "events?upto=x", "events?type=%00", "events?aggregate_id=%ff", "events/x", "dead?fingerprint=zz", "dead?after=x", "dead?after=1", "dead?type=pay*"} {
		if a := s.do(s.request(http.MethodGet, Path+q, nil)); a.code != http.StatusBadRequest {
			t.Errorf("%s: %d", q, a.code)
		}
	}
	// An error leads back to the page with its filter, and to no page of somebody else.
	for referer, want := range map[string]string{
		s.server.URL + Path + "events?state=dead&type=a": `<a href="/console/events?state=dead&amp;type=a">Back</a>`, "https://evil.example/console/../x": "", s.server.URL + Path + "login": "", "": "",
	} {
		r := s.request(http.MethodGet, Path+"events?id=x", nil)
		r.Header.Set("Referer", referer)
		if a := s.do(r); want == "" && strings.Contains(a.body, ">Back<") || !strings.Contains(a.body, want) {
			t.Errorf("from %q: %s", referer, a.body)
		}
	}
	for _, q := range []string{"events/99999", "nowhere"} {
		if a := s.do(s.request(http.MethodGet, Path+q, nil)); a.code != http.StatusNotFound || !strings.Contains(a.body, "<h1>Not Found") {
			t.Errorf("%s: %d", q, a.code)
		}
	}
}

// TestNestedPayload: the page of an event is not many times larger than its payload, whatever the payload nests.
func TestNestedPayload(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	s.exec(`INSERT INTO outbox_events (event_type, payload) VALUES ('a', (repeat('[', 5000) || repeat(']', 5000))::json), ('a', '{"b": [1]}')`)
	s.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (1, 'mail', 'a', 'dead')`)
	if n := len(s.get(Path + "events/1")); n > 200_000 {
		t.Errorf("%d bytes of page for 10,000 bytes of payload", n)
	}
	if text := s.get(Path + "events/2"); !strings.Contains(text, "<pre tabindex=\"0\">{\n  &#34;b&#34;: [\n    1\n  ]\n}</pre>") {
		t.Error(text)
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
			delivers := ">the destinations of its configuration</td>"
			if stream {
				delivers = ">mail</td>"
			}
			page := s.get(Path + "relays")
			for _, want := range []string{delivers, "web-1, process 4711", ">v9</td>", "/etc/x", "reload refused</span> line 3: no"} {
				if !strings.Contains(page, want) {
					t.Errorf("the page lacks %q:\n%s", want, page)
				}
			}
		})
	}
}

// TestRelayOfThePage: the page names its own relay, its destinations, how it finds events, and what an operator must do.
func TestRelayOfThePage(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	s.alive("v9", "v8")
	s.relay.mu.Lock()
	s.relay.stats.Listener = &observe.ListenerStats{Listening: true}
	s.relay.mu.Unlock()
	s.awaitReading()
	s.outbox.sampler.sample(time.Now())
	page := s.get(Path + "relays")
	for _, want := range []string{
		"this page comes from it", `data-label="Delivers to">mail, hook</td>`, `<span class="badge good">up</span>`, "Writers notify it, and it finds a new event at once.",
		"They run different versions (v8, v9). To do: upgrade those that are behind.",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if strings.Contains(page, "action required") {
		t.Errorf("of a relay that is well:\n%s", page)
	}
	s.relay.mu.Lock()
	s.relay.stats.Hangs = []observe.Hang{{Reason: "the claims have not moved for 2m"}}
	s.relay.stats.Listener = &observe.ListenerStats{}
	s.relay.mu.Unlock()
	s.outbox.sampler.sample(time.Now())
	page = s.get(Path + "relays")
	for _, want := range []string{
		`<span class="badge bad">action required</span>`, "hangs: the claims have not moved for 2m.", "To do:</span> see NotifydHangs in docs/runbook.md",
		"It hears no notifications: events are found by polling.", "To do:</span> see the log of notifyd for the cause",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

// alive makes relays alive, one for each version. The first is that of the page.
func (s *site) alive(versions ...string) {
	s.Helper()
	conn, err := s.pool.Acquire(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = conn.Conn().Close(context.WithoutCancel(s.Context())) // and with it the locks
		conn.Release()
	})
	for i, version := range versions {
		owner := store.NewOwner()
		if _, err := conn.Exec(s.Context(), `SELECT pg_advisory_lock_shared($1)`, owner); err != nil {
			s.Fatal(err)
		}
		s.exec(`INSERT INTO outbox_relays (owner, process, host, version, config, started_at, loaded_at)
			VALUES ($1, $2, $3, $4, '/etc/notifyd/notifyd.yaml', now() - interval '3 days', now() - interval '3 h')`, owner, os.Getpid()+i, store.ThisHost(), version)
	}
}

// TestManyStreams: a login has a bounded number of streams, and all streams of a console share what is drawn.
func TestManyStreams(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	var open []*http.Response
	stream := func() int {
		response, err := s.client.Do(s.request(http.MethodGet, Path+"live/overview", nil)) //nolint:bodyclose // closed below
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, response) //nolint:bodyclose // closed below
		return response.StatusCode
	}
	for range maxStreamsEach {
		if code := stream(); code != http.StatusOK {
			t.Fatalf("%d", code)
		}
	}
	if code := stream(); code != http.StatusServiceUnavailable {
		t.Errorf("one too many: %d", code)
	}
	for _, r := range open {
		_ = r.Body.Close()
	}
	deadline := time.After(patience)
	for stream() != http.StatusOK { // the server has yet to see that the browser has left
		select {
		case <-deadline:
			t.Fatal("streams that ended still count")
		default:
		}
	}
	for _, r := range open[maxStreamsEach:] {
		_ = r.Body.Close()
	}

	var all streams
	for i := range maxStreams {
		if _, ok := all.open(viewer{session: session(strconv.Itoa(i / maxStreamsEach)), readOnly: true}); !ok {
			t.Fatalf("stream %d", i)
		}
	}
	if _, ok := all.open(viewer{session: "another", readOnly: true}); ok {
		t.Error("any number of logins has streams")
	}
	if _, ok := all.open(viewer{session: "operator"}); !ok {
		t.Error("viewers have taken the streams of operators")
	}
}

// TestDrawnOnce: a part of a page is drawn once per snapshot.
func TestDrawnOnce(t *testing.T) {
	t.Parallel()
	var d drawings
	drawn := 0
	draw := func() ([]byte, error) {
		drawn++
		return []byte(strconv.Itoa(drawn)), nil
	}
	first, second := make(chan struct{}), make(chan struct{})
	for i, want := range []string{"1", "1", "2", "2", "3"} {
		of, key := first, "a"
		if i >= 2 {
			of = second
		}
		if i == 4 {
			key = "b"
		}
		if text, err := d.get(of, key, draw); err != nil || string(text) != want {
			t.Errorf("%d: %q, %v", i, text, err)
		}
	}
}
