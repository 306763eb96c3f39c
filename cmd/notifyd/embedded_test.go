//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/observe/admin"
)

// embed runs a relay of this process, as a program with the library does, until the test ends.
func embed(t *testing.T, at string, all ...notifyd.Destination) *notifyd.Relay {
	t.Helper()
	return embedAs(t, at, "", all...)
}

// embedAs is embed for one of several outboxes.
func embedAs(t *testing.T, at, outbox string, all ...notifyd.Destination) *notifyd.Relay {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	relay, err := notifyd.New(pool, notifyd.Config{Outbox: outbox})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if err := relay.Handle(d.Name+".*", d); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	testenv.Receive(t, patience, "the relay is not ready", relay.Ready())
	return relay
}

// TestStatusOfEmbeddedRelay: a relay without a file and without an admin server is described by its row.
func TestStatusOfEmbeddedRelay(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			at := databaseOf(t, mode)
			hook, err := webhook.New(webhook.Config{URL: "http://127.0.0.1:1/"})
			if err != nil {
				t.Fatal(err)
			}
			var up atomic.Bool
			stock := delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
				if !up.Load() {
					return delivery.Unavailable(errors.New("no route to the warehouse"))
				}
				return nil
			})
			embed(t, at, notifyd.Destination{Name: "shop", Handler: hook}, notifyd.Destination{Name: "stock", Handler: stock})
			shows := func(patterns ...string) {
				t.Helper()
				r := invoke(t, "status", "--database-url", at)
				for _, p := range patterns {
					if !regexp.MustCompile(p).MatchString(r.stdout) {
						t.Errorf("no %s in\n%s%s", p, r.stdout, r.stderr)
					}
				}
				if regexp.MustCompile(`(?m)^(shop|stock) .*\?`).MatchString(r.stdout) {
					t.Errorf("something is unknown in\n%s", r.stdout)
				}
			}
			until(t, at, `SELECT EXISTS (SELECT FROM outbox_relays WHERE jsonb_array_length(destinations) = 2)`)
			shows(`(?m)^shop +up +webhook +0`, `(?m)^stock +up +delivery\.HandlerFunc +0`)

			publishTo(t, at, "stock.low", "{}")
			until(t, at, `SELECT destinations @> '[{"name": "stock", "down": true}]' FROM outbox_relays`)
			shows(`(?m)^shop +up `, `(?m)^stock +down `, `The destination stock has been down for .*: no route to the warehouse`)

			up.Store(true)
			until(t, at, `SELECT destinations @> '[{"name": "stock", "breaker": "closed"}]' FROM outbox_relays`)
			shows(`(?m)^stock +up `)
		})
	}
}

// TestStatusNamesWhatNoRelayHas: events that wait for a destination that no live relay has are not just in an unknown state.
func TestStatusNamesWhatNoRelayHas(t *testing.T) {
	t.Parallel()
	at := database(t)
	embed(t, at, notifyd.Destination{Name: "stock", Handler: delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })})
	until(t, at, `SELECT EXISTS (SELECT FROM outbox_relays WHERE destinations IS NOT NULL)`)
	id := publishTo(t, at, "fax.sent", "{}")
	until(t, at, `SELECT count(*) = 1 FROM outbox_deliveries WHERE state = 'unrouted'`)
	execute(t, at, `UPDATE outbox_deliveries SET destination = 'fax', state = 'retry', attempts = 1, last_error = 'gone' WHERE event_id = `+id)

	r := invoke(t, "status", "--database-url", at)
	for _, p := range []string{`(?m)^fax +not configured +-`, `No relay has a destination fax, and 1 delivery waits for it\.`} {
		if !regexp.MustCompile(p).MatchString(r.stdout) {
			t.Errorf("no %s in\n%s%s", p, r.stdout, r.stderr)
		}
	}
}

// TestEmbeddedConsole: the console of a relay of a Go program works below a prefix, whether its router cuts that off or not, also
// behind middleware that hides what the server can do but for flushing.
func TestEmbeddedConsole(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const token = "5c1f0e2b-not-to-be-seen-77aa"
	at := buried(t, 1)
	execute(t, at, `UPDATE outbox_deliveries SET destination = 'audit'`)
	relay := embed(t, at, notifyd.Destination{Name: "audit", Handler: delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })})
	h, err := admin.New(admin.Config{Prefix: "/ops", Token: handlers.NewSecret(token), Console: &admin.Console{}}, relay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)

	for _, mounted := range []http.Handler{
		h,
		http.StripPrefix("/ops", h),
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(narrow{w}, r) }),
	} {
		mux := http.NewServeMux()
		mux.Handle("/ops/", mounted)
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		v := visitor{T: t, base: server.URL}
		v.client = v.newClient(server.Client().Transport)
		v.walk("/ops", token)
	}
	if n := query[int](t, at, `SELECT count(*)::int FROM outbox_pauses`); n != 0 {
		t.Errorf("%d pauses are left", n)
	}
}

// narrow is the writer of a middleware that counts answers, for example: it can write and flush.
type narrow struct{ w http.ResponseWriter }

func (n narrow) Header() http.Header            { return n.w.Header() }
func (n narrow) Write(text []byte) (int, error) { return n.w.Write(text) }
func (n narrow) WriteHeader(code int)           { n.w.WriteHeader(code) }
func (n narrow) Flush()                         { _ = http.NewResponseController(n.w).Flush() }

// TestEmbeddedConsoleOfSeveral: the console of several relays begins with a list of them.
func TestEmbeddedConsoleOfSeveral(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const token = "5c1f0e2b-not-to-be-seen-77aa"
	var relays []*notifyd.Relay
	for _, name := range []string{"north", "south"} {
		relay := embedAs(t, database(t), name, notifyd.Destination{Name: "of-" + name, Handler: delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })})
		relays = append(relays, relay)
	}
	h, err := admin.New(admin.Config{Prefix: "/ops", Token: handlers.NewSecret(token), Console: &admin.Console{ReadOnly: true}}, relays...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	v := visitor{T: t, base: server.URL}
	v.client = v.newClient(server.Client().Transport)

	if code, page := v.post("/ops/console/login", url.Values{"token": {token}}); code != http.StatusOK || !strings.Contains(page, `<span class="badge">read-only</span>`) {
		t.Fatalf("%d\n%s", code, page)
	}
	seen := v.follow("/ops", "/ops/console/")
	for _, want := range []string{"/ops/console/outbox/north/destination?name=of-north", "/ops/console/outbox/south/destination?name=of-south"} {
		if !seen[want] {
			t.Errorf("%s is linked nowhere", want)
		}
	}
	if code, _ := v.post("/ops/console/outbox/north/destinations/pause", url.Values{"destination": {"of-north"}}); code != http.StatusForbidden {
		t.Errorf("a pause at a console that is read-only: %d", code)
	}
}

// TestSetUpModule runs the commands of docs/library.md, which make a module of the program of examples/embedded. The program
// creates the tables, handles an event, serves its endpoints, and ends with 0 when it is told to stop.
func TestSetUpModule(t *testing.T) {
	t.Parallel()
	at, dir := testenv.Database(t), t.TempDir()
	address := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	repository, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	program := testenv.ReadFile(t, root+"examples/embedded/main.go")
	testenv.WriteFile(t, filepath.Join(dir, "main.go"), strings.ReplaceAll(program, "127.0.0.1:9470", address))

	// The shell becomes the program, so that the signal reaches it.
	typed := strings.NewReplacer("=../notifyd", "="+repository, "postgres://app@localhost:5432/app", "'"+at+"'", "go run .", "exec ./shop")
	script := "set -e\ncd '" + dir + "'\n"
	for _, st := range steps(testenv.ReadFile(t, root+"docs/library.md")) {
		if st.language == "sh" {
			script += strings.ReplaceAll(typed.Replace(st.text), "DATABASE_URL=", "go build -o shop .\nDATABASE_URL=") + "\n"
		}
	}
	p := startProgram(t, strings.NewReader(script), "bash")

	until(t, at, `SELECT to_regclass('outbox_relays') IS NOT NULL`)
	until(t, at, `SELECT EXISTS (SELECT FROM outbox_relays)`)
	until(t, at, `SELECT state = 'done' FROM outbox_events WHERE id = `+publishTo(t, at, "order.placed", "{}"))
	untilReady(t, "http://"+address+"/readyz")

	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("ended with %d:\n%s", code, p.stderr.text())
	}
}
