package dispatch

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/laneconf"
	"github.com/notifyd/notifyd/internal/limit"
	"github.com/notifyd/notifyd/observe"
)

// sharded returns a dispatcher with the destination a, which has three shards, and the destination b, which has one, for all
// events. It has begun. reserve may be nil.
func sharded(t *testing.T, h delivery.Handler, cfg LaneConfig, reserve limit.Reserve) (*Dispatcher, *overheard) {
	t.Helper()
	o := &overheard{}
	d, err := New(Config{Window: time.Second, ShutdownTimeout: time.Hour, Reserve: reserve}, o, overheardLog(o))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Shards = 3
	if err := errors.Join(d.Add("a", h, cfg), d.Add("b", h, testLane()), d.Route("*", "a", "b")); err != nil {
		t.Fatal(err)
	}
	d.Begin(t.Context())
	t.Cleanup(func() { d.cancelWork(ErrStopping) })
	return d, o
}

// handTo hands one event to the lane.
func handTo(l *lane, id int64) *Batch {
	if l.Reserve(Request{N: 1}) != 1 {
		panic("no capacity")
	}
	p := NewBatch(func() bool { return true }, func(bool) {})
	p.Fill([]Delivery{{Event: &delivery.Event{ID: id, Type: "x"}}})
	l.Deliver(p, nil)
	return p
}

func dropAll(d *Dispatcher) {
	for _, l := range d.lanes {
		l.drop()
	}
}

func TestShardsOfALane(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		shards int
		total  bool
		ok     bool
	}{{-1, false, false}, {0, false, true}, {1, true, true}, {2, false, true}, {2, true, false}, {laneconf.MaxShards, false, true}, {laneconf.MaxShards + 1, false, false}} {
		cfg := testLane()
		cfg.Shards = c.shards
		if c.total {
			cfg.Order = delivery.OrderTotal
		}
		if err := cfg.validate(); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "shard") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestEachShardHasALane: an engine that keeps order gets a lane for each shard, and all others one for each destination.
func TestEachShardHasALane(t *testing.T) {
	t.Parallel()
	h := &deaf{}
	d, _ := sharded(t, h, testLane(), nil)
	var stream, queue, all []string
	for _, l := range d.StreamLanes() {
		to := l.Destination()
		stream = append(stream, fmt.Sprint(to.Name, to.Shard))
		if one, is := l.(*lane); !is || one.target.handler != h {
			t.Errorf("%v has another handler", stream)
		}
	}
	for _, l := range d.QueueLanes() {
		queue = append(queue, fmt.Sprint(l.Destination().Name, l.Destination().Shard))
	}
	for _, to := range d.Destinations() {
		all = append(all, fmt.Sprint(to.Name, to.Shard))
	}
	if want := []string{"a0", "a1", "a2", "b0"}; !slices.Equal(stream, want) {
		t.Errorf("lanes of a stream: %v", stream)
	}
	if want := []string{"a0", "b0"}; !slices.Equal(queue, want) || !slices.Equal(all, want) {
		t.Errorf("lanes of a queue: %v, destinations: %v", queue, all)
	}
	lanes, _ := d.LanesOf("x")
	one, ok := d.QueueLane("a")
	if to := d.Destination("a"); len(lanes) != 2 || !ok || one.Destination() != to || lanes[0].Destination() != to || to.Shard != 0 || !d.Has("a") || d.Has("c") {
		t.Errorf("%d lanes of a type, %+v", len(lanes), to)
	}
	if names := d.DestinationsOf("x"); !slices.Equal(names, []string{"a", "b"}) || !d.Wanted("a", "x") || !slices.Equal(d.Patterns("a"), []string{"*"}) {
		t.Errorf("destinations of a type: %v", names)
	}
}

// TestPauseReachesAllShards: a pause concerns all lanes of a destination, and is logged once.
func TestPauseReachesAllShards(t *testing.T) {
	t.Parallel()
	d, o := sharded(t, delivery.HandlerFunc(takes(0)), testLane(), nil)
	defer dropAll(d)
	capacities := func() (all []bool) {
		for _, l := range d.lanes {
			all = append(all, l.HasCapacity())
		}
		return all
	}
	for i, c := range []struct {
		do       func() error
		runs     bool
		pauses   int
		resumes  int
		othersGo bool
	}{
		{func() error { return d.Pause("a") }, false, 1, 0, true},
		{func() error { return d.Pause("a") }, false, 1, 0, true},
		{func() error { return d.Resume("a") }, true, 1, 1, true},
		{func() error { d.SetPaused(map[string]bool{"a": true}); return nil }, false, 2, 1, true},
		{func() error { d.SetPaused(nil); return nil }, true, 2, 2, true},
	} {
		if err := c.do(); err != nil {
			t.Error(err)
		}
		if got := capacities(); !slices.Equal(got, []bool{c.runs, c.runs, c.runs, c.othersGo}) {
			t.Errorf("step %d: capacity %v", i, got)
		}
		if n, m := o.logged("destination paused"), o.logged("destination resumed"); n != c.pauses || m != c.resumes {
			t.Errorf("step %d: logged %d pauses and %d ends", i, n, m)
		}
		if s := d.Stats().Destinations; len(s) != 2 || s[0].Paused == c.runs || s[1].Paused {
			t.Errorf("step %d: %+v", i, s)
		}
	}
	if err := d.Pause("c"); !errors.Is(err, ErrDestination) {
		t.Error(err)
	}
}

// reports is a handler that counts its reports.
type reports struct {
	delivery.Handler

	n *int
}

func (r reports) Report() delivery.Report {
	*r.n++
	return delivery.Report{Connected: true}
}

// TestFiguresOfShards: the figures of a destination are those of its lanes together. A lane that no engine owns adds only
// counters.
func TestFiguresOfShards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		d, _ := sharded(t, reports{delivery.HandlerFunc(takes(time.Second)), &asked}, testLane(), nil)
		defer dropAll(d)
		keys := NewKeys()
		for i, l := range d.lanes[:2] {
			l.Own(func() {})
			for n := range i + 1 {
				l.SetRows(keys.Named(fmt.Sprint(n)), SomeRows)
			}
			for id := range int64(i + 1) {
				handTo(l, id)
			}
		}
		synctest.Wait()
		s := d.Stats().Destinations
		if len(s) != 2 || s[0].Name != "a" || s[0].Running != 3 || s[0].Aggregates != 3 || s[0].Capacity != d.lanes[0].stats().Capacity+d.lanes[1].stats().Capacity {
			t.Errorf("%+v", s)
		}
		if r := s[0].Report; r == nil || !r.Connected || asked != 3 {
			t.Errorf("report %+v, the handlers were asked %d times", r, asked)
		}
		if n := d.Blocked("a"); n != 3 || d.Blocked("b") != 0 || d.Blocked("c") != 0 {
			t.Errorf("%d are blocked", n)
		}
		if p := d.Progress(); len(p) != 2 || p[0].Name != "a" || !p[0].Well || p[0].Within == 0 || p[1].Within != 0 {
			t.Errorf("%+v", p)
		}
		after(time.Minute)
		l := d.lanes[1]
		l.Withdraw()
		l.Disown()
		if s, p := d.Stats().Destinations[0], d.Progress()[0]; s.Delivered != 3 || s.Acked.Count != 3 || s.Aggregates != 1 || s.Capacity != d.lanes[0].stats().Capacity || p.Answers != 3 {
			t.Errorf("%+v, %+v", s, p)
		}
		if n := d.Blocked("a"); n != 1 {
			t.Errorf("%d are blocked where one shard is left", n)
		}
	})
}

// TestMergeKnowsAllFigures: a figure that a lane has is in the sum.
func TestMergeKnowsAllFigures(t *testing.T) {
	t.Parallel()
	var one, sum observe.DestinationStats
	fill(reflect.ValueOf(&one).Elem())
	one.Name, one.Type, one.DeadLettersTo, one.Report = "", "", "", nil
	if merge(&sum, &one); !reflect.DeepEqual(sum, one) {
		t.Errorf("%+v\nwant %+v", sum, one)
	}
	merge(&sum, &one)
	if sum.Delivered != 2*one.Delivered || sum.Acked.Count != 2*one.Acked.Count || sum.Pace != one.Pace || sum.State != one.State || sum.Trouble.DownSince != one.Trouble.DownSince {
		t.Errorf("%+v", sum)
	}
}

// fill sets all fields to something else than zero.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1, 0)))
			return
		}
		for _, field := range v.Fields() {
			fill(field)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(2)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(2)
	default:
	}
}

func TestMergeOfUnlikeShards(t *testing.T) {
	t.Parallel()
	old, now := time.Unix(1, 0), time.Unix(2, 0)
	for _, c := range []struct{ a, b, want observe.BreakerState }{
		{observe.BreakerClosed, observe.BreakerThrottled, observe.BreakerThrottled},
		{observe.BreakerRamping, observe.BreakerClosed, observe.BreakerRamping},
		{observe.BreakerProbing, observe.BreakerOpen, observe.BreakerOpen},
		{observe.BreakerProbing, observe.BreakerThrottled, observe.BreakerProbing},
	} {
		a, b := observe.DestinationStats{State: c.a}, observe.DestinationStats{State: c.b}
		if merge(&a, &b); a.State != c.want {
			t.Errorf("%v and %v: %v", c.a, c.b, a.State)
		}
	}
	a := observe.DestinationStats{Down: true, Pace: 2, Trouble: observe.Trouble{DownSince: now, NextProbe: now, Failures: 1, LastError: "old", LastErrorAt: old}}
	b := observe.DestinationStats{Pace: 1, Trouble: observe.Trouble{DownSince: old, Failures: 2, FailingSince: now, LastError: "new", LastErrorAt: now}}
	merge(&a, &b)
	if want := (observe.Trouble{DownSince: old, NextProbe: now, Failures: 3, FailingSince: now, LastError: "new", LastErrorAt: now}); a.Trouble != want || a.Pace != 2 || !a.Down {
		t.Errorf("%+v", a)
	}
}

// TestOutageOfShards: a lane that fails does not stop the others, and an outage of several lanes is reported once.
func TestOutageOfShards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, o := sharded(t, delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
			if e.ID < 3 {
				return delivery.Unavailable(errors.New("away"))
			}
			return nil
		}), testLane(), nil)
		defer dropAll(d)
		for _, l := range d.lanes[:3] {
			l.Own(func() {})
		}
		heard := func(step string, want ...delivery.IncidentKind) {
			t.Helper()
			synctest.Wait()
			if kinds := o.kinds(); !slices.Equal(kinds, want) {
				t.Errorf("%s: reported %v, want %v", step, kinds, want)
			}
		}
		const down, up = delivery.IncidentDown, delivery.IncidentUp
		handTo(d.lanes[0], 1)
		heard("one lane is down", down)
		p := handTo(d.lanes[2], 3)
		synctest.Wait()
		if all, _ := verdicts(t, p); all[VerdictDelivered] != 1 {
			t.Errorf("another lane has answered %v", all)
		}
		if s, p := d.Stats().Destinations[0], d.Progress()[0]; !s.Down || s.State != observe.BreakerOpen || s.Delivered != 1 || s.Capacity == 0 || p.Well {
			t.Errorf("%+v, %+v", s, p)
		}
		handTo(d.lanes[1], 2)
		heard("two are", down)
		if n := o.logged("destination down"); n != 1 || !strings.Contains(o.text.String(), "shard=0") {
			t.Errorf("logged %d times:\n%s", n, o.text.String())
		}
		d.ReportDestination("a", 0, nil, false)
		after(2 * rampCalm)
		heard("the first one is well", down)
		d.ReportDestination("a", 1, nil, false)
		after(2 * rampCalm)
		heard("both are", down, up)
		if s, p := d.Stats().Destinations[0], d.Progress()[0]; s.Down || s.State != observe.BreakerClosed || !p.Well || o.logged("destination up") != 1 {
			t.Errorf("%+v, %+v", s, p)
		}

		if text := o.text.String(); !strings.Contains(text, fmt.Sprintf("after=%v", 2*rampCalm)) || o.logged("\n") != 2 {
			t.Errorf("it lasted until the second lane was answered, in two lines:\n%s", text)
		}

		// The relay loses the shard that is down: the next outage is another one.
		d.ReportDestination("a", 1, errors.New("away"), false)
		heard("down again", down, up, down)
		d.lanes[1].Withdraw()
		d.lanes[1].Disown()
		if s := d.Stats().Destinations[0]; s.Down {
			t.Errorf("%+v", s)
		}
		d.ReportDestination("a", 2, errors.New("away"), false)
		heard("another one is down", down, up, down, down)
	})
}

// TestReportConcernsOneShard: a position that one shard cannot open says nothing about the others.
func TestReportConcernsOneShard(t *testing.T) {
	t.Parallel()
	d, _ := sharded(t, delivery.HandlerFunc(takes(0)), testLane(), nil)
	defer dropAll(d)
	d.lanes[1].Own(func() {})
	if pause := d.ReportDestination("a", 1, errors.New("fenced"), true); pause <= 0 {
		t.Errorf("pause of %v", pause)
	}
	if got := d.Stats().Destinations[0].Trouble; got.LastError != "fenced" || got.LastErrorAt.IsZero() || got.Failures != 0 {
		t.Errorf("%+v", got)
	}
	for i, l := range d.lanes {
		if l.HasCapacity() != (i != 1) {
			t.Errorf("lane %d: capacity %t", i, i == 1)
		}
	}
}

// TestShutdownWaitsForAllShards: the end of a relay waits for each lane, and names a destination once.
func TestShutdownWaitsForAllShards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, _ := sharded(t, delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
			<-time.After(time.Duration(e.ID) * time.Second)
			return nil
		}), testLane(), nil)
		for i, l := range d.lanes[:3] {
			l.Own(func() {})
			handTo(l, int64(i+1))
		}
		began := time.Now()
		if err := d.unfinished(); !errors.Is(err, ErrShutdownIncomplete) || !strings.HasSuffix(err.Error(), ": [a]") {
			t.Errorf("unfinished: %v", err)
		}
		if err := d.Drain(&sync.WaitGroup{}); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("it took %v, and the longest call takes 3s", took)
		}
		for i, l := range d.lanes {
			if l.HasCapacity() || l.workers.timer != nil && l.workers.timer.Stop() {
				t.Errorf("lane %d goes on", i)
			}
		}
	})
}

// TestShardsThatAreNotHeld: lanes of shards that other relays hold start nothing, log nothing, and are neither well nor unwell.
func TestShardsThatAreNotHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, o := sharded(t, delivery.HandlerFunc(takes(0)), testLane(), nil)
		if s := d.Stats().Destinations[0]; !reflect.DeepEqual(s, observe.DestinationStats{Name: "a"}) {
			t.Errorf("%+v", s)
		}
		if p := d.Progress(); p[0].Well || !p[1].Well {
			t.Errorf("%+v", p)
		}
		d.lanes[2].Own(func() {})
		handTo(d.lanes[2], 1)
		after(time.Hour)
		if p := d.Progress()[0]; !p.Well {
			t.Errorf("%+v", p)
		}
		for i, l := range d.lanes[:2] {
			if l.timer != nil || l.workers.timer != nil || l.workers.all != nil || l.queue != nil {
				t.Errorf("lane %d has work", i)
			}
		}
		if err := d.Drain(&sync.WaitGroup{}); err != nil || o.text.Len() > 0 || len(o.all) > 0 {
			t.Errorf("%v, %v, logged:\n%s", err, o.all, o.text.String())
		}
	})
}

// TestShardsShareTheRateLimit: the lanes of a destination take from one limit.
func TestShardsShareTheRateLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := testLane()
		cfg.RateLimit = delivery.Rate{Events: 100, Per: time.Second}
		var tat time.Time
		reserve := func(_ context.Context, name string, terms limit.Terms, asks []limit.Request) ([]limit.Reservation, error) {
			if name != "a" || len(asks) != 1 {
				t.Errorf("%q asks %v", name, asks)
			}
			now := time.Now()
			if tat.Before(now) {
				tat = now
			}
			n := min(asks[0].N, int((time.Duration(terms.Burst)*terms.Gap-tat.Sub(now))/terms.Gap))
			tat = tat.Add(time.Duration(n) * terms.Gap)
			return []limit.Reservation{{N: n, Lead: tat.Sub(now)}}, nil
		}
		d, _ := sharded(t, delivery.HandlerFunc(takes(0)), cfg, reserve)
		defer dropAll(d)
		const seconds = 10
		begun, waited := 0, uint64(0)
		for range seconds * 100 {
			for _, l := range d.lanes[:3] {
				all := make([]Delivery, 10)
				for i := range all {
					all[i].Event = &delivery.Event{ID: int64(i + 1)}
				}
				waits := l.Admit(all, 0)
				for i := range all {
					if waits == nil || waits[i] == 0 {
						begun++
					} else {
						waited++
					}
				}
			}
			after(10 * time.Millisecond)
		}
		if begun > seconds*100+100 || begun < seconds*100 {
			t.Errorf("%d events in %d s and a burst of 100 began, at 100 per second", begun, seconds)
		}
		if s := d.Stats().Destinations[0]; s.RateLimits != waited {
			t.Errorf("%d of %d waits are counted", s.RateLimits, waited)
		}
	})
}
