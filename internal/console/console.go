// Package console is the web console of a relay: its activity, the backlog, the
// failures, and the few actions that a person takes on them.
//
// Pages are HTML that the server renders and that works without JavaScript; a
// small script updates a page's figures while it is visible. Everything is below
// [Path] of the admin server, and no resource comes from elsewhere.
package console

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

// Path is the console's path on the server that serves it.
const Path = "/console/"

// maxForm bounds the body of a request, in bytes.
const maxForm = 64 << 10

// Watched supplies the figures of a relay.
type Watched interface {
	// Stats returns the current figures; see notifyd.Relay.
	Stats() observe.Stats
	// Backlog reads the backlog from the database; see notifyd.Relay.
	Backlog(ctx context.Context) (observe.Backlog, error)
}

// Pauser pauses and resumes destinations; see [ops.Client].
type Pauser interface {
	Pause(ctx context.Context, destination string, a ops.Action) error
	Resume(ctx context.Context, destination string, a ops.Action) (was bool, err error)
}

// Router knows the routes of the relay; see notifyd.Relay.
type Router interface {
	// DestinationsOf returns the destinations of an event type, none for a type
	// without a route.
	DestinationsOf(eventType string) []string
}

// Verifier checks the secret that a person logs in with.
type Verifier interface {
	// Verify reports whether this is the token. It compares in constant time.
	Verify(token string) bool
}

// Database gives access to the tables.
type Database struct {
	// Pool reads events, dead letters and relays, and writes actions. The caller closes it.
	Pool *pgxpool.Pool
	// Schema holds the tables.
	Schema string
	// DeleteEvents is ops.Config.DeleteEvents.
	DeleteEvents bool
}

// Config is the content and the rights of a console.
type Config struct {
	Relay  Watched
	Pauser Pauser
	// Router shows the destinations of an event of a queue that was not tried yet; nil
	// where the routes are not known.
	Router Router
	// Database is the first database; see [Console.Use].
	Database Database
	// Token verifies logins. Nil admits every request that uses a loopback name for
	// the server, and no other.
	Token Verifier
	// ReadOnly refuses every action.
	ReadOnly bool
	// HidePayloads hides the payloads of events.
	HidePayloads bool
	// Version is the program's version.
	Version string
	Log     *slog.Logger
}

// Console is an http.Handler for [Path] and all paths below. The pages have
// figures while Run runs. It is safe for concurrent use.
type Console struct {
	cfg     Config
	tables  atomic.Pointer[tables] // a request loads it once, and keeps the loaded value
	sampler *sampler
	door    door
	origins http.CrossOriginProtection // refuses forms of other sites
	pages   map[string]*template.Template
	mux     *http.ServeMux
	ended   chan struct{} // closed when Run ends: streams end then
	replays replays
}

//go:embed templates static
var files embed.FS

// New returns a console. It queries nothing yet.
func New(cfg Config) (*Console, error) {
	pages, err := parsePages()
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	c := &Console{cfg: cfg, pages: pages, mux: http.NewServeMux(), ended: make(chan struct{})}
	c.door.console = c
	if err := c.Use(cfg.Database); err != nil {
		return nil, err
	}
	c.sampler = newSampler(cfg.Relay, func(ctx context.Context) (latency, error) { return c.tables.Load().latency(ctx) })
	c.routes()
	return c, nil
}

// Use switches all later requests to another database. Requests that have begun
// still use the previous one: pgxpool.Pool.Close waits for them.
func (c *Console) Use(db Database) error {
	client, err := ops.New(bounded{db.Pool}, ops.Config{Schema: db.Schema, DeleteEvents: db.DeleteEvents})
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}
	c.tables.Store(&tables{Database: db, client: client})
	return nil
}

// Run samples the relay until ctx ends, and then ends the streams of all viewers,
// and replays that are under way. It is called once.
func (c *Console) Run(ctx context.Context) {
	defer c.replays.end()
	defer close(c.ended)
	c.sampler.run(ctx)
}

// routes maps paths to pages. Those of act change state.
func (c *Console) routes() {
	inside := c.door.inside
	static, err := fs.Sub(files, "static")
	if err != nil {
		panic(fmt.Errorf("console: bug: %w", err)) // the directory is embedded
	}
	c.mux.Handle("GET "+Path+"static/", http.StripPrefix(Path+"static/", http.FileServerFS(static)))
	c.mux.HandleFunc("GET "+Path+"login", c.door.showLogin)
	c.mux.HandleFunc("POST "+Path+"login", c.door.login)
	c.mux.Handle("POST "+Path+"logout", inside(c.door.logout))

	c.mux.Handle("GET "+Path+"{$}", inside(c.overview))
	c.mux.Handle("GET "+Path+"destinations", inside(c.destinations))
	c.mux.Handle("GET "+Path+"destination", inside(c.destination))
	c.mux.Handle("GET "+Path+"position", inside(c.position))
	c.mux.Handle("GET "+Path+"position/plan", inside(c.plan))
	c.mux.Handle("GET "+Path+"events", inside(c.events))
	c.mux.Handle("GET "+Path+"events/{id}", inside(c.event))
	c.mux.Handle("GET "+Path+"dead", inside(c.dead))
	c.mux.Handle("GET "+Path+"dead/group", inside(c.group))
	c.mux.Handle("GET "+Path+"dead/replays", inside(c.showReplay))
	c.mux.Handle("GET "+Path+"relays", inside(c.relays))
	c.mux.Handle("GET "+Path+"live/{page}", inside(c.live))

	c.mux.Handle("POST "+Path+"destinations/pause", inside(c.act(c.pause)))
	c.mux.Handle("POST "+Path+"destinations/resume", inside(c.act(c.resume)))
	c.mux.Handle("POST "+Path+"position/seek", inside(c.act(c.seek)))
	c.mux.Handle("POST "+Path+"position/replay", inside(c.act(c.replayRange)))
	c.mux.Handle("POST "+Path+"position/stop", inside(c.act(c.stopRange)))
	c.mux.Handle("POST "+Path+"events/edit", inside(c.act(c.edit)))
	c.mux.Handle("POST "+Path+"events/retry", inside(c.act(c.retry)))
	c.mux.Handle("POST "+Path+"dead/replay", inside(c.act(c.replay)))
	c.mux.Handle("POST "+Path+"dead/replays/stop", inside(c.act(c.stopReplay)))
	c.mux.Handle("POST "+Path+"dead/discard", inside(c.act(c.discard)))
	c.mux.Handle(Path, inside(func(http.ResponseWriter, *http.Request, session) error {
		return notFound("There is no such page.")
	}))
}

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	// Scripts and styles from this server only, and none inline. The referrer policy
	// is not no-referrer: a form's Origin would be null.
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if c.cfg.Token == nil && !isLoopbackHost(r.Host) {
		// A foreign name that resolves to this machine (DNS rebinding) would make a
		// foreign page one of the console's.
		http.Error(w, "The console has no token, so it answers to a loopback name only, such as 127.0.0.1 or localhost. "+
			"Forward a port to it, or set admin.token and log in.", http.StatusForbidden)
		return
	}
	if err := c.origins.Check(r); err != nil {
		c.fail(w, r, "", forbidden("The request comes from a page of another site: "+err.Error()+"."))
		return
	}
	limit := int64(maxForm)
	if r.URL.Path == Path+"events/edit" {
		limit = maxEditForm
	}
	r.Body = http.MaxBytesReader(w, r.Body, limit)
	c.mux.ServeHTTP(w, r)
}

// page is the data of every template.
type page struct {
	Title    string
	Nav      string // the entry of the menu
	Live     string // the stream of updates, "" for none
	Version  string
	LoggedIn bool // there is a session to log out of
	ReadOnly bool
	Done     string // the last action, in a sentence
	At       time.Time
	Body     any
}

// newPage fills in the fields of all pages.
func (c *Console) newPage(title, nav string, s session, body any) page {
	return page{
		Title: title, Nav: nav, Version: c.cfg.Version, LoggedIn: s != "",
		ReadOnly: c.cfg.ReadOnly, At: time.Now(), Body: body,
	}
}

// render writes a page, whole or not at all.
func (c *Console) render(w http.ResponseWriter, code int, name string, p page) error {
	var text bytes.Buffer
	if err := c.pages[name].ExecuteTemplate(&text, "layout", p); err != nil {
		return fmt.Errorf("page %s: %w", name, err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(text.Bytes()) // the client is gone
	return nil
}

// failure is an error with a text for the viewer.
type failure struct {
	code int
	text string
}

func (f failure) Error() string { return f.text }

func notFound(text string) error   { return failure{http.StatusNotFound, text} }
func badRequest(text string) error { return failure{http.StatusBadRequest, text} }
func forbidden(text string) error  { return failure{http.StatusForbidden, text} }

// fail shows an error. Details for the operator only are logged.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, s session, err error) {
	f, known := errors.AsType[failure](err)
	if !known {
		f = explain(err)
		c.cfg.Log.WarnContext(r.Context(), "the console cannot answer", "path", r.URL.Path, "err", err)
	}
	if err := c.render(w, f.code, "error", c.newPage(http.StatusText(f.code), "", s, f.text)); err != nil {
		http.Error(w, f.text, f.code)
	}
}
