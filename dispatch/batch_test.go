package dispatch

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// settleCase builds the batch of one work. Each letter of jobs is a job on a
// lane of that number: d delivered, f failed, x dead, r released, l leased and
// under way; a dash is a lane that refused.
func settleCase(w Work, jobs string) (*batch, *Settlement, []int) {
	b := &batch{work: []Work{w}, plans: make([]plan, 1), jobs: make([]job, 0, len(jobs))}
	for i, letter := range jobs {
		l := &lane{name: fmt.Sprint(i)}
		if letter == '-' {
			b.plans[0].refused = append(b.plans[0].refused, l)
			continue
		}
		j := job{batch: b, lane: l, answered: true}
		switch letter {
		case 'd':
			j.out = outcome{verdict: delivered}
		case 'f':
			j.out = outcome{verdict: failed, failures: w.Failures + 1, delay: time.Minute, class: ClassEvent, err: errors.New("no")}
		case 'x':
			j.out = outcome{verdict: dead, failures: w.Failures + 1, class: ClassEvent, err: errors.New("never")}
		case 'r':
			j.out = outcome{verdict: released, failures: w.Failures}
		case 'l':
			j.answered, j.leased, j.token = false, true, 7
		}
		b.jobs = append(b.jobs, j)
	}
	b.plans[0].to = len(b.jobs)
	s, left := b.settlement()
	return b, s, left
}

func TestSettlement(t *testing.T) {
	t.Parallel()
	const fresh, due, open = "fresh", "due", "undecided"
	for _, tc := range []struct {
		kind, jobs string
		event      string // done, buried, deferred, removed, left, or nothing
		put        string // destination and state of each row
	}{
		{fresh, "d", "done", ""},
		{fresh, "dd", "done", ""},
		{fresh, "f", "deferred", "0:retry"},
		{fresh, "x", "buried", "0:dead"},
		{fresh, "xx", "buried", "0:dead 1:dead"},
		{fresh, "dx", "buried", "1:dead"},
		{fresh, "df", "deferred", "1:retry"},
		{fresh, "xf", "deferred", "0:dead 1:retry"},
		{fresh, "l", "deferred", "0:running"},
		{fresh, "dl", "deferred", "1:running"},
		{fresh, "xl", "deferred", "0:dead 1:running"},
		{fresh, "r", "left", ""},
		{fresh, "rr", "left", ""},
		{fresh, "-", "left", ""},
		{fresh, "r-", "left", ""},
		{fresh, "d-", "deferred", "1:retry"},
		{fresh, "dr", "deferred", "1:retry"},
		{fresh, "x-", "deferred", "0:dead 1:retry"},
		{fresh, "l-", "deferred", "0:running 1:retry"},
		{fresh, "dfxrl-", "deferred", "1:retry 2:dead 3:retry 4:running 5:retry"},
		{due, "d", "removed", ""},
		{due, "f", "", "0:retry"},
		{due, "x", "", "0:dead"},
		{due, "l", "", "0:running"},
		{due, "r", "left", ""},
		{due, "-", "left", ""},
		{open, "d", "removed", ""},
		{open, "dd", "removed", ""},
		{open, "f", "removed", "0:retry"},
		{open, "x", "removed", "0:dead"},
		{open, "dl-", "removed", "1:running 2:retry"},
		{open, "r", "removed", "0:retry"},
		{open, "--", "removed", "0:retry 1:retry"},
	} {
		t.Run(tc.kind+" "+tc.jobs, func(t *testing.T) {
			t.Parallel()
			w := Work{Event: Event{ID: 5, Type: "x"}, Fresh: tc.kind == fresh}
			if tc.kind == due {
				w.Destination, w.Failures = "0", 3
			}
			_, s, left := settleCase(w, tc.jobs)
			event, put := "", ""
			for name, hit := range map[string]bool{
				"done": slices.Equal(s.Done, []int64{5}), "buried": slices.Equal(s.Buried, []int64{5}),
				"deferred": slices.Equal(s.Deferred, []int64{5}), "left": slices.Equal(left, []int{0}),
				"removed": slices.Equal(s.Remove, []Ref{{5, w.Destination}}),
			} {
				if hit {
					event += name
				}
			}
			for i, e := range s.Put {
				if i > 0 {
					put += " "
				}
				put += e.Destination + ":" + string(e.State)
				checkEntry(t, e, w.Failures)
			}
			if event != tc.event || put != tc.put {
				t.Errorf("event %q, rows %q; want %q, %q", event, put, tc.event, tc.put)
			}
			if (event == "left") != s.Empty() {
				t.Errorf("empty: %t", s.Empty())
			}
		})
	}
}

func checkEntry(t *testing.T, e Entry, failures int) {
	t.Helper()
	failed := e.Err != ""
	if failed {
		failures++
	}
	if e.EventID != 5 || e.EventType != "x" || e.Failures != failures || failed != (e.Class == "event") ||
		(e.Token == 7) != (e.State == EntryRunning) || (e.Delay != 0) != (e.State == EntryRetry && failed) {
		t.Errorf("row %+v", e)
	}
}

func TestSettlementOfWhatWasNotTried(t *testing.T) {
	t.Parallel()
	b := &batch{work: []Work{
		{Event: Event{ID: 1, Type: "x"}, Fresh: true, Delay: time.Hour},
		{Event: Event{ID: 2, Type: "y"}, Fresh: true},
		{Event: Event{ID: 3, Type: "y"}},
		{Event: Event{ID: 4}, Destination: "gone", Orphan: true},
	}, plans: []plan{{state: EntryRetry}, {state: EntryUnrouted}, {state: EntryUnrouted}, {}}}
	s, left := b.settlement()
	want := []Entry{
		{Ref: Ref{EventID: 1}, EventType: "x", State: EntryRetry, Delay: time.Hour},
		{Ref: Ref{EventID: 2}, EventType: "y", State: EntryUnrouted},
		{Ref: Ref{EventID: 3}, EventType: "y", State: EntryUnrouted},
	}
	if !slices.Equal(s.Put, want) || !slices.Equal(s.Deferred, []int64{1, 2}) || !slices.Equal(s.Remove, []Ref{{4, "gone"}}) || len(left) > 0 {
		t.Errorf("settlement %+v, left %v", s, left)
	}
}
