package bench

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

func TestPercentile(t *testing.T) {
	t.Parallel()
	ten := make([]time.Duration, 10)
	for i := range ten {
		ten[i] = time.Duration(i + 1)
	}
	for p, want := range map[float64]time.Duration{0: 1, 0.1: 1, 0.5: 5, 0.51: 6, 0.9: 9, 0.99: 10, 1: 10} {
		if got := Percentile(ten, p); got != want {
			t.Errorf("percentile %v of 1 to 10 is %d, want %d", p, got, want)
		}
	}
	if got := Percentile(nil, 0.5); got != 0 {
		t.Errorf("percentile of nothing is %d", got)
	}
}

func TestSteadily(t *testing.T) {
	t.Parallel()
	at := steadily(3)
	for i, want := range map[int]time.Duration{0: 0, 1: time.Second / 3, 3: time.Second, 3_000_000_000: 1_000_000_000 * time.Second} {
		if got := at(i); got != want {
			t.Errorf("event %d is at %v, want %v", i, got, want)
		}
	}
}

// TestPace: the schedule does not wait for a slow receiver. Overdue events come at once
// afterwards.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		due := make(chan int)
		begin := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- pace(t.Context(), schedule{begin, 5, steadily(10)}, due, pause) }()
		var at []time.Duration
		for i := range due {
			at = append(at, time.Since(begin))
			if i == 1 {
				time.Sleep(250 * time.Millisecond) //nolint:forbidigo // a slow writer, in a bubble's time
			}
		}
		const tenth = 100 * time.Millisecond
		if want := []time.Duration{0, tenth, 350 * time.Millisecond, 350 * time.Millisecond, 4 * tenth}; !slices.Equal(at, want) {
			t.Errorf("events at %v, want %v", at, want)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestPaceEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, buffer := range []int{0, 10} { // waiting for a taker, and for the time
			ctx, cancel := context.WithCancel(t.Context())
			due := make(chan int, buffer)
			ended := make(chan error, 1)
			go func() { ended <- pace(ctx, schedule{time.Now(), 5, steadily(1)}, due, pause) }()
			synctest.Wait()
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want %v", err, context.Canceled)
			}
		}
	})
}

// TestSleepExactly: the wait is not shorter, and can be interrupted.
func TestSleepExactly(t *testing.T) {
	t.Parallel()
	const d = 3 * time.Millisecond
	begin := time.Now()
	err := sleepExactly(t.Context(), d)
	took := time.Since(begin)
	if err != nil || took < d {
		t.Errorf("woke up after %v, before %v were over: %v", took, d, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sleepExactly(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestSightings(t *testing.T) {
	t.Parallel()
	s := newSightings(64)
	for id := int64(1); id <= 63; id++ {
		s.note(id)
	}
	s.note(1)
	s.note(0)
	s.note(65)
	if s.missing() != 1 || s.duplicates.Load() != 1 || s.unknown.Load() != 2 {
		t.Errorf("missing %d, duplicates %d, unknown %d", s.missing(), s.duplicates.Load(), s.unknown.Load())
	}
	select {
	case <-s.all:
		t.Error("complete without the last one")
	default:
	}
	s.note(64)
	<-s.all
	if s.missing() != 0 {
		t.Errorf("missing %d", s.missing())
	}
}

// TestSightingsOfLoad: the wait does not include events that must not be handled.
func TestSightingsOfLoad(t *testing.T) {
	t.Parallel()
	l := load{events: 3, blocked: 2}
	s := l.sightings()
	for id := range int64(l.total()) + 1 {
		s.note(id)
	}
	<-s.all
	if s.missing() != 0 || s.strays.Load() != 6 || s.unknown.Load() != 1 || s.duplicates.Load() != 0 {
		t.Errorf("missing %d, strays %d, unknown %d, duplicates %d", s.missing(), s.strays.Load(), s.unknown.Load(), s.duplicates.Load())
	}
}

// TestInTurns: each round begins with another scenario, and measurements stay with theirs.
func TestInTurns(t *testing.T) {
	t.Parallel()
	var asked []string
	count := func(_ context.Context, name string) (int, error) {
		if name == "bad" {
			return 0, errUnblocked
		}
		asked = append(asked, name)
		return len(asked), nil
	}
	took, err := inTurns(t.Context(), 2, []string{"a", "b", "c"}, count)
	if want := []string{"a", "b", "c", "b", "c", "a"}; err != nil || !slices.Equal(asked, want) {
		t.Errorf("measured %q, %v, want %q", asked, err, want)
	}
	if want := [][]int{{1, 6}, {2, 4}, {3, 5}}; !slices.EqualFunc(took, want, slices.Equal) {
		t.Errorf("got %v, want %v", took, want)
	}
	if _, err := inTurns(t.Context(), 2, []string{"a", "bad"}, count); !errors.Is(err, errUnblocked) {
		t.Errorf("got %v", err)
	}
}

// TestNotingKeepsOrder: wrapping preserves whether a handler keeps the order of a batch,
// and so whether a batch may have several events of an aggregate.
func TestNotingKeepsOrder(t *testing.T) {
	t.Parallel()
	for want, h := range map[bool]delivery.Handler{
		true:  ordered{},
		false: delivery.BatchHandlerFunc(func(context.Context, []*delivery.Event) []error { return nil }),
	} {
		k, ok := noting(h, newSightings(1)).(delivery.OrderedBatchHandler)
		if !ok || k.KeepsOrder() != want {
			t.Errorf("%T: keeps order: %v, want %v", h, !want, want)
		}
	}
	seen := newSightings(2)
	h, ok := noting(ordered{}, seen).(delivery.BatchHandler)
	if !ok {
		t.Fatal("a handler of batches is none any more")
	}
	if errs := h.DeliverBatch(t.Context(), []*delivery.Event{{ID: 1}, {ID: 2}}); len(errs) != 2 || seen.missing() != 1 {
		t.Errorf("answers %v, %d not noted, want one", errs, seen.missing())
	}
	if err := h.Deliver(t.Context(), &delivery.Event{ID: 2}); err != nil || seen.missing() != 0 {
		t.Errorf("answer %v, %d not noted", err, seen.missing())
	}
}

// ordered fails the last event of a batch.
type ordered struct{}

func (ordered) KeepsOrder() bool                               { return true }
func (ordered) Deliver(context.Context, *delivery.Event) error { return nil }
func (ordered) DeliverBatch(_ context.Context, events []*delivery.Event) []error {
	errs := make([]error, len(events))
	errs[len(events)-1] = errors.New("refused")
	return errs
}

func TestPayload(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3, 256, 100_000} {
		if got := payload(n); len(got) != n || !json.Valid([]byte(got)) {
			t.Errorf("payload of %d bytes: %.20q with %d", n, got, len(got))
		}
	}
	due := time.Unix(1_795_000_000, 123_456_789)
	data := []byte(duePayload(due, dueFilling(256)))
	got, ok := readDue(data)
	if !ok || !got.Equal(due) || len(data) != 256 || !json.Valid(data) {
		t.Errorf("got %v, %v, want %v from %s", got, ok, due, data)
	}
	if _, ok := readDue([]byte(payload(256))); ok {
		t.Error("a time was found where none is")
	}
}

// TestDisorder: an event that begins after a later one of its aggregate is counted.
func TestDisorder(t *testing.T) {
	t.Parallel()
	s := load{events: 9, keys: 2}.sightings()
	for _, e := range []delivery.Event{{ID: 1, AggregateID: "free-0"}, {ID: 4, AggregateID: "free-1"}, {ID: 3, AggregateID: "free-0"}, {ID: 2, AggregateID: "free-0"}, {ID: 1}} {
		s.begin(&e)
	}
	if n := s.disordered.Load(); n != 1 {
		t.Errorf("%d are out of order, want 1", n)
	}
}

// TestResult: a figure that a column lacks is a dash, and the table can have a row for each scenario.
func TestResult(t *testing.T) {
	t.Parallel()
	r := &Result{}
	r.Say("above")
	one := r.Column("one")
	one.Set("counts", 1234567, 0)
	one.Set("fixed", 0.249, 1)
	r.Column("two").Set("fixed", 2, 1)
	r.Column("two").relate("ratio", "fixed", one)
	r.Column("two").relate("none", "counts", one)
	r.Count(Faults{Lost: 1})
	r.Note("below")
	r.Upright = true
	var out strings.Builder
	r.print(&out)
	want := "above counts fixed ratio one 1,234,567 0.2 - two - 2.0 10.000 below lost=1 duplicates=0 out_of_order=0"
	if got := strings.Join(strings.Fields(out.String()), " "); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if r.OK() || !(&Result{Faults: &Faults{Duplicates: 1}}).OK() {
		t.Error("a lost event is a failure, and a duplicate is none")
	}
}
