package console

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/ops"
)

// TestPostsOfOthers: no form of another site is admitted, with a login or without, whatever
// the header by which the browser tells.
func TestPostsOfOthers(t *testing.T) {
	t.Parallel()
	open, closed := serve(t, nil), serve(t, func(c *setup) { c.Token = token("right") })
	if a := closed.post(Path+"login", Path+"login", url.Values{"token": {"right"}}); a.code != http.StatusSeeOther {
		t.Fatalf("login: %d", a.code)
	}
	type headers struct{ site, origin, host string }
	for _, s := range []*site{open, closed} {
		cookie := ""
		if s == closed {
			cookie = cookies(s)
		}
		own := strings.TrimPrefix(s.server.URL, "http://")
		send := func(path string, h headers) int {
			id := s.dead("order.placed", "mail", "550 no")
			form := url.Values{"destination": {"mail"}, "event": {fmt.Sprint(id)}, "sure": {"yes"}, "payload": {"1"}, "token": {"right"}}
			r := s.request(http.MethodPost, Path+path, form)
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Del("Origin")
			if h.site != "" {
				r.Header.Set("Sec-Fetch-Site", h.site)
			}
			if h.origin != "" {
				r.Header.Set("Origin", h.origin)
			}
			if h.host != "" { // the client would look for the cookies of that host
				r.Host = h.host
				r.Header.Set("Cookie", cookie)
			}
			return s.do(r).code
		}
		for name, h := range map[string]headers{
			"another site":                             {"cross-site", "https://evil.example", ""},
			"another site that hides its origin":       {"cross-site", "null", ""},
			"another site, without an origin":          {"cross-site", "", ""},
			"another host of the site":                 {"same-site", "https://evil.example.com", ""},
			"another port":                             {"same-site", "http://127.0.0.1:1", ""},
			"an unknown relation":                      {"nonsense", s.server.URL, ""},
			"an old browser, another origin":           {"", "https://evil.example", ""},
			"an old browser, a hidden origin":          {"", "null", ""},
			"an old browser, another port":             {"", "http://127.0.0.1:1", ""},
			"an old browser, a host that begins alike": {"", "http://" + own + ".evil.example", ""},
		} {
			for _, path := range append(slices.Collect(maps.Keys(actions())), "login", "logout") {
				if code := send(path, h); code != http.StatusForbidden {
					t.Errorf("%s: /%s: %d", name, path, code)
				}
			}
		}
		if a := s.do(s.request(http.MethodGet, Path+"destinations/pause?destination=mail", nil)); a.code == http.StatusSeeOther {
			t.Errorf("a link pauses: %d", a.code)
		}
		if got := query[int](s, `SELECT count(*)::int FROM outbox_deliveries WHERE state <> 'dead'`); got != 0 || len(s.relay.paused) != 0 {
			t.Errorf("%d dead letters were changed, paused: %v", got, s.relay.paused)
		}
		for name, h := range map[string]headers{
			"a page of the console":                    {"same-origin", s.server.URL, ""},
			"a page of the console, without an origin": {"same-origin", "", ""},
			"an address that was typed":                {"none", "", ""},
			"an old browser":                           {"", s.server.URL, ""},
			"a client that is no browser":              {"", "", ""},
			"behind a proxy that sets the host":        {"same-origin", "https://relay.example.com", "localhost:9470"},
			"behind a proxy that keeps it":             {"", "https://localhost", "localhost"},
		} {
			if code := send("destinations/pause", h); code != http.StatusSeeOther {
				t.Errorf("%s: %d, so the other cases prove nothing", name, code)
			}
		}
	}
}

// TestNamesOfOthers: without a token, a foreign name that resolves to the server
// is refused.
func TestNamesOfOthers(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	for host, want := range map[string]int{
		"evil.example": http.StatusForbidden, "evil.example:80": http.StatusForbidden, "10.0.0.1:9470": http.StatusForbidden, "localhost.evil.example": http.StatusForbidden,
		"localhost:9470": http.StatusOK, "127.0.0.1": http.StatusOK, "[::1]:9470": http.StatusOK, "127.9.9.9:1": http.StatusOK,
	} {
		r := s.request(http.MethodGet, Path, nil)
		r.Host = host
		if a := s.do(r); a.code != want {
			t.Errorf("%s: %d, want %d", host, a.code, want)
		}
	}
}

func TestLogin(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := serve(t, func(c *setup) {
		c.Token, c.Log = token("right"), slog.New(slog.NewTextHandler(&log, nil))
	})
	for _, path := range []string{"", "destinations", "events", "events/1", "dead", "relays"} {
		a := s.do(s.request(http.MethodGet, Path+path, nil))
		if a.code != http.StatusSeeOther || !strings.HasPrefix(a.header.Get("Location"), Path+"login") {
			t.Errorf("/%s without a login: %d %s", path, a.code, a.header.Get("Location"))
		}
	}
	for _, path := range []string{"live/overview", "live/destinations"} {
		if a := s.do(s.request(http.MethodGet, Path+path, nil)); a.code != http.StatusUnauthorized {
			t.Errorf("/%s without a login: %d", path, a.code)
		}
	}
	if a := s.do(s.request(http.MethodPost, Path+"dead/replay", url.Values{"destination": {"mail"}})); a.code != http.StatusUnauthorized {
		t.Errorf("a form without a login: %d", a.code)
	}
	login := func(word string) answer {
		return s.do(s.request(http.MethodPost, Path+"login", url.Values{"token": {word}, "next": {Path + "dead"}}))
	}
	if a := login("wrong-secret"); a.code != http.StatusUnauthorized || a.header.Get("Set-Cookie") != "" || !strings.Contains(a.body, "not the token") {
		t.Errorf("the wrong token: %d, %v", a.code, a.header)
	}
	a := login("right")
	if a.code != http.StatusSeeOther || a.header.Get("Location") != Path+"dead" {
		t.Fatalf("the right token: %d %v\n%s", a.code, a.header, a.body)
	}
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=/console/", "Max-Age=28800"} {
		if cookie := a.header.Get("Set-Cookie"); !strings.Contains(cookie, want) {
			t.Errorf("the cookie lacks %s: %s", want, cookie)
		}
	}
	s.get(Path + "dead")
	if a := s.post(Path+"destinations/pause?destination=mail", Path+"destinations/pause", url.Values{"destination": {"mail"}}); a.code != http.StatusSeeOther {
		t.Errorf("a form after the login: %d", a.code)
	}
	session := cookies(s)
	if a := s.post(Path, Path+"logout", url.Values{}); a.code != http.StatusSeeOther {
		t.Errorf("logout: %d", a.code)
	}
	r := s.request(http.MethodGet, Path, nil)
	r.Header.Set("Cookie", session) // the cookie was kept
	s.client = s.browser()
	if a := s.do(r); a.code != http.StatusSeeOther {
		t.Errorf("the cookie is still good after the logout: %d", a.code)
	}
	if text := log.String(); strings.Contains(text, "wrong-secret") || strings.Contains(text, "right") || !strings.Contains(text, "console login failed") {
		t.Errorf("the log:\n%s", text)
	}
}

// TestLoginRate: an address that has tried too many wrong tokens must wait before the next one; others, and the right token, need not.
func TestLoginRate(t *testing.T) {
	t.Parallel()
	s := serve(t, func(c *setup) { c.Token = token("right") })
	login := func(word string) answer {
		return s.do(s.request(http.MethodPost, Path+"login", url.Values{"token": {word}}))
	}
	refused := 0
	for range 10 * loginBurst {
		if a := login("wrong"); a.code == http.StatusTooManyRequests && a.header.Get("Retry-After") == "10" {
			refused++
		} else if a.code != http.StatusUnauthorized {
			t.Fatalf("%d: %s", a.code, a.body)
		}
	}
	if refused == 0 {
		t.Error("any number of logins may be tried")
	}
	if a := login("right"); a.code != http.StatusSeeOther {
		t.Errorf("wrong tokens lock out the right one: %d: %s", a.code, a.body)
	}
	var a attempts
	now := time.Now()
	try := func(remote string, after time.Duration) bool {
		allowed, _ := a.allow(remote, now.Add(after))
		return allowed
	}
	for i := range loginBurst {
		if !try("192.0.2.1:1000", 0) || !try("[2001:db8::1]:1000", 0) {
			t.Fatalf("login %d is refused", i)
		}
	}
	if try("192.0.2.1:2000", 0) || try("[::ffff:192.0.2.1]:1", 0) || try("[2001:db8::2]:1000", 0) {
		t.Error("another port, form or address of the network is let through")
	}
	if !try("192.0.2.2:1000", 0) || !try("[2001:db8:1::1]:1000", 0) || !try("192.0.2.1:1000", loginEvery) {
		t.Error("another address, or a later time, is refused")
	}
	for i := range 3 * maxAddresses {
		try(fmt.Sprintf("10.0.%d.%d:1", i/256, i%256), 0)
	}
	if len(a.all) > maxAddresses {
		t.Errorf("%d addresses are remembered", len(a.all))
	}
}

func cookies(s *site) string {
	u, err := url.Parse(s.server.URL + Path)
	if err != nil {
		s.Fatal(err)
	}
	all := s.client.Jar.Cookies(u)
	if len(all) != 1 {
		s.Fatalf("%d cookies", len(all))
	}
	return all[0].String()
}

func TestNextPageIsOurs(t *testing.T) {
	t.Parallel()
	for next, want := range map[string]string{
		"/console/dead?type=a": "/console/dead?type=a", "https://evil.example/": Path, "//evil.example/": Path, "": Path, "/metrics": Path,
		"/console/../../metrics": Path, "/other/console/": Path, "/console/..": Path, "/console/%2e%2e/metrics": Path, "/console/a/../b": "/console/a/../b", "/console/\x00": Path,
		"/console/\\evil": Path, "/console/\r\nX: y": Path,
	} {
		for _, prefix := range []string{"", "/ops"} {
			c := &Console{path: prefix + Path}
			if got := c.localPath(strings.ReplaceAll(next, Path, prefix+Path)); got != strings.ReplaceAll(want, Path, prefix+Path) {
				t.Errorf("below %q, %q leads to %q", prefix, next, got)
			}
		}
	}
}

func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	var s sessions
	now := time.Now()
	first := s.open(now, true)
	lives := func(at time.Time) bool {
		l, open := s.find(first, at)
		return open && l.readOnly
	}
	if !lives(now.Add(sessionLife-time.Second)) || lives(now.Add(sessionLife)) {
		t.Error("a session does not last as long as it should")
	}
	for i := range maxSessions {
		s.open(now.Add(time.Duration(i+1)*time.Second), false)
	}
	if !lives(now) {
		t.Error("a login with other rights ends the session")
	}
	for i := range maxSessions {
		s.open(now.Add(time.Duration(i+1)*time.Second), true)
	}
	if lives(now) || len(s.all) != 2*maxSessions {
		t.Errorf("%d sessions are kept", len(s.all))
	}
}

// form has fields for every action of the console on a dead letter of mail.
func form(id int64) url.Values {
	return url.Values{
		"destination": {"mail"}, "event": {fmt.Sprint(id)}, "sure": {"yes"}, "payload": {"1"}, "name": {"mail"}, "to": {"now"}, "from": {"1"}, "id": {"1"},
	}
}

// TestReadOnly: a console that changes nothing, and a login that may not, show all pages without a button, and refuse every action.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*setup)
		login  string
		says   string
	}{
		"admin.read_only":       {func(c *setup) { c.ReadOnly = true }, "", "admin.read_only)"},
		"admin.read_only_token": {func(c *setup) { c.Token, c.ReadOnlyToken = token("right"), token("look") }, "look", "admin.read_only_token"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, c.change)
			if c.login != "" {
				if a := s.post(Path+"login", Path+"login", url.Values{"token": {c.login}}); a.code != http.StatusSeeOther {
					t.Fatalf("login: %d", a.code)
				}
			}
			s.readsOnly(c.says)
		})
	}
}

func (s *site) readsOnly(says string) {
	s.Helper()
	id := s.dead("order.placed", "mail", "550 no")
	errorGroup := query[string](s, `SELECT error_fingerprint FROM outbox_deliveries`)
	s.exec(`INSERT INTO outbox_pauses (destination, paused_by, reason) VALUES ('mail', 'ann', '')`)
	s.outbox.sampler.sampleNow() // the next page queries the database
	begun, err := s.outbox.start(s.Context(), ops.DeadLetterFilter{Destination: "none"}, ops.BulkAction{})
	if err != nil {
		s.Fatal(err)
	}
	paths := []string{
		"", "destinations", "destination?name=mail", "events", "dead", "dead?destination=mail&fingerprint=" + errorGroup, fmt.Sprintf("events/%d", id),
		"relays", "dead/replays?id=" + begun.ID,
	}
	for _, path := range paths {
		page := strings.ReplaceAll(s.get(Path+path), `method="post" action="/console/logout"`, "")
		if strings.Contains(page, `formaction`) || strings.Contains(page, `method="post" action`) || strings.Contains(page, `type="checkbox"`) || !strings.Contains(page, "read-only") {
			s.Errorf("/%s has a form:\n%s", path, page)
		}
	}
	if page := s.get(Path); !strings.Contains(page, "The destination mail was paused") || strings.Contains(page, "b-resume") {
		s.Errorf("the overview:\n%s", page)
	}
	before := query[string](s, sqlEverything)
	for path := range actions() {
		if a := s.do(s.request(http.MethodPost, Path+path, form(id))); a.code != http.StatusForbidden || !strings.Contains(a.body, says) {
			s.Errorf("/%s: %d\n%s", path, a.code, a.body)
		}
	}
	if len(s.relay.paused) != 0 || query[string](s, sqlEverything) != before {
		s.Error("something was changed")
	}
}

// sqlEverything changes with each action.
const sqlEverything = `SELECT concat_ws(' ', (SELECT string_agg(d::text, ',') FROM outbox_deliveries d), (SELECT string_agg(e::text, ',') FROM outbox_events e),
	(SELECT string_agg(a::text, ',') FROM outbox_audit a), (SELECT string_agg(p::text, ',') FROM outbox_pauses p))`

// TestTokens: each token has its own rights, also after the other login, and neither is the other's.
func TestTokens(t *testing.T) {
	t.Parallel()
	s := serve(t, func(c *setup) { c.Token, c.ReadOnlyToken = token("right"), token("look") })
	id := s.dead("order.placed", "mail", "550 no")
	login := func(word string) int {
		return s.do(s.request(http.MethodPost, Path+"login", url.Values{"token": {word}})).code
	}
	pause := func() int {
		return s.do(s.request(http.MethodPost, Path+"destinations/pause", form(id))).code
	}
	for _, word := range []string{"", "rightlook", "loo"} {
		if code := login(word); code != http.StatusUnauthorized {
			t.Errorf("token %q: %d", word, code)
		}
	}
	if code := pause(); code != http.StatusUnauthorized {
		t.Errorf("an action without a login: %d", code)
	}
	if login("look"); pause() != http.StatusForbidden {
		t.Error("the read-only login may act")
	}
	looking := cookies(s)
	if login("right"); pause() != http.StatusSeeOther {
		t.Error("the other login may not act")
	}
	acting := cookies(s)
	s.client = s.browser()
	r := s.request(http.MethodPost, Path+"destinations/resume", form(id))
	r.Header.Set("Cookie", looking)
	if a := s.do(r); a.code != http.StatusUnauthorized {
		t.Errorf("the session before the second login is still open: %d", a.code)
	}
	r = s.request(http.MethodPost, Path+"destinations/resume", form(id))
	r.Header.Set("Cookie", acting)
	if a := s.do(r); a.code != http.StatusSeeOther {
		t.Errorf("the session of the second login: %d", a.code)
	}
	only := serve(t, func(c *setup) { c.Token = token("right") })
	if a := only.do(only.request(http.MethodPost, Path+"login", url.Values{"token": {""}})); a.code != http.StatusUnauthorized {
		t.Errorf("an empty token, without a read-only one: %d", a.code)
	}
}

// TestActor: the audit has the name by a trusted proxy, and no other.
func TestActor(t *testing.T) {
	t.Parallel()
	header := func(proxies ...string) func(*setup) {
		return func(c *setup) {
			c.Actor.Name = "X-Forwarded-User"
			for _, p := range proxies {
				c.Actor.Proxies = append(c.Actor.Proxies, netip.MustParsePrefix(p))
			}
		}
	}
	trusted, other := serve(t, header("10.0.0.0/8", "127.0.0.1/32")), serve(t, header("10.0.0.0/8", "127.0.0.2/32"))
	for name, c := range map[string]struct {
		s     *site
		names []string
		code  int
		want  string
	}{
		"the proxy":                       {trusted, []string{" ann@example.com "}, http.StatusSeeOther, "ann@example.com"},
		"a name beyond ASCII":             {trusted, []string{"Zoë Müller"}, http.StatusSeeOther, "Zoë Müller"},
		"no name":                         {trusted, nil, http.StatusBadRequest, ""},
		"an empty name":                   {trusted, []string{" "}, http.StatusBadRequest, ""},
		"a client that is no proxy":       {other, []string{"ann@example.com"}, http.StatusSeeOther, "console"},
		"a client and the proxy":          {trusted, []string{"mallory", "ann"}, http.StatusBadRequest, ""},
		"a name that is too long":         {trusted, []string{strings.Repeat("x", maxActor+1)}, http.StatusBadRequest, ""},
		"a tab":                           {trusted, []string{"ann\tbob"}, http.StatusBadRequest, ""},
		"a name that turns the direction": {trusted, []string{"ann\u202ebob"}, http.StatusBadRequest, ""},
		"no text":                         {trusted, []string{"ann\xff"}, http.StatusBadRequest, ""},
	} {
		id := c.s.dead("order.placed", "mail", "550 no")
		r := c.s.request(http.MethodPost, Path+"dead/replay", form(id))
		r.Header["X-Forwarded-User"] = c.names
		if a := c.s.do(r); a.code != c.code {
			t.Errorf("%s: %d\n%s", name, a.code, a.body)
		}
		if got := query[string](c.s, `SELECT coalesce((SELECT actor FROM outbox_audit WHERE event_id = $1), '')`, id); got != c.want {
			t.Errorf("%s: the actor is %q, want %q", name, got, c.want)
		}
	}
	r := trusted.request(http.MethodGet, Path, nil)
	r.Header.Set("X-Forwarded-User", "ann<b>")
	if a := trusted.do(r); a.code != http.StatusOK || !strings.Contains(a.body, "ann&lt;b&gt;") {
		t.Errorf("the page does not show who acts: %d\n%s", a.code, a.body)
	}
}

// TestActorIsEverywhere: every action records the person's name.
func TestActorIsEverywhere(t *testing.T) {
	t.Parallel()
	s := serve(t, func(c *setup) {
		c.Actor = ActorHeader{Name: "X-Forwarded-User", Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	})
	send := func(path string, form url.Values) {
		t.Helper()
		r := s.request(http.MethodPost, Path+path, form)
		r.Header.Set("X-Forwarded-User", "ann")
		if a := s.do(r); a.code != http.StatusSeeOther {
			t.Errorf("%s: %d\n%s", path, a.code, a.body)
		}
	}
	id := s.dead("order.placed", "mail", "550 no")
	send("events/edit", form(id))
	send("dead/replay", form(id))
	send("events/retry", form(id))
	send("dead/discard", form(s.dead("order.placed", "mail", "550 no")))
	send("destinations/pause", form(id))
	if got := query[string](s, `SELECT string_agg(action || ' ' || actor, ', ' ORDER BY id) FROM outbox_audit`); got != "edit ann, replay ann, retry ann, discard ann" {
		t.Error(got)
	}
	if s.relay.by != "ann" {
		t.Errorf("paused by %s", s.relay.by)
	}
}

func TestHiddenPayloads(t *testing.T) {
	t.Parallel()
	for _, hidden := range []bool{true, false} {
		s := serve(t, func(c *setup) { c.HidePayloads = hidden })
		id := s.dead("order.placed", "mail", "550 no")
		s.exec(`INSERT INTO outbox_audit (event_id, action, actor, old_payload) VALUES ($1, 'edit', 'me', '{"was": "OLD-TEXT"}')`, id)
		page := s.get(fmt.Sprintf("%sevents/%d", Path, id))
		if shown := strings.Contains(page, "PAYLOAD-TEXT") && strings.Contains(page, "OLD-TEXT"); shown == hidden {
			t.Errorf("hidden %v:\n%s", hidden, page)
		}
		if hidden && (strings.Contains(page, "PAYLOAD-TEXT") || strings.Contains(page, "OLD-TEXT")) {
			t.Error("a payload is shown")
		}
	}
}

const markup = `"><script>alert(1)</script><img src=x onerror=alert(2)>'{{.}}`

// TestMarkup: values from applications and destinations are shown as text.
func TestMarkup(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	id := query[int64](s, `INSERT INTO outbox_events (event_type, payload, state, headers, aggregate_type, aggregate_id, idempotency_key)
		VALUES ($1, to_json($1::text), 'deferred', jsonb_build_object('h', $1::text), $1, $1, $1) RETURNING id`, markup)
	s.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, error_class, last_error, ordering_key) VALUES
		($1, $2, $2, 'dead', 'event', $2, $2), ($1, 'mail', $2, 'retry', 'event', $2, NULL)`, id, markup)
	s.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES ($1, '', $2, 'unrouted')`, id, markup)
	s.exec(`INSERT INTO outbox_audit (event_id, action, actor, destination, details) VALUES ($1, $2, $2, $2, jsonb_build_object('reason', $2::text))`, id, markup)
	s.relay.mu.Lock()
	s.relay.stats.Destinations[0].Name = markup
	s.relay.mu.Unlock()
	q := url.QueryEscape(markup)
	errorGroup := query[string](s, `SELECT error_fingerprint FROM outbox_deliveries WHERE state = 'dead'`)
	begun, err := s.outbox.start(t.Context(), ops.DeadLetterFilter{Destination: markup, Events: []int64{1 << 40}}, ops.BulkAction{Actor: consoleActor, Reason: markup, Rate: 0})
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{
		"", "destinations", "events", "events?aggregate_type=" + q, "destination?name=" + q, "dead/replays?id=" + begun.ID, fmt.Sprintf("events/%d", id), "dead", "dead?destination=" + q,
		"dead?destination=" + q + "&fingerprint=" + errorGroup, "relays", "destinations?done=" + q, "dead?done=" + q + "&n=1",
	}
	for _, path := range paths {
		page := s.get(Path + path)
		if strings.Contains(page, "<script>") || strings.Contains(page, "<img") || strings.Contains(page, "ZgotmplZ") {
			t.Errorf("/%s shows text as markup:\n%s", path, page)
		}
		if strings.Contains(page, " style=") || strings.Contains(page, " onclick=") {
			t.Errorf("/%s contains inline code, which the policy forbids", path)
		}
	}
	for _, form := range []url.Values{
		{"which": {"all"}, "destination": {markup}, "do": {"discard"}}, {"which": {"chosen"}, "letter": {fmt.Sprintf("%d %s", id, markup)}},
	} {
		if a := s.do(s.request(http.MethodPost, Path+"dead/confirm", form)); a.code != http.StatusOK || strings.Contains(a.body, "<script>") || strings.Contains(a.body, "ZgotmplZ") {
			t.Errorf("the confirmation of %v: %d\n%s", form, a.code, a.body)
		}
	}
	if a := s.do(s.request(http.MethodGet, Path+"events?type="+q, nil)); a.code != http.StatusBadRequest || strings.Contains(a.body, "<script>") {
		t.Errorf("a refused search: %d\n%s", a.code, a.body)
	}
	a := s.do(s.request(http.MethodGet, Path+"static/console.js", nil))
	for name, want := range map[string]string{
		"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Cache-Control": "no-store",
	} {
		if got := a.header.Get(name); !strings.HasPrefix(got, want) {
			t.Errorf("%s is %q", name, got)
		}
	}
	if strings.Contains(a.header.Get("Content-Security-Policy"), "unsafe") {
		t.Error("the policy allows what is unsafe")
	}
}
