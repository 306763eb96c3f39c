// Package chaos proves the promises of docs/guarantees.md: relays in processes of
// their own deliver while a fault hits them, the database, or the destination.
// The tests count the events that are lost, that come twice, and in a stream that
// come out of order.
//
// The short form runs with all tests, and some of its faults with -short. NOTIFYD_CHAOS=long, as "make chaos" sets
// it, makes the faults last, and prints the measurements.
package chaos

import (
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// envForm names the environment variable with the form: "long", or "short",
	// the default.
	envForm = "NOTIFYD_CHAOS"
	// envTable names the environment variable with the file that the matrix is
	// written to as a Markdown table.
	envTable = "NOTIFYD_CHAOS_TABLE"

	// atOnce is the number of cells that run at the same time, and ownAtOnce the
	// number of those with a server of their own, in addition to the shared one.
	atOnce, ownAtOnce = 4, 1

	steadyLoad, backlogLoad = "steady", "backlog"
	// lastOnes is the number of events that are written when all is well again.
	lastOnes = 100
)

func mainTests(m *testing.M) {
	// The slots below bound the concurrent cells, not the number of processors: most
	// cells wait most of the time. The command line can override this.
	if err := flag.Set("test.parallel", "100"); err != nil {
		panic(err)
	}
	testenv.Main(m)
}

// slots bound the number of concurrent cells.
type slots chan struct{}

func (s slots) take() (give func()) {
	s <- struct{}{}
	return func() { <-s }
}

func TestChaos(t *testing.T) {
	t.Parallel()
	var s form
	switch text := os.Getenv(envForm); text {
	case "", "short":
		s = shortForm()
	case "long":
		s = longForm()
	default:
		t.Fatalf("%s=%s: want short or long", envForm, text)
	}
	m := &matrix{}
	t.Cleanup(func() { m.publish(t) })
	cells, own := make(slots, atOnce), make(slots, ownAtOnce)
	for i, f := range faults() {
		for _, k := range f.kinds(i, s) {
			t.Run(f.name+"/"+k.String(), func(t *testing.T) {
				t.Parallel()
				if !slices.Contains(shortFaults(), f.name) {
					testenv.Long(t)
				}
				if f.server != nil {
					t.Cleanup(own.take())
				}
				t.Cleanup(cells.take())
				r := newCell(t, &f, k.mode, s).run(&f, k)
				r.check(t)
				m.add(r)
			})
		}
	}
}

// run produces the fault under a load, and counts.
func (c *cell) run(f *fault, k kind) *result {
	c.t.Helper()
	if k.load == backlogLoad {
		c.load.insist("b", 20, c.form.backlog)
	}
	for range f.relays {
		c.startRelay()
	}
	if k.load == steadyLoad {
		c.load.steady()
	}
	c.await("deliveries before the fault", func() bool { return c.place.distinct() >= c.form.before })
	began := time.Now()
	f.inject(c)
	if f.heal != nil {
		c.pause(f.holds(c.form))
		f.heal(c)
	}
	healed := time.Now()
	c.load.insist("tail", 10, lastOnes)
	if k.load == steadyLoad {
		from := c.place.distinct()
		c.await("deliveries after the fault", func() bool { return c.place.distinct() >= from+lastOnes })
	}
	c.load.end()
	c.await("everything is done", func() bool { return c.done(math.MaxInt64) })
	return c.count(f.name, k, began, healed)
}

func (f *fault) holds(s form) time.Duration {
	if f.lasts != nil {
		return f.lasts(s)
	}
	return s.hold
}

// result is the result of a cell.
type result struct {
	fault                    string
	kind                     kind
	written, lost, dead      int
	twice, bound, disordered int
	resumed, silence         time.Duration
	examples                 []string
}

func (c *cell) count(name string, k kind, began, healed time.Time) *result {
	c.t.Helper()
	r := &result{fault: name, kind: k, bound: c.place.unsure() + c.inFlight(), resumed: -1}
	written := c.load.truth()
	r.written = c.settled + len(written)
	if err := c.pool.QueryRow(c.ctx, `SELECT count(*) FROM outbox_deliveries WHERE state = 'dead'`).Scan(&r.dead); err != nil {
		c.t.Fatal(err)
	}
	seen, highest := make(map[int64]bool), make(map[string]arrival)
	last := began
	for _, a := range c.place.all() {
		if a.At.After(began) {
			r.silence = max(r.silence, a.At.Sub(last))
			last = a.At
		}
		if seen[a.ID] {
			r.twice++
			continue
		}
		seen[a.ID] = true
		if r.resumed < 0 && a.At.After(healed) {
			r.resumed = a.At.Sub(healed)
		}
		if a.Key == "" || k.mode == outboxsql.ModeQueue { // a queue keeps no order
			continue
		}
		if first := highest[a.Key]; a.ID < first.ID {
			r.disordered++
			r.note("event %d of %s came after %d: from process %d at %s, and that from %d at %s",
				a.ID, a.Key, first.ID, a.By, clock(a.At), first.By, clock(first.At))
		} else {
			highest[a.Key] = a
		}
	}
	if c.tookOver > 0 {
		r.resumed = c.tookOver
	}
	for id := range written {
		if !seen[id] {
			r.lost++
			r.note("event %d never came", id)
		}
	}
	return r
}

// note keeps the first examples of violations.
func (r *result) note(format string, args ...any) {
	if len(r.examples) < 10 {
		r.examples = append(r.examples, fmt.Sprintf(format, args...))
	}
}

func (r *result) check(t *testing.T) {
	t.Helper()
	t.Log(r.row())
	if r.lost > 0 || r.disordered > 0 || r.dead > 0 {
		t.Errorf("%d lost, %d out of order, %d dead:\n%s", r.lost, r.disordered, r.dead, strings.Join(r.examples, "\n"))
	}
	if r.twice > r.bound {
		t.Errorf("%d came twice, and no more than %d were in flight", r.twice, r.bound)
	}
}

func (r *result) row() string {
	disordered := "-" // a queue keeps no order
	if r.kind.mode == outboxsql.ModeStream {
		disordered = strconv.Itoa(r.disordered)
	}
	return fmt.Sprintf("| %s | %s | %s | %d | %d | %s | %d | %d | %s | %s |", r.fault, r.kind.mode, r.kind.load, r.written, r.lost, disordered, r.twice, r.bound,
		seconds(r.silence), seconds(r.resumed))
}

// clock formats a time as the logs of the relays do.
func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// matrix collects the results in the order of the faults.
type matrix struct {
	mu   sync.Mutex
	rows map[string]*result
}

func (m *matrix) add(r *result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rows == nil {
		m.rows = make(map[string]*result)
	}
	m.rows[r.fault+"/"+r.kind.String()] = r
}

const tableHead = `| fault | mode | load | written | lost | out of order | twice | at most | longest silence | resumed after |
|---|---|---|--:|--:|--:|--:|--:|--:|--:|
`

// publish prints the table, also into a file if one is named.
func (m *matrix) publish(t *testing.T) {
	t.Helper()
	var b strings.Builder
	b.WriteString(tableHead)
	for _, f := range faults() {
		for _, k := range f.allKinds() {
			if r, ok := m.rows[f.name+"/"+k.String()]; ok {
				b.WriteString(r.row() + "\n")
			}
		}
	}
	if os.Getenv(envForm) == "long" {
		fmt.Print(b.String())
	}
	if path := os.Getenv(envTable); path != "" {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Error(err)
		}
	}
}
