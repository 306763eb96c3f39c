//go:build testall

package console

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

// envShots names a directory for screenshots of the pages, for people to look at.
const envShots = "NOTIFYD_TEST_SCREENSHOTS"

// tab is a tab of a real browser.
type tab struct {
	*testing.T

	ctx context.Context //nolint:containedctx // it is the tab

	mu       sync.Mutex
	troubles []string // errors of the pages and their scripts
}

// openTab starts a browser, or skips the test without one.
func openTab(t *testing.T) *tab {
	t.Helper()
	path := testenv.Program(t, "chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
		chromedp.WSURLReadTimeout(patience), chromedp.Flag("disable-gpu", true))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium has no sandbox for root; it loads the console's pages only
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*patience) // of all pages
	t.Cleanup(cancel)
	ctx, endBrowser := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(endBrowser)
	ctx, closeTab := chromedp.NewContext(ctx)
	t.Cleanup(closeTab)
	b := &tab{T: t, ctx: ctx}
	chromedp.ListenTarget(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelVerbose || e.Entry.Level == log.LevelInfo {
				return // advice
			}
			b.troubles = append(b.troubles, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
		case *runtime.EventExceptionThrown:
			b.troubles = append(b.troubles, e.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
				b.troubles = append(b.troubles, fmt.Sprintf("console.%s", e.Type))
			}
		}
	})
	b.run(log.Enable())
	return b
}

func (b *tab) run(actions ...chromedp.Action) {
	b.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// noTrouble fails the test if a page or a script has reported an error.
func (b *tab) noTrouble(where string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.troubles {
		b.Errorf("%s: %s", where, text)
	}
	b.troubles = nil
}

// look sets the width of the window and the color scheme that the viewer prefers.
func (b *tab) look(scheme string, width int64) {
	b.Helper()
	b.run(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
		chromedp.EmulateViewport(width, 800))
}

// awaits waits for an expression of JavaScript to be true.
func (b *tab) awaits(expression string) {
	b.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var ok bool
	for !ok {
		// A page that the browser is leaving cannot answer.
		err := chromedp.Run(b.ctx, chromedp.Evaluate("Boolean("+expression+")", &ok))
		if b.ctx.Err() != nil {
			b.Fatalf("never true: %s (%v)", expression, err)
		}
		<-tick.C
	}
}

// shot saves a screenshot if a directory for them is set.
func (b *tab) shot(name string) {
	b.Helper()
	dir := os.Getenv(envShots)
	if dir == "" {
		return
	}
	var png []byte
	b.run(chromedp.FullScreenshot(&png, 100))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		b.Fatal(err)
	}
}

// furnish gives a site one of everything to show.
func furnish(s *site) (event int64) {
	s.Helper()
	for i := range 7 {
		s.dead("order.placed", "mail", fmt.Sprintf("550 5.1.1 <user%d@example.com>: Recipient address rejected: User unknown", i))
	}
	event = s.dead("invoice.sent", "hook", `404 Not Found: {"error": "no such <b>tenant</b>", "trace": "`+strings.Repeat("x", 200)+`"}`)
	s.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at, error_class, last_error)
		VALUES (100, 'mail', 'order.placed', 'retry', 3, now() + interval '5 min', 'event', '451 try again later')`)
	waiting := query[int64](s, `INSERT INTO outbox_events (event_type, payload, state, aggregate_type, aggregate_id) VALUES ('order.placed', '{"order": 7}', 'deferred', 'order', '7') RETURNING id`)
	s.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at, error_class, last_error)
		VALUES ($1, 'hook', 'order.placed', 'retry', 3, now() + interval '5 min', 'event', '503 Service Unavailable'), ($1, 'mail', 'order.placed', 'dead', 20, now(), 'event', '550 no such user')`, waiting)
	s.exec(`INSERT INTO outbox_events (event_type, payload, state, created_at, processed_at, aggregate_type, aggregate_id)
		SELECT 'order.placed', '{"order": 1}', 'done', now() - i * interval '1 ms', now(), 'order', i::text FROM generate_series(1, 60) i`)
	s.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'order.paid', '1' FROM generate_series(1, 12)`)
	s.exec(`INSERT INTO outbox_audit (event_id, action, actor, details) VALUES ($1, 'replay', 'anna@ops', '{"reason": "fixed"}')`, event)
	s.alive("v1.0.0")
	s.relay.mu.Lock()
	s.relay.stats.Listener = &observe.ListenerStats{Listening: true}
	s.relay.steady = 3
	s.relay.stats.Destinations[1].State = observe.BreakerOpen
	s.relay.stats.Destinations[1].Trouble = observe.Trouble{DownSince: time.Now().Add(-12 * time.Minute), NextProbe: time.Now().Add(time.Minute)}
	s.relay.stats.Destinations[0].Pace = 23 * time.Millisecond
	s.relay.stats.Destinations[0].Report = &delivery.Report{Connected: true}
	s.relay.mu.Unlock()
	// A history, as a relay has that has run for a while.
	var points []point
	var lane []lanePoint
	for i := range samples - 1 {
		x := float64(i) / 20
		lp := lanePoint{60 + 40*math.Sin(x), math.Max(0, 8*math.Sin(x/3))}
		lane = append(lane, lp)
		points = append(points, point{lp.delivered, lp.failed, 500 + 400*math.Cos(x), latency{0.008 + 0.002*math.Sin(x), 0.05 + 0.02*math.Sin(2*x)}})
	}
	s.outbox.sampler.mu.Lock()
	s.outbox.sampler.last.points, s.outbox.sampler.last.lanes = points, map[string][]lanePoint{"mail": lane}
	s.outbox.sampler.mu.Unlock()
	return event
}

// replayed replays three dead letters. One is dead-lettered again. It returns the id of the replay.
func (s *site) replayed() string {
	s.Helper()
	for range 3 {
		s.dead("order.refunded", "mail", "550 mailbox is full")
	}
	begun, err := s.outbox.start(s.Context(), ops.DeadLetterFilter{Destination: "mail", Type: "order.refunded"}, ops.BulkAction{Actor: consoleActor, Reason: "it is empty now", Rate: 50})
	if err != nil {
		s.Fatal(err)
	}
	<-begun.over
	s.exec(`UPDATE outbox_deliveries SET state = 'dead' WHERE event_id = (SELECT max(id) FROM outbox_events WHERE event_type = 'order.refunded')`)
	s.exec(`WITH d AS (DELETE FROM outbox_deliveries WHERE event_id = (SELECT min(id) FROM outbox_events WHERE event_type = 'order.refunded') RETURNING event_id)
		UPDATE outbox_events SET state = 'done', processed_at = now() WHERE id IN (SELECT event_id FROM d)`)
	return begun.ID
}

// TestPagesInABrowser loads each page in light, dark and on a phone: no error of
// a script or of the policy, nothing wider than the window, and nothing that
// people who use a screen reader, or see little, cannot use.
func TestPagesInABrowser(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	s := serve(t, func(c *setup) { c.Token = token("right") })
	event := furnish(s)
	replayed := s.replayed()
	axe := findAxe(t)
	errorGroup := query[string](s, `SELECT error_fingerprint FROM outbox_deliveries WHERE destination = 'mail' AND state = 'dead' LIMIT 1`)
	paths := []struct{ name, path string }{
		{"login", "login"},
		{"overview", ""},
		{"destinations", "destinations"},
		{"destination", "destination?name=mail"},
		{"events", "events"},
		{"waiting", "events?state=waiting"},
		{"event", fmt.Sprintf("events/%d", event)},
		{"dead", "dead"},
		{"paused", "?done=paused"},
		{"group", "dead?destination=mail&fingerprint=" + errorGroup},
		{"replay", "dead/replays?id=" + replayed},
		{"pause", "destinations/pause?destination=hook"},
		{"relays", "relays"},
	}
	for _, view := range []struct {
		name, scheme string
		width        int64
	}{{"light", "light", 1200}, {"dark", "dark", 1200}, {"phone", "light", 390}, {"narrow", "light", 320}} {
		b.look(view.scheme, view.width)
		for _, p := range paths {
			where := view.name + "-" + p.name
			if p.name == "paused" { // the last of the live pages that changes, for good
				s.exec(`INSERT INTO outbox_pauses (destination, paused_by, reason) VALUES ('mail', 'ann@example.com', 'moving the server') ON CONFLICT DO NOTHING`)
				s.relay.set("mail", true)
				s.outbox.sampler.sampleNow()
			}
			if p.name == "login" {
				if view.name != "light" {
					continue
				}
				b.run(chromedp.Navigate(s.server.URL+Path), chromedp.WaitVisible("#token"))
				b.check(where, axe)
				b.run(chromedp.SendKeys("#token", "right\r"))
				b.awaits(`document.title.startsWith('Overview') && document.readyState === 'complete'`)
				b.noTrouble(where)
				continue
			}
			b.run(chromedp.Navigate(s.server.URL+Path+p.path), chromedp.WaitVisible("main"))
			if p.name == "overview" || p.name == "paused" || strings.HasPrefix(p.name, "destination") || p.name == "replay" {
				b.awaits(`document.getElementById('live-state').textContent === 'Live'`)
			}
			b.check(where, axe)
			b.noTrouble(where)
			if p.name == "events" && view.width < 700 { // a headless browser has no pointer in a wide window either
				b.awaits(`/UTC|attr\(title\)/.test(getComputedStyle(document.querySelector('main time'), '::after').content)`)
			}
		}
	}
}

// TestOutboxesInABrowser loads the list of outboxes, and the pages of one of them and of one that is down; the switch works.
func TestOutboxesInABrowser(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	north, _ := serveMany(t)
	axe := findAxe(t)
	for _, view := range []struct {
		name, scheme string
		width        int64
	}{{"light", "light", 1200}, {"dark", "dark", 1200}, {"phone", "light", 390}, {"narrow", "light", 320}} {
		b.look(view.scheme, view.width)
		for _, p := range []struct{ name, path string }{{"outboxes", ""}, {"north", "outbox/north/"}, {"down", "outbox/down/"}} {
			b.run(chromedp.Navigate(north.server.URL+Path+p.path), chromedp.WaitVisible("main"))
			b.check(view.name+"-"+p.name, axe)
			b.noTrouble(view.name + "-" + p.name)
		}
	}
	b.run(chromedp.Navigate(north.server.URL+Path+"outbox/north/dead"), chromedp.WaitVisible("#switch"))
	b.run(chromedp.SetValue("#switch", "south"), chromedp.Click(".switch button"))
	b.awaits(`location.pathname === '/console/outbox/south/dead' && document.getElementById('switch').value === 'south'`)
}

// check examines the current page.
func (b *tab) check(where, axe string) {
	b.Helper()
	var wide, inner int
	b.run(chromedp.Evaluate(`document.documentElement.scrollWidth`, &wide), chromedp.Evaluate(`window.innerWidth`, &inner))
	if wide > inner {
		b.Errorf("%s: the page is %d wide in a window of %d", where, wide, inner)
	}
	if inner < 700 { // a phone: nothing is to be scrolled sideways, or cut off
		var clipped []string
		b.run(chromedp.Evaluate(sourceClipped, &clipped))
		for _, html := range clipped {
			b.Errorf("%s: clipped: %s", where, html)
		}
	}
	var unnamed, unordered []string
	b.run(chromedp.Evaluate(sourceUnnamed, &unnamed), chromedp.Evaluate(`[...document.querySelectorAll('[tabindex]')]
		.filter((e) => e.tabIndex > 0).map((e) => e.outerHTML.slice(0, 200))`, &unordered))
	for _, html := range append(unnamed, unordered...) {
		b.Errorf("%s: no name, or a focus order of its own: %s", where, html)
	}
	b.shot(where)
	if axe == "" {
		return
	}
	var faults []string
	b.run(chromedp.Evaluate(axe, nil), chromedp.Evaluate(`axe.run(document).then((r) => r.violations.flatMap((v) =>
		v.nodes.map((n) => v.id + ': ' + n.html.slice(0, 200) + ' ' + n.failureSummary)))`, &faults, awaitPromise))
	for _, f := range faults {
		b.Errorf("%s: %s", where, f)
	}
}

func awaitPromise(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }

// sourceUnnamed finds controls, pictures and tables' regions that have no name.
const sourceUnnamed = `[...document.querySelectorAll('button, a, input:not([type=hidden]), select, [role=img], [role=region]')]
	.filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length)))
	.map((e) => e.outerHTML.slice(0, 200))`

// sourceClipped finds elements that are wider than their place, and text outside the window.
const sourceClipped = `[...document.querySelectorAll('main *')]
	.filter((e) => !e.closest('.hidden, svg, thead') && e.getClientRects().length > 0
		&& (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline' && getComputedStyle(e).overflowX !== 'visible'
			|| e.getBoundingClientRect().right > window.innerWidth + 1))
	.map((e) => e.outerHTML.slice(0, 200))`

// findAxe returns the source of axe-core, "" where it was not installed.
func findAxe(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile("../../.cache/console/node_modules/axe-core/axe.min.js")
	if err != nil {
		t.Logf("without axe-core: %v", err)
	}
	return string(source)
}

// TestLiveInABrowser: figures change without a reload, the focus stays where it
// is, and a paused destination shows.
func TestLiveInABrowser(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	s := serve(t, nil)
	b.run(chromedp.Navigate(s.server.URL+Path+"destination?name=mail"), chromedp.WaitVisible("#live-toggle"))
	b.awaits(`document.getElementById('live-state').textContent === 'Live'`)
	// Not by the node, which may be replaced at any moment.
	b.run(chromedp.Evaluate(`document.getElementById('b-d-mail').focus()`, nil))
	s.relay.deliver(4321)
	b.awaits(`document.querySelector('#d-mail dd').textContent.replace(/\s/g, '') === '4321'`)
	b.awaits(`document.activeElement && document.activeElement.id === 'b-d-mail'`)
	// With the keyboard alone.
	b.run(chromedp.KeyEvent("\r"), chromedp.WaitVisible("#b-pause"), chromedp.SendKeys("#p-reason", "the server moves\r"))
	b.awaits(`document.querySelector('#d-mail .badge').textContent === 'paused' && document.querySelector('.done') !== null`)
	b.awaits(`document.getElementById('live-state').textContent === 'Live'`)
	if _, err := s.relay.Resume(t.Context(), "mail", ops.Action{}); err != nil {
		t.Fatal(err)
	}
	b.awaits(`document.querySelector('#d-mail .badge').textContent === 'up'`)
	b.run(chromedp.Click("#live-toggle"))
	b.awaits(`document.getElementById('live-state').textContent === 'Stopped'`)
	b.noTrouble("destinations")
}

// TestReplayInABrowser finds a group of dead letters from the overview, and
// replays it.
func TestReplayInABrowser(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	s := serve(t, nil)
	s.dead("order.placed", "mail", "550 no such user")
	s.awaitReading()
	b.run(chromedp.Navigate(s.server.URL+Path), chromedp.WaitVisible("#live-toggle"))
	b.run(chromedp.Click("#live-toggle"), chromedp.Click(`.notes a[href*="dead?"]`), chromedp.WaitVisible("h1"))
	b.awaits(`document.title.startsWith('Dead letters')`)
	b.run(chromedp.Click(`tbody a`))
	b.awaits(`location.search.includes('fingerprint=')`)
	b.run(chromedp.WaitVisible("#w-all"), chromedp.Click("#w-all"), chromedp.Click(`button[value="replay"]`), chromedp.WaitVisible("#c-reason"))
	b.awaits(`document.getElementById('b-confirm').textContent === 'Replay 1'`)
	b.run(chromedp.SendKeys("#c-reason", "fixed\r"), chromedp.WaitVisible(".counts"))
	b.awaits(`document.querySelector('h2').textContent === '1 of 1 replayed for mail'`)
	if got := query[string](s, `SELECT state || ' ' || (SELECT details->>'reason' FROM outbox_audit) FROM outbox_deliveries`); got != "retry fixed" {
		t.Errorf("the delivery is %s", got)
	}
	b.noTrouble("dead letters")
}

// TestHandsInABrowser: the pointer over a chart shows the values of that second, the buttons say how
// many rows are chosen, and only those are replayed; a relative time has the moment itself.
func TestHandsInABrowser(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	s := serve(t, nil)
	furnish(s)
	s.awaitReading()
	b.look("light", 1200)
	b.run(chromedp.Navigate(s.server.URL+Path), chromedp.WaitVisible("#live-toggle"))
	b.awaits(`document.getElementById('live-state').textContent === 'Live'`)
	var place struct{ X, Y float64 }
	b.run(chromedp.Evaluate(`(() => { const r = document.querySelector('.chart.slow .area-of').getBoundingClientRect(); return { X: r.left + r.width / 2, Y: r.top + 10 }; })()`, &place))
	b.run(chromedp.MouseEvent(input.MouseMoved, place.X, place.Y))
	b.awaits(`/^2 min ago: p99 [0-9.]+ ms, p50 [0-9.]+ ms$/.test(document.querySelector('.chart.slow .tip').textContent)`)
	// It stays while the figures change.
	s.relay.deliver(5)
	b.awaits(`!document.querySelector('.chart.slow .tip').hidden && !document.querySelector('.chart.slow .cursor').hidden`)
	b.shot("hover")

	errorGroup := query[string](s, `SELECT error_fingerprint FROM outbox_deliveries WHERE event_id = 1 AND destination = 'mail'`)
	b.run(chromedp.Navigate(s.server.URL+Path+"dead?destination=mail&fingerprint="+errorGroup), chromedp.WaitVisible("form.chosen"))
	b.awaits(`/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$/.test(document.querySelector('time').title) && document.querySelector('time').textContent.endsWith('ago')`)
	b.run(chromedp.Click(".choose-all"))
	b.awaits(`[...document.querySelectorAll('input[name=letter]')].every((e) => e.checked)`)
	b.run(chromedp.Click("#w-page"), chromedp.Click(".choose-all"), chromedp.Click(`input[name=letter][value="1 mail"]`), chromedp.Click(`input[name=letter][value="3 mail"]`))
	b.awaits(`document.querySelector('label[for=w-chosen]').textContent === 'the chosen ones: 2' && document.getElementById('w-chosen').checked && document.querySelector('.choose-all').indeterminate`)
	b.shot("chosen")
	b.run(chromedp.Click(`button[value="replay"]`), chromedp.WaitVisible("#b-confirm"))
	b.awaits(`document.getElementById('b-confirm').textContent === 'Replay 2'`)
	b.check("confirm", findAxe(t))
	b.run(chromedp.Click("#b-confirm"), chromedp.WaitVisible(".counts"))
	b.awaits(`document.querySelector('h2').textContent === '2 of 2 replayed for mail'`)
	if got := query[string](s, `SELECT string_agg(event_id::text, ' ' ORDER BY event_id) FROM outbox_deliveries WHERE replays = 1`); got != "1 3" {
		t.Errorf("replayed: %s", got)
	}
	b.noTrouble("hands")
}
