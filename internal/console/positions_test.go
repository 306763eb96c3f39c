package console

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestMoveAndReplay: the position of a destination is moved, and a range replayed, after a page has said
// what that means, and just as that page said.
func TestMoveAndReplay(t *testing.T) {
	t.Parallel()
	s := serveStream(t, false)
	page := Path + "position?name=mail"
	for _, want := range []string{`data-label="Read up to event">5</td>`, `action="/console/position/plan"`, "Events 1 to 6 are kept"} {
		if text := s.get(page); !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if text := s.get(Path + "position?name=gone"); !strings.Contains(text, "The position keeps the events above 0 from being purged.") {
		t.Errorf("the page does not say what holds back the purge:\n%s", text)
	}
	plan := Path + "position/plan?" + url.Values{"name": {"mail"}, "do": {"replay"}, "from": {"1"}, "to": {"now"}, "type": {"order.placed, order.paid"}, "rate": {"5"}}.Encode()
	for _, want := range []string{"mail receives 2 events again, ids 1 to 5", "<dt>order.placed</dt><dd>1</dd>", `name="to" value="5"`, `name="type" value="order.paid"`, "Replay 2 events"} {
		if text := s.get(plan); !strings.Contains(text, want) {
			t.Errorf("the plan lacks %q:\n%s", want, text)
		}
	}
	form := url.Values{"name": {"mail"}, "from": {"1"}, "to": {"5"}, "type": {"order.placed", "order.paid"}, "rate": {"5"}, "reason": {"lost"}}
	a := s.post(plan, Path+"position/replay", form)
	if a.code != http.StatusSeeOther {
		t.Fatalf("replay: %d\n%s", a.code, a.body)
	}
	for _, want := range []string{"Requested. The relay", "Replay 1: 1 to 5", `action="/console/position/stop"`, "by console: lost", "Left, in ids"} {
		if text := s.get(a.header.Get("Location")); !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if got := query[string](s, `SELECT concat_ws(' ', from_id, to_id, patterns, rate, number, left_out, created_by) FROM outbox_replays`); got != "1 5 {order.placed,order.paid} 5 1000 {[4,5)} console" {
		t.Error(got)
	}
	if a := s.post("", Path+"position/replay", form); a.code != http.StatusConflict || !strings.Contains(a.body, "a replay is running, number 1") {
		t.Errorf("a second one: %d\n%s", a.code, a.body)
	}
	a = s.post(page, Path+"position/stop", url.Values{"id": {"1"}})
	if a.code != http.StatusSeeOther || !strings.Contains(s.get(a.header.Get("Location")), `<td data-label="State">stopped</td>`) {
		t.Errorf("stop: %d\n%s", a.code, a.body)
	}
	if a := s.post("", Path+"position/stop", url.Values{"id": {"1"}}); a.code != http.StatusNotFound {
		t.Errorf("stop again: %d\n%s", a.code, a.body)
	}

	plan = Path + "position/plan?" + url.Values{"name": {"mail"}, "do": {"seek"}, "to": {"2"}}.Encode()
	if text := s.get(plan); !strings.Contains(text, "mail continues with event 2") || !strings.Contains(text, "ids 2 to 5, comes again") {
		t.Errorf("the plan:\n%s", text)
	}
	a = s.post(plan, Path+"position/seek", url.Values{"name": {"mail"}, "to": {"2"}})
	if a.code != http.StatusSeeOther || !strings.Contains(s.get(a.header.Get("Location")), "Moved. The relay") {
		t.Errorf("seek: %d\n%s", a.code, a.body)
	}
	if got := query[string](s, `SELECT string_agg(concat_ws(' ', action, actor, destination), ', ' ORDER BY id) || (SELECT head FROM outbox_positions WHERE destination = 'mail') FROM outbox_audit`); got !=
		"replay range console mail, stop replay console mail, seek console mail1" {
		t.Error(got)
	}
	for path, code := range map[string]int{
		"position?name=none": http.StatusNotFound, "position/plan?name=mail&do=seek&to=yesterday": http.StatusBadRequest,
		"position/plan?name=mail&do=replay&from=9": http.StatusConflict, "position/plan?name=mail&do=replay&rate=x": http.StatusBadRequest,
	} {
		if a := s.do(s.request(http.MethodGet, Path+path, nil)); a.code != code {
			t.Errorf("%s: %d\n%s", path, a.code, a.body)
		}
	}
}

// TestPositionReadOnly: a console that refuses actions offers none.
func TestPositionReadOnly(t *testing.T) {
	t.Parallel()
	s := serve(t, func(c *setup) { c.ReadOnly = true })
	if a := s.do(s.request(http.MethodPost, Path+"position/replay", url.Values{"name": {"mail"}})); a.code != http.StatusForbidden {
		t.Errorf("%d\n%s", a.code, a.body)
	}
	if a := s.do(s.request(http.MethodGet, Path+"position?name=mail", nil)); a.code != http.StatusNotFound || !strings.Contains(a.body, "only a stream has positions") {
		t.Errorf("of a queue: %d\n%s", a.code, a.body)
	}
}
