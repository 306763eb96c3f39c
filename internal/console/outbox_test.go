package console

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// serveMany starts a console with the outboxes north, south and down. The database of the last one does not answer. The site is
// that of north.
func serveMany(t *testing.T) (north, south *site) {
	t.Helper()
	c, err := New(Config{Many: true, Version: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	add := func(name string, pool *pgxpool.Pool, trouble error) *site {
		s := &site{T: t, pool: pool, console: c, server: server, relay: &fakeRelay{
			pool: pool, paused: make(map[string]bool), stats: observe.Stats{Destinations: []observe.DestinationStats{{Name: "mail-" + name}}},
		}}
		err := c.Add(name, Outbox{
			Relay: s.relay, Pauser: s.relay, Trouble: func() error { return trouble },
			Database: Database{Pool: pool, Schema: outboxsql.DefaultSchema},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.outbox, s.client = c.outbox(name), s.browser()
		return s
	}
	south = add("south", testdb.Pool(t, testdb.URL(t, testdb.Tables{})), nil)
	nowhere, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none?connect_timeout=2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nowhere.Close)
	add("down", nowhere, errors.New("no database\nthere"))
	north = add("north", testdb.Pool(t, testdb.URL(t, testdb.Tables{})), nil)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return north, south
}

// TestManyOutboxes: each outbox has its own pages, figures and actions, and the header leads from one to another.
func TestManyOutboxes(t *testing.T) {
	t.Parallel()
	north, south := serveMany(t)
	north.dead("of.north", "mail-north", "550 no")
	south.dead("of.south", "mail-south", "550 no")
	list := north.get(Path)
	var at []int
	for _, want := range []string{
		`<a href="/console/outbox/down/">down</a>`, "no database; there", `<a href="/console/outbox/north/">north</a>`, `<a href="/console/outbox/south/">south</a>`,
	} {
		at = append(at, strings.Index(list, want))
	}
	if !slices.IsSorted(at) || at[0] < 0 {
		t.Errorf("the list (%v):\n%s", at, list)
	}
	for _, s := range []*site{north, south} {
		other := south
		if s == south {
			other = north
		}
		for _, page := range []string{"", "destinations", "destination?name=mail-" + s.outbox.name, "events", "dead", "relays", "events/1"} {
			text := s.get(s.outbox.base + page)
			if without := strings.ReplaceAll(text, "<option>"+other.outbox.name+"</option>", ""); strings.Contains(without, other.outbox.name) {
				t.Errorf("/%s of %s shows the other one:\n%s", page, s.outbox.name, text)
			}
			for _, want := range []string{"<option selected>" + s.outbox.name + "</option>", "<option>down</option>", `href="` + s.outbox.base + `dead"`} {
				if !strings.Contains(text, want) {
					t.Errorf("/%s of %s lacks %q:\n%s", page, s.outbox.name, want, text)
				}
			}
			for _, link := range regexp.MustCompile(`(?:href|action|data-live)="/console/([a-z]*)`).FindAllStringSubmatch(text, -1) {
				if !slices.Contains([]string{"outbox", "static", "switch", ""}, link[1]) {
					t.Errorf("/%s of %s leads out of the outbox: %s", page, s.outbox.name, link[0])
				}
			}
		}
	}
	if a := north.do(north.request(http.MethodGet, Path+"switch?outbox=south&page=dead", nil)); a.header.Get("Location") != Path+"outbox/south/dead" {
		t.Errorf("the switch leads to %q", a.header.Get("Location"))
	}
	for _, page := range []string{"events/7", "https://evil.example/", "../../metrics", ""} {
		if a := north.do(north.request(http.MethodGet, Path+"switch?outbox=south&page="+url.QueryEscape(page), nil)); a.header.Get("Location") != Path+"outbox/south/" {
			t.Errorf("%s: the switch leads to %q", page, a.header.Get("Location"))
		}
	}
	for _, path := range []string{"switch?outbox=none", "outbox/none/", "outbox/none/dead", "outbox/", "outbox/north", "dead", "events"} {
		if a := north.do(north.request(http.MethodGet, Path+path, nil)); a.code != http.StatusNotFound && a.code != http.StatusMovedPermanently && a.code != http.StatusTemporaryRedirect {
			t.Errorf("%s: %d", path, a.code)
		}
	}
	form := url.Values{"all": {"yes"}, "n": {"1"}, "sure": {"yes"}, "destination": {"mail-north"}}
	if a := north.post("", north.outbox.base+"dead/discard", form); a.code != http.StatusSeeOther || !strings.HasPrefix(a.header.Get("Location"), north.outbox.base+"dead?") {
		t.Errorf("discard: %d %s", a.code, a.header.Get("Location"))
	}
	if query[int](north, `SELECT count(*) FROM outbox_deliveries`) != 0 || query[int](south, `SELECT count(*) FROM outbox_deliveries`) != 1 {
		t.Error("the letters of the wrong outbox were discarded")
	}
	if a := south.post(south.outbox.base+"destinations/pause?destination=mail-south", south.outbox.base+"destinations/pause", url.Values{"destination": {"mail-south"}}); a.code != http.StatusSeeOther || !south.relay.paused["mail-south"] || len(north.relay.paused) > 0 {
		t.Errorf("pause: %d", a.code)
	}
}

// TestOutboxThatIsDown has pages that say so.
func TestOutboxThatIsDown(t *testing.T) {
	t.Parallel()
	north, _ := serveMany(t)
	page := north.get(Path + "outbox/down/")
	for _, want := range []string{"This outbox is not relayed: no database; there.", "The backlog is not known: The database does not answer.", "To do:"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	for _, path := range []string{"dead", "events", "relays"} {
		if a := north.do(north.request(http.MethodGet, Path+"outbox/down/"+path, nil)); a.code != http.StatusServiceUnavailable || !strings.Contains(a.body, "The database does not answer.") || !strings.Contains(a.body, "<option selected>down</option>") {
			t.Errorf("%s: %d\n%s", path, a.code, a.body)
		}
	}
	north.get(north.outbox.base + "dead")
}

// TestOutboxesComeAndGo: a removed outbox has no pages, and its streams and replays end; others do not notice.
func TestOutboxesComeAndGo(t *testing.T) {
	t.Parallel()
	north, south := serveMany(t)
	north.dead("a", "mail-north", "550 no")
	north.dead("a", "mail-north", "550 no")
	begun, err := north.outbox.start(t.Context(), ops.DeadLetterFilter{All: true}, ops.BulkAction{Rate: 0.0001})
	if err != nil {
		t.Fatal(err)
	}
	response, err := north.client.Do(north.request(http.MethodGet, north.outbox.base+"live/overview", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	north.console.Remove("north")
	if _, err := io.ReadAll(response.Body); err != nil {
		t.Errorf("the stream ends with %v", err)
	}
	if !closed(begun.over) {
		t.Error("the replay is still under way")
	}
	if a := south.do(south.request(http.MethodGet, Path+"outbox/north/", nil)); a.code != http.StatusNotFound {
		t.Errorf("a page of the removed one: %d", a.code)
	}
	if page := south.get(south.outbox.base); strings.Contains(page, "north") {
		t.Errorf("the removed one can be switched to:\n%s", page)
	}
	if err := south.console.Use("north", Database{Pool: south.pool}); err == nil {
		t.Error("the removed one has another database")
	}
}

// TestUnusedOutbox: an outbox without viewers is not sampled, and is again for the next page.
func TestUnusedOutbox(t *testing.T) {
	t.Parallel()
	north, south := serveMany(t)
	sampled := func(o *outbox) bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.sampling
	}
	north.outbox.sampler.every = 10 * time.Millisecond
	north.get(north.outbox.base)
	if !sampled(north.outbox) || sampled(south.outbox) || south.relay.queryCount() > 0 {
		t.Error("the wrong outbox is sampled")
	}
	north.outbox.mu.Lock()
	north.outbox.used = time.Now().Add(-unusedAfter)
	north.outbox.mu.Unlock()
	north.outbox.work.Wait()
	if sampled(north.outbox) {
		t.Error("an unused outbox is sampled")
	}
	if page := north.get(north.outbox.base); !strings.Contains(page, "mail-north") || !sampled(north.outbox) {
		t.Errorf("it is not sampled for the next page:\n%s", page)
	}
}
