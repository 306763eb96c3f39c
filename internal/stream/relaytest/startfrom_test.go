package relaytest

import (
	"bytes"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// since returns the ids from one on.
func since(ids []int64, from int64) []int64 {
	return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return id < from })
}

// exactly checks that a destination gets these events, and no other one after it has read everything.
func (r *routing) exactly(destination string, want ...[]int64) {
	r.t.Helper()
	r.has(destination, want...)
	r.until("all is read", everythingRead, []string{"", destination})
	r.until("nothing waits", `SELECT count(*) = 0 FROM outbox_deliveries WHERE destination = $1`, destination)
	r.has(destination, want...)
}

// written writes events unless n is 0.
func (r *routing) written(n int, types ...string) map[string][]int64 {
	if n == 0 {
		return make(map[string][]int64)
	}
	return r.write(n, types...)
}

// TestStartFrom has the table of streams.md: what a first, a later and a returning destination gets by its start_from,
// with and without a history.
func TestStartFrom(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const sixth = "6" // an id in the history
	all := func(ids []int64) []int64 { return ids }
	none := func([]int64) []int64 { return nil }
	fromSixth := func(ids []int64) []int64 { return since(ids, 6) }
	for startFrom, old := range map[string]struct {
		first, later, unrouted func([]int64) []int64 // the part of the history that a destination gets; unrouted: of types that had no route
	}{
		"auto":      {all, none, all},
		"now":       {none, none, none},
		"beginning": {all, all, all},
		sixth:       {fromSixth, fromSixth, fromSixth},
		"999999":    {none, none, none},
	} {
		for name, history := range map[string]int{"history": 50, "empty": 0} {
			t.Run(startFrom+" first "+name, func(t *testing.T) {
				t.Parallel()
				r := newRouting(t)
				r.startFrom = map[string]string{"x": startFrom}
				before := r.written(history, "a", "other")
				stop := r.start(map[string][]string{"a": {"x"}})
				r.until("x has begun", `SELECT count(*) > 0 FROM outbox_positions WHERE destination = 'x'`)
				after := r.write(50, "a", "other")
				want := old.first(before["a"])
				if startFrom == sixth && history == 0 { // the id is not assigned yet
					want = nil
				}
				r.exactly("x", want, after["a"])
				stop()
				// A later destination does not get what the first one was spared.
				stop = r.start(map[string][]string{"a": {"x"}, "other": {"y"}})
				r.exactly("y", old.first(before["other"]), after["other"])
				r.exactly("x", want, after["a"])
				stop()
			})
			t.Run(startFrom+" later "+name, func(t *testing.T) {
				t.Parallel()
				r := newRouting(t)
				r.startFrom = map[string]string{"x": startFrom}
				stop := r.start(map[string][]string{"a": {"other"}})
				before := r.written(history, "a", "late")
				r.exactly("other", before["a"])
				stop()
				stop = r.start(map[string][]string{"a": {"other", "x"}, "late": {"x"}})
				r.until("x has begun", `SELECT count(*) > 0 FROM outbox_positions WHERE destination = 'x'`)
				after := r.write(50, "a", "late")
				r.exactly("x", old.later(before["a"]), old.unrouted(before["late"]), after["a"], after["late"])
				r.exactly("other", before["a"], after["a"])
				stop()
			})
			t.Run(startFrom+" returning "+name, func(t *testing.T) {
				t.Parallel()
				r := newRouting(t)
				stop := r.start(map[string][]string{"a": {"other", "x"}})
				before := r.written(history, "a")
				r.exactly("other", before["a"])
				r.exactly("x", before["a"])
				stop()
				stop = r.start(map[string][]string{"a": {"other"}})
				gone := r.write(50, "a")
				r.exactly("other", before["a"], gone["a"])
				stop()
				r.startFrom = map[string]string{"x": startFrom}
				stop = r.start(map[string][]string{"a": {"other", "x"}})
				after := r.write(50, "a")
				r.exactly("x", before["a"], gone["a"], after["a"])
				stop()
			})
		}
	}
}

// lines collects the lines of a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestStartFromUnassigned: an id above the last one is logged, the relay continues, and so does the next start.
func TestStartFromUnassigned(t *testing.T) {
	t.Parallel()
	r := newRouting(t)
	var log lines
	r.logs = io.MultiWriter(&log, t.Output())
	r.startFrom = map[string]string{"x": strconv.Itoa(1_000_000)}
	to := map[string][]string{"a": {"x", "y"}}
	before := r.write(50, "a")
	stop := r.start(to)
	r.exactly("y", before["a"])
	first := r.write(50, "a")
	r.exactly("x", first["a"])
	stop()
	r.startFrom = nil
	stop = r.start(to)
	second := r.write(50, "a")
	r.exactly("x", first["a"], second["a"])
	r.exactly("y", before["a"], first["a"], second["a"])
	stop()
	if n := strings.Count(log.String(), "start_from is above the last id"); n != 1 {
		t.Errorf("%d warnings", n)
	}
	if got := slices.Sorted(maps.Keys(r.got)); !slices.Equal(got, []string{"x", "y"}) {
		t.Error(got)
	}
}
