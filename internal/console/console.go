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
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/textview"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
)

// Path is the console's path on the server that serves it, below [Config.Prefix].
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

// Outbox is what a console shows of one outbox.
type Outbox struct {
	// Relay and Pauser belong to the relay of this process, and are nil without one. The console then shows the states that relays of
	// other processes report in the tables, without rates and counters.
	Relay  Watched
	Pauser Pauser
	// Router shows the destinations of an event of a queue that was not tried yet; nil
	// where the routes are not known.
	Router Router
	// Trouble returns why the outbox is not relayed, nil if it is; a nil function means that it always is.
	Trouble func() error
	// Database is the first database; see [Console.Use].
	Database Database
}

// Config is the content and the rights of a console.
type Config struct {
	// Prefix is the path below which browsers see the server, such as "/ops"; "" for none. See admin.CheckPrefix.
	Prefix string
	// Many means that outboxes have names, and separate pages. Otherwise the only outbox has the name "".
	Many bool
	// Token verifies logins. Nil admits every request that uses a loopback name for
	// the server, and no other.
	Token Verifier
	// ReadOnlyToken verifies logins that may look and not act; nil for none. It needs a Token.
	ReadOnlyToken Verifier
	// Actor names the person behind a request.
	Actor ActorHeader
	// Person is the person behind all other requests, if only one person reaches the console; "" for no one.
	Person string
	// ReadOnly refuses every action.
	ReadOnly bool
	// HidePayloads hides the payloads of events.
	HidePayloads bool
	// Version is the program's version.
	Version string
	Log     *slog.Logger
}

// Console is an http.Handler for [Path] below the prefix, and all paths below. The pages of an outbox exist after Add, and have
// figures while Run runs. It is safe for concurrent use.
type Console struct {
	cfg     Config
	door    door
	origins http.CrossOriginProtection // refuses forms of other sites
	pages   map[string]*template.Template
	mux     *http.ServeMux
	path    string // with the prefix; all pages are below it
	base    string // pattern of the paths of an outbox
	streams streams

	mu       sync.Mutex // guards the fields below
	outboxes map[string]*outbox
	running  context.Context //nolint:containedctx // of Run; nil before
}

//go:embed templates static
var files embed.FS

// New returns a console without an outbox.
func New(cfg Config) (*Console, error) {
	pages, err := parsePages()
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}

	c := &Console{
		cfg:      cfg,
		pages:    pages,
		mux:      http.NewServeMux(),
		path:     cfg.Prefix + Path,
		outboxes: make(map[string]*outbox),
	}
	c.base = c.path
	if cfg.Many {
		c.base += "outbox/{outbox}/"
	}

	c.door.console = c
	c.routes()
	return c, nil
}

// LogOut ends all logins, and the streams of their pages with the next figures.
func (c *Console) LogOut() { c.door.sessions.closeAll() }

// Add begins to show an outbox, whose name must be new. It queries nothing yet.
func (c *Console) Add(name string, from Outbox) error {
	o := newOutbox(c, name, from)
	if err := o.use(from.Database); err != nil {
		return err
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	c.outboxes[name] = o
	if c.running != nil {
		o.begin(c.running)
	}
	return nil
}

// Use switches all later requests for an outbox to another database. Requests that have begun
// still use the previous one: pgxpool.Pool.Close waits for them.
func (c *Console) Use(name string, db Database) error {
	o := c.outbox(name)
	if o == nil {
		return fmt.Errorf("console: no outbox %q", name)
	}
	return o.use(db)
}

// Remove ends the pages of an outbox, the streams of its viewers and its replays that are under way.
func (c *Console) Remove(name string) {
	c.mu.Lock()
	o := c.outboxes[name]
	delete(c.outboxes, name)
	c.mu.Unlock()

	if o != nil {
		o.end()
	}
}

// outbox returns the named outbox; nil for an unknown name.
func (c *Console) outbox(name string) *outbox {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outboxes[name]
}

// all returns the outboxes, in the order of their names.
func (c *Console) all() (all []*outbox) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, name := range slices.Sorted(maps.Keys(c.outboxes)) {
		all = append(all, c.outboxes[name])
	}
	return all
}

// Run samples the relays until ctx ends, and then ends the streams of all viewers,
// and replays that are under way. It is called once.
func (c *Console) Run(ctx context.Context) {
	c.mu.Lock()
	c.running = ctx
	for _, o := range c.outboxes {
		o.begin(ctx)
	}
	c.mu.Unlock()

	<-ctx.Done()

	var ending sync.WaitGroup
	for _, o := range c.all() {
		ending.Go(o.end)
	}
	ending.Wait()
}

// outboxPage serves a page of an outbox, or an action on it, to an authorized viewer. Its error is shown.
type outboxPage func(o *outbox, w http.ResponseWriter, r *http.Request, v viewer) error

// views are the pages of an outbox that change nothing, by path.
func views() map[string]outboxPage {
	return map[string]outboxPage{
		"{$}":                (*outbox).overview,
		"destinations":       (*outbox).destinations,
		"destination":        (*outbox).destination,
		"destinations/pause": (*outbox).askPause,
		"position":           (*outbox).position,
		"position/plan":      (*outbox).plan,
		"events":             (*outbox).events,
		"events/{id}":        (*outbox).event,
		"dead":               (*outbox).dead,
		"dead/replays":       (*outbox).showReplay,
		"relays":             (*outbox).relays,
		"live/{page}":        (*outbox).live,
	}
}

// actions are the forms of an outbox that change something, by path. A viewer who may only look can use none of them.
func actions() map[string]outboxPage {
	return map[string]outboxPage{
		"destinations/pause":  (*outbox).pause,
		"destinations/resume": (*outbox).resume,
		"position/seek":       (*outbox).seek,
		"position/replay":     (*outbox).replayRange,
		"position/stop":       (*outbox).stopRange,
		"events/edit":         (*outbox).edit,
		"events/retry":        (*outbox).retry,
		"events/bury":         (*outbox).bury,
		"dead/confirm":        (*outbox).confirm, // changes nothing by itself
		"dead/replay":         (*outbox).replay,
		"dead/replays/stop":   (*outbox).stopReplay,
		"dead/discard":        (*outbox).discard,
	}
}

// routes maps paths to pages.
func (c *Console) routes() {
	inside := c.door.inside
	static, err := fs.Sub(files, "static")
	if err != nil {
		panic(fmt.Errorf("console: bug: %w", err)) // the directory is embedded
	}

	c.mux.Handle("GET "+c.path+"static/", http.StripPrefix(c.path+"static/", http.FileServerFS(static)))
	c.mux.HandleFunc("GET "+c.path+"login", c.door.showLogin)
	c.mux.HandleFunc("POST "+c.path+"login", c.door.login)
	c.mux.Handle("POST "+c.path+"logout", inside(c.door.logout))

	if c.cfg.Many {
		c.mux.Handle("GET "+c.path+"{$}", inside(c.list))
		c.mux.Handle("GET "+c.path+"switch", inside(c.change))
	}

	for path, page := range views() {
		c.mux.Handle("GET "+c.base+path, inside(c.of(page)))
	}
	for path, page := range actions() {
		c.mux.Handle("POST "+c.base+path, inside(c.act(c.of(page))))
	}

	c.mux.Handle(c.path, inside(func(http.ResponseWriter, *http.Request, viewer) error {
		return notFound("There is no such page.")
	}))
}

// of serves a page of the outbox that the path names.
func (c *Console) of(page outboxPage) handler {
	return func(w http.ResponseWriter, r *http.Request, v viewer) error {
		o := c.outbox(r.PathValue("outbox"))
		if o == nil {
			return notFound("There is no such outbox.")
		}

		o.touch()

		if isStream := r.PathValue("page") != ""; v.readOnly && !isStream {
			done, err := o.takeTurn(r.Context())
			if err != nil {
				return err
			}
			defer done()
		}

		return page(o, w, r, v)
	}
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
		c.fail(w, r, viewer{}, forbidden("The request comes from a page of another site: "+err.Error()+"."))
		return
	}

	limit := int64(maxForm)
	if strings.HasSuffix(r.URL.Path, "/events/edit") {
		limit = maxEditForm
	}

	r.Body = http.MaxBytesReader(w, r.Body, limit)
	c.mux.ServeHTTP(w, r)
}

// page is the data of every template.
type page struct {
	Title    string
	Root     string   // the path of the console
	Base     string   // the path of the outbox; "" for a page of none
	Outbox   string   // its name, "" for the only one
	Outboxes []string // all names, for the switcher; nil for none
	Nav      string   // the entry of the menu
	Live     string   // the stream of updates, "" for none
	Version  string
	LoggedIn bool // there is a session to log out of
	ReadOnly bool
	Actor    string // the name under which actions are recorded; "" if a proxy has named none
	// Unrelayed reports that no relay runs in this process: some figures are unknown.
	Unrelayed bool
	Done      string // the last action, in a sentence
	At        time.Time
	Body      any
}

// newPage fills in the fields of all pages. The outbox is nil for a page of none.
func (c *Console) newPage(o *outbox, title, nav string, v viewer, body any) page {
	p := page{
		Title:    title,
		Root:     c.path,
		Nav:      nav,
		Version:  c.cfg.Version,
		LoggedIn: v.session != "",
		ReadOnly: c.readOnly(v),
		Actor:    v.actor,
		At:       time.Now(),
		Body:     body,
	}

	if o != nil {
		p.Base = o.base
		p.Outbox = o.name
		p.Unrelayed = o.unrelayed
		if c.cfg.Many {
			p.Outboxes = c.names()
		}
	}

	return p
}

// readOnly reports whether the viewer may only look.
func (c *Console) readOnly(v viewer) bool { return c.cfg.ReadOnly || v.readOnly }

// draw returns a page, or a part of one. No text of it changes the order in which other text is shown.
func (c *Console) draw(name, part string, data any) ([]byte, error) {
	var text bytes.Buffer
	if err := c.pages[name].ExecuteTemplate(&text, part, data); err != nil {
		return nil, fmt.Errorf("page %s: %w", name, err)
	}
	return textview.HTML(text.Bytes()), nil
}

// render writes a page, whole or not at all.
func (c *Console) render(w http.ResponseWriter, code int, name string, p page) error {
	text, err := c.draw(name, "layout", p)
	if err != nil {
		return err
	}

	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(text) // the client is gone
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

// errorBody is an error, with what a person has typed into the form that led to it.
type errorBody struct {
	Text  string
	Typed []typedField
	// Back is the page of the console that led here, with its filter; empty if that is unknown, or the login.
	Back string
}

// backOf returns the page of the console that led to a request. A page that answers a form names the list before it.
func (c *Console) backOf(r *http.Request) string {
	if list := r.PostForm.Get("list"); list != "" {
		return c.localPath(list)
	}

	from, err := url.Parse(r.Referer())
	if err != nil || from.Path == "" || from.Path == c.path+"login" {
		return ""
	}

	back := c.localPath((&url.URL{Path: from.Path, RawQuery: from.RawQuery}).String())
	if back == c.path && from.Path != c.path {
		return "" // a page of somebody else
	}

	return back
}

type typedField struct {
	Name, Value string
	Rows        int
}

// typed returns the fields of a form that a person fills in.
func typed(r *http.Request) (all []typedField) {
	if r.Method != http.MethodPost {
		return nil
	}

	for _, name := range []string{"payload", "reason", "from", "to", "rate", "type"} {
		if value := r.PostForm.Get(name); value != "" {
			all = append(all, typedField{name, value, min(12, 1+strings.Count(value, "\n"))})
		}
	}
	return all
}

// fail shows an error. Details for the operator only are logged, unless the request is at fault: else a viewer could fill the log.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, v viewer, err error) {
	f, known := errors.AsType[failure](err)
	if !known {
		f = explain(err)
		if f.code >= http.StatusInternalServerError {
			c.cfg.Log.WarnContext(r.Context(), "console request failed", "path", r.URL.Path, "err", err)
		}
	}

	body := errorBody{f.text, typed(r), c.backOf(r)}
	p := c.newPage(c.outbox(r.PathValue("outbox")), http.StatusText(f.code), "", v, body)
	if err := c.render(w, f.code, "error", p); err != nil {
		http.Error(w, f.text, f.code)
	}
}
