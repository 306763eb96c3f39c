package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"
)

// These tests show that order, on_dead and what they promise reach the lanes
// through the file of a daemon, and hold in a stream when relays are restarted, killed
// and joined by others. Relays are processes of their own.

// item is the payload of an event: the nth of an aggregate.
type item struct {
	Of string `json:"of"`
	N  int    `json:"n"`
}

func (i item) String() string { return fmt.Sprintf("%s %d", i.Of, i.N) }

// desk takes what destinations send. What is broken is refused, with the status
// code that the destination's path names.
type desk struct {
	*httptest.Server

	mu     sync.Mutex // guards the fields below
	broken func(item) bool
	taken  map[string][]item // by destination
	last   map[string]item   // by destination and aggregate
	more   chan struct{}     // closed by the next one
}

func startDesk(t *testing.T, broken func(item) bool) *desk {
	t.Helper()
	d := &desk{broken: broken, taken: make(map[string][]item), last: make(map[string]item), more: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{destination}/{code}", d.take)
	d.Server = httptest.NewServer(mux)
	t.Cleanup(d.Close)
	return d
}

func (d *desk) take(w http.ResponseWriter, r *http.Request) {
	var i item
	if err := json.NewDecoder(r.Body).Decode(&i); err != nil {
		http.Error(w, err.Error(), http.StatusNotFound) // an outage: the test does not get on
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.broken(i) {
		code := map[string]int{"dead": http.StatusUnprocessableEntity, "again": http.StatusConflict}[r.PathValue("code")]
		http.Error(w, "not this one", code)
		return
	}
	name := r.PathValue("destination")
	// A copy of the last one of its aggregate is a redelivery, which is allowed where relays are killed.
	if d.last[name+" "+i.Of] != i {
		d.last[name+" "+i.Of] = i
		d.taken[name] = append(d.taken[name], i)
	}
	close(d.more)
	d.more = make(chan struct{})
}

// heal makes the desk take everything from now on.
func (d *desk) heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = func(item) bool { return false }
}

// got returns the events of an aggregate that a destination has sent.
func (d *desk) got(destination, of string) (ns []int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, i := range d.taken[destination] {
		if i.Of == of {
			ns = append(ns, i.N)
		}
	}
	return ns
}

// awaits waits until a destination has sent an item.
func (d *desk) awaits(t *testing.T, destination string, want item) {
	t.Helper()
	for deadline := time.After(patience); ; {
		d.mu.Lock()
		all, more := slices.Clone(d.taken[destination]), d.more
		d.mu.Unlock()
		if slices.Contains(all, want) {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("%s never sends %v; it has sent %v", destination, want, all)
		}
	}
}

// office is relays of one configuration.
type office struct {
	*testing.T

	url, path string
	relays    []*process
}

func newOffice(t *testing.T, destinations string) *office {
	t.Helper()
	o := &office{T: t, url: databaseOf(t, "stream")}
	o.path = file(t, fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\nadmin: {listen: '127.0.0.1:0'}\nlog: {format: json}\n%s", o.url, destinations))
	return o
}

// opens starts a relay, and waits until the destinations are shared.
func (o *office) opens() {
	o.Helper()
	o.relays = append(o.relays, startProcess(o.T, "", "run", "-c", o.path))
	o.shared()
}

// shared waits until each relay has its part of the destinations; the search for routes
// is one more.
func (o *office) shared() {
	o.Helper()
	if len(o.relays) == 0 {
		return
	}
	until(o.T, o.url, `SELECT count(*) = (SELECT count(*) FROM outbox_positions) AND count(*) > 0 AND count(DISTINCT p.owner) = $1
		FROM outbox_positions AS p JOIN outbox_members AS m ON m.owner = p.owner`, len(o.relays))
}

// loses ends the relay that was opened first; the others have its destinations then.
func (o *office) loses(by os.Signal) {
	o.Helper()
	first := o.relays[0]
	o.relays = o.relays[1:]
	first.signal(o.T, by)
	if code := first.wait(o.T); code != command.ExitOK && by == syscall.SIGTERM {
		o.Errorf("exit code %d:\n%s", code, first.stderr.text())
	}
	o.shared()
}

// writes inserts an event.
func (o *office) writes(i item) {
	o.Helper()
	payload, err := json.Marshal(i)
	if err != nil {
		o.Fatal(err)
	}
	execute(o.T, o.url, fmt.Sprintf(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ('item', 'thing', '%s', '%s')`, i.Of, payload))
}

// stored waits until there are n deliveries of a destination in a state.
func (o *office) stored(destination, state string, n int) {
	o.Helper()
	until(o.T, o.url, `SELECT count(*) = $3 FROM outbox_deliveries WHERE destination = $1 AND state = $2`, destination, state, n)
}

// suffers stops the relay, starts two in turn and kills one, with more after each.
func (o *office) suffers(more func()) {
	o.Helper()
	o.loses(syscall.SIGTERM)
	o.opens()
	more()
	o.opens()
	more()
	o.loses(syscall.SIGKILL)
	more()
}

// decides has the first n dead letters of block replayed, and as many others discarded.
func (o *office) decides(n int) (replayed int) {
	o.Helper()
	first := query[string](o.T, o.url, `SELECT string_agg(event_id::text, ' ' ORDER BY event_id) FROM outbox_deliveries WHERE destination = 'block' AND state = 'dead'`)
	again, discarded := strings.Fields(first)[:n], strings.Fields(first)[n:]
	for _, args := range [][]string{append([]string{"dlq", "replay"}, again...), append([]string{"dlq", "discard"}, discarded...)} {
		if r := invoke(o.T, append(args, "-c", o.path, "--destination", "block", "--yes")...); r.code != command.ExitOK || !strings.Contains(r.stdout, fmt.Sprintf("%d of %d", n, n)) {
			o.Fatalf("%v: %+v", args, r)
		}
	}
	return n
}

// holds fails if anything went past the first events at block.
func (d *desk) holds(t *testing.T, things []string) {
	t.Helper()
	for _, of := range things {
		if got := d.got("block", of); len(got) != 0 {
			t.Errorf("%s: %v went past a dead letter", of, got)
		}
	}
}

// sent fails unless all has gone out in the end, but for the first events that were
// not replayed.
func (d *desk) sent(t *testing.T, things []string, replayed int) {
	t.Helper()
	for n, of := range things {
		want := []int{1, 2, 3, 4, 5}
		if n >= replayed {
			want = want[1:]
		}
		if got := d.got("block", of); !slices.Equal(got, want) {
			t.Errorf("block has sent of %s: %v, want %v", of, got, want)
		}
		if got := d.got("continue", of); !slices.Equal(got, []int{2, 3, 4, 5}) {
			t.Errorf("continue has sent of %s: %v", of, got)
		}
	}
}

// TestOnDead: behind a dead letter the later events of its aggregate go on, or
// wait until it is replayed or discarded, as the file says. Other aggregates go on
// in any case. Restarts, further relays and killed ones change nothing of it.
func TestOnDead(t *testing.T) {
	t.Parallel()
	d := startDesk(t, func(i item) bool { return i.Of != "free" && i.N == 1 })
	o := newOffice(t, strings.ReplaceAll(`destinations:
  block: {type: webhook, url: 'URL/block/dead', on_dead: block}
  continue: {type: webhook, url: 'URL/continue/dead'}
routes: [{match: '*', to: [block, continue]}]
`, "URL", d.URL))
	things := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	free := item{"free", 0}
	nth := 0
	// more writes an event more of each, and waits until it is where it belongs.
	more := func() {
		t.Helper()
		nth++
		for _, of := range things {
			o.writes(item{of, nth})
		}
		if nth == 1 {
			o.stored("continue", "dead", len(things))
		} else {
			for _, of := range things {
				d.awaits(t, "continue", item{of, nth})
			}
		}
		o.stored("block", "parked", (nth-1)*len(things))
		o.stored("block", "dead", len(things))
		free.N++
		o.writes(free)
		d.awaits(t, "block", free)
		d.holds(t, things)
	}

	o.opens()
	more()
	more()
	o.suffers(more)
	o.opens()

	d.heal()
	replayed := o.decides(4)
	until(t, o.url, `SELECT NOT EXISTS (SELECT FROM outbox_deliveries WHERE destination = 'block')`)
	d.sent(t, things, replayed)
}

// TestOrderOff: with order: none an event goes past one of its aggregate that
// fails and is tried again; without, it waits for that. Restarts, further relays
// and killed ones change nothing of it.
func TestOrderOff(t *testing.T) {
	t.Parallel()
	d := startDesk(t, func(i item) bool { return i == item{"a", 1} })
	o := newOffice(t, strings.ReplaceAll(`destinations:
  loose: {type: webhook, url: 'URL/loose/again', order: none, max_attempts: 1000, backoff: {initial: 1s, max: 2s}}
  strict: {type: webhook, url: 'URL/strict/again', max_attempts: 1000, backoff: {initial: 1s, max: 2s}}
routes: [{match: '*', to: [loose, strict]}]
`, "URL", d.URL))
	free, nth := item{"free", 0}, 1
	// more writes one more, which goes past the first where it may.
	more := func() {
		t.Helper()
		nth++
		o.writes(item{"a", nth})
		d.awaits(t, "loose", item{"a", nth})
		// Without an order, a copy of what a killed relay had just sent may come after the next one.
		untilPast(t, o.url, query[int64](t, o.url, `SELECT max(id) FROM outbox_events`), "loose")
		o.stored("strict", "parked", nth-1)
		free.N++
		o.writes(free)
		d.awaits(t, "strict", free)
		if got := d.got("strict", "a"); len(got) != 0 {
			t.Errorf("%v went past the first", got)
		}
	}

	o.opens()
	o.writes(item{"a", 1})
	until(t, o.url, `SELECT count(*) = 2 FROM outbox_deliveries WHERE attempts > 0`)
	more()
	o.suffers(more)
	d.heal()
	until(t, o.url, `SELECT NOT EXISTS (SELECT FROM outbox_deliveries)`)
	if got := d.got("loose", "a"); !slices.Equal(got, []int{2, 3, 4, 5, 1}) {
		t.Errorf("loose has sent %v", got)
	}
	if got := d.got("strict", "a"); !slices.Equal(got, []int{1, 2, 3, 4, 5}) {
		t.Errorf("strict has sent %v", got)
	}
}
