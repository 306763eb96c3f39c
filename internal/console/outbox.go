package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/internal/status"
	"github.com/notifyd/notifyd/ops"
)

const (
	// unusedAfter is how long after its last page one of many outboxes is sampled.
	unusedAfter = 10 * time.Minute
	// maxSwitch bounds the names that a page offers to switch to.
	maxSwitch = 500
	// turnTimeout bounds how long a page waits for its turn.
	turnTimeout = 5 * time.Second
)

// outbox has the pages of one outbox.
type outbox struct {
	*Console

	name, base string
	relay      Watched
	pauser     Pauser
	router     Router
	trouble    func() error
	unrelayed  bool // no relay runs in this process

	tables  atomic.Pointer[tables] // a request loads it once, and keeps the loaded value
	sampler *sampler
	drawn   drawings
	turns   chan struct{} // has a value for each page that is being made for a viewer with the read-only token
	replays replays
	ending  sync.Once
	ended   chan struct{}  // closed when the outbox ends: streams end then
	work    sync.WaitGroup // the sampler

	mu       sync.Mutex // guards the fields below
	launch   func()     // starts the sampler; nil before begin, and after the end
	stop     context.CancelFunc
	used     time.Time
	sampling bool
}

func newOutbox(c *Console, name string, from Outbox) *outbox {
	o := &outbox{
		Console: c,
		name:    name,
		base:    c.path,
		relay:   from.Relay,
		pauser:  from.Pauser,
		router:  from.Router,
		trouble: from.Trouble,
		ended:   make(chan struct{}),
		stop:    func() {},
		turns:   make(chan struct{}, max(1, from.Database.Pool.Config().MaxConns/2)),
	}
	if c.cfg.Many {
		o.base = c.path + "outbox/" + url.PathEscape(name) + "/"
	}
	if from.Relay == nil {
		tables := &unrelayed{tables: o.tables.Load}
		o.relay = tables
		o.pauser = tables
		o.unrelayed = true
	}

	o.sampler = newSampler(o.relay, o.tables.Load)
	o.sampler.unrelayed = o.unrelayed
	return o
}

// takeTurn waits until fewer pages are being made for viewers with the read-only token than the console has connections for: half of
// them stay for operators. done ends the turn.
func (o *outbox) takeTurn(ctx context.Context) (done func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()

	select {
	case o.turns <- struct{}{}:
		return func() { <-o.turns }, nil
	case <-ctx.Done():
		return nil, failure{http.StatusServiceUnavailable, "Too many pages are asked for with the read-only token. Try again."}
	}
}

func (o *outbox) use(db Database) error {
	client, err := ops.New(bounded{db.Pool}, ops.Config{Schema: db.Schema, DeleteEvents: db.DeleteEvents, ReportTo: o.reportTo})
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}

	o.tables.Store(&tables{Database: db, client: client})
	return nil
}

// reportTo returns the destination that receives a report of each dead letter of a destination, empty for none.
func (o *outbox) reportTo(destination string) string {
	for _, d := range o.relay.Stats().Destinations {
		if d.Name == destination {
			return d.DeadLettersTo
		}
	}
	return ""
}

// begin samples the only outbox until ctx ends. One of many is sampled while it has viewers: each query needs a connection.
func (o *outbox) begin(ctx context.Context) {
	o.mu.Lock()
	ctx, o.stop = context.WithCancel(ctx)
	o.launch = func() { o.work.Go(func() { o.sampler.run(ctx, o.unused) }) }
	o.mu.Unlock()

	if !o.cfg.Many {
		o.touch()
	}
}

// touch notes that a page is looked at, and starts the sampler if it does not run.
func (o *outbox) touch() {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.used = time.Now()
	if o.sampling || o.launch == nil {
		return
	}

	o.sampling = true
	o.sampler.sample(o.used) // a page has no destinations before
	o.launch()
}

// unused reports whether the sampler must end, because no page has been looked at for a while.
func (o *outbox) unused() bool {
	viewed := o.sampler.viewed()

	o.mu.Lock()
	defer o.mu.Unlock()
	if viewed {
		o.used = time.Now()
	}

	o.sampling = !o.cfg.Many || time.Since(o.used) < unusedAfter
	return !o.sampling
}

// end ends the streams of all viewers, and replays that are under way.
func (o *outbox) end() {
	o.ending.Do(func() {
		o.mu.Lock()
		o.stop()
		o.launch = nil
		o.mu.Unlock()

		close(o.ended)
		o.replays.end()
		o.work.Wait()
	})
}

// newPage fills in the fields of all pages.
func (o *outbox) newPage(title, nav string, v viewer, body any) page {
	return o.Console.newPage(o, title, nav, v, body)
}

// down returns why the outbox is not relayed; nil if it is.
func (o *outbox) down() error {
	if o.trouble == nil {
		return nil
	}
	return o.trouble()
}

// names returns the names of the outboxes to switch to; nil if there are too many for a page.
func (c *Console) names() (names []string) {
	all := c.all()
	if len(all) > maxSwitch {
		return nil
	}

	for _, o := range all {
		names = append(names, o.name)
	}
	return names
}

// outboxRow is the row of an outbox in the list of all.
type outboxRow struct {
	Name, Link   string
	Trouble      string
	Destinations []laneRow // those that are not up
	Count        int       // of all destinations
}

// list shows all outboxes. It queries no database.
func (c *Console) list(w http.ResponseWriter, _ *http.Request, v viewer) error {
	var rows []outboxRow
	for _, o := range c.all() {
		row := outboxRow{Name: o.name, Link: o.base}
		if err := o.down(); err != nil {
			row.Trouble = oneLine(err)
		}

		stats := o.relay.Stats()
		row.Count = len(stats.Destinations)
		for _, d := range stats.Destinations {
			lane := laneRow{Name: d.Name, Link: o.destinationPath(d.Name)}
			lane.State, lane.Class = stateOf(d, true)
			if lane.State != status.StateUp {
				row.Destinations = append(row.Destinations, lane)
			}
		}

		rows = append(rows, row)
	}

	return c.render(w, http.StatusOK, "outboxes", c.newPage(nil, "Outboxes", "outboxes", v, rows))
}

// change leads to the same page of another outbox.
func (c *Console) change(w http.ResponseWriter, r *http.Request, _ viewer) error {
	o := c.outbox(r.URL.Query().Get("outbox"))
	if o == nil {
		return notFound("There is no such outbox.")
	}

	target := o.base
	switch page := r.URL.Query().Get("page"); page {
	case "destinations", "events", "dead", "relays":
		target += page
	}

	http.Redirect(w, r, target, http.StatusSeeOther) //nolint:gosec // below Path, with an escaped name
	return nil
}
