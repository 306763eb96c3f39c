package limit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// table is outbox_limits, with the arithmetic of the statement and a test clock.
type table struct {
	tats  map[string]time.Time
	ahead time.Duration // its clock is ahead of the relays'
	slow  time.Duration // how long it takes to answer
	asked int
	err   error
}

func newTable() *table { return &table{tats: make(map[string]time.Time)} }

func (t *table) reserve(_ context.Context, _ string, terms Terms, requests []Request) (all []Reservation, err error) {
	t.asked++
	sleep(t.slow)
	if t.err != nil {
		return nil, t.err
	}
	now := time.Now().Add(t.ahead)
	for _, a := range requests {
		base := t.tats[a.Key]
		if base.Before(now) {
			base = now
		}
		if limit := now.Add(terms.accrual()); base.After(limit) {
			base = limit
		}
		n := min(a.N, int((terms.accrual()-base.Sub(now))/terms.Gap))
		t.tats[a.Key] = base.Add(time.Duration(n) * terms.Gap)
		all = append(all, Reservation{Key: a.Key, N: n, Lead: t.tats[a.Key].Sub(now)})
	}
	return all, nil
}

// sleep moves the clock of a synctest bubble on.
func sleep(d time.Duration) { <-time.After(d) }

// take lets up to n events of a key go, and returns how many went.
func take(t interface{ Fatal(args ...any) }, l *Limiter, key string, n int) (went int) {
	wants := make([]Want, n)
	for i := range wants {
		wants[i].Key = key
	}
	waits, err := l.Take(context.Background(), wants)
	if err != nil {
		t.Fatal(err)
	}
	if waits == nil {
		return n
	}
	for _, w := range waits {
		if w == 0 {
			went++
		}
	}
	return went
}

func TestPlan(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate                Rate
		burst, ahead, bunch int
		gap, hold           time.Duration
	}{
		{Rate{Rate: delivery.Rate{Events: 100, Per: time.Second}}, 75, 25, 5, 10 * time.Millisecond, 250 * time.Millisecond},
		{Rate{Rate: delivery.Rate{Events: 1, Per: time.Second}}, 1, 0, 1, time.Second, 0},
		{Rate{Rate: delivery.Rate{Events: 10_000, Per: time.Hour}}, 3, 0, 1, 360 * time.Millisecond, 0},
		{Rate{Rate: delivery.Rate{Events: 50_000, Per: 24 * time.Hour}, Burst: 1000}, 1000, 0, 1, 1728 * time.Millisecond, 0},
		{Rate{Rate: delivery.Rate{Events: 100, Per: time.Second}, Burst: 20}, 15, 5, 5, 10 * time.Millisecond, 50 * time.Millisecond},
		{Rate{Rate: delivery.Rate{Events: 1_000_000, Per: time.Second}}, 750_000, 250_000, 50_000, time.Microsecond, 250 * time.Millisecond},
	} {
		if err := c.rate.Validate(); err != nil {
			t.Errorf("%+v: %v", c.rate, err)
		}
		want := plan{Terms: Terms{Gap: c.gap, Burst: c.burst}, ahead: c.ahead, hold: c.hold, batch: c.bunch}
		if got := planOf(c.rate); got != want {
			t.Errorf("%+v: %+v, want %+v", c.rate, got, want)
		}
	}
	for _, r := range []delivery.Rate{{Events: -1, Per: time.Second}, {Events: 1}, {Events: 2, Per: time.Microsecond}, {Events: 2_000_000, Per: time.Second}} {
		if r.Validate() == nil {
			t.Errorf("%+v is taken", r)
		}
	}
}

// TestSteady: once the burst is gone, events go at the rate, and room comes back in bunches.
func TestSteady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New("d", Rate{Rate: delivery.Rate{Events: 100, Per: time.Second}}, false, newTable().reserve)
		if n := take(t, l, "", 1000); n != 75 {
			t.Fatalf("%d of 1000 went at once, want the 75 that are not taken ahead", n)
		}
		if room := l.Capacity(time.Now(), 1000); room != 0 {
			t.Fatalf("room for %d", room)
		}
		began, went := time.Now(), 0
		for time.Since(began) < 10*time.Second {
			wait := l.Wait(time.Now())
			if wait != 50*time.Millisecond {
				t.Fatalf("wait %v", wait)
			}
			sleep(wait)
			n := l.Capacity(time.Now(), 1000)
			if n != l.Batch() || take(t, l, "", 1000) != n {
				t.Fatalf("room for %d, bunch of %d", n, l.Batch())
			}
			went += n
		}
		if went != 1000 {
			t.Errorf("%d events in 10 s, want 1000", went)
		}
	})
}

// TestAhead: below its limit a busy destination asks the table a few times a second, and one that is not asks for no more than
// it needs.
func TestAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		busy, idle := newTable(), newTable()
		l, quiet := New("d", Rate{Rate: delivery.Rate{Events: 100_000, Per: time.Second}}, false, busy.reserve), New("d", Rate{Rate: delivery.Rate{Events: 100, Per: time.Second}}, false, idle.reserve)
		for range 1000 {
			sleep(time.Millisecond)
			if n := take(t, l, "", 50); n != 50 {
				t.Fatalf("%d of 50 went", n)
			}
		}
		if busy.asked > 20 {
			t.Errorf("the table was asked %d times for 50,000 events", busy.asked)
		}
		for range 5 {
			sleep(time.Minute)
			take(t, quiet, "", 1)
		}
		if tat := time.Until(idle.tats[""]); tat > 20*time.Millisecond {
			t.Errorf("the last of five events, a minute apart, has taken %v of the limit", tat)
		}
	})
}

// TestLine: waiting events of a key get turns one after the other. An event that arrives when a turn is free waits, too:
// the turn is for the events that wait already. Other keys continue.
func TestLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New("d", Rate{Rate: delivery.Rate{Events: 1, Per: time.Second}}, true, newTable().reserve)
		waits, err := l.Take(t.Context(), []Want{{Key: "a"}, {Key: "a"}, {Key: "a"}, {Key: "b"}})
		if want := []time.Duration{0, time.Second, 2 * time.Second, 0}; err != nil || fmt.Sprint(waits) != fmt.Sprint(want) {
			t.Fatal(waits, err)
		}
		sleep(time.Second)
		if waits, err = l.Take(t.Context(), []Want{{Key: "a"}, {Key: "a", Waited: true}}); err != nil || fmt.Sprint(waits) != "[2s 0s]" {
			t.Error(waits, err)
		}
		if w := l.Wait(time.Now()); w != 0 {
			t.Error("a limit by key closes the lane for", w)
		}
		// However many wait, a turn is never further away than that.
		waits, _ = l.Take(t.Context(), make([]Want, 10_000))
		if last := waits[len(waits)-1]; last != longestWait {
			t.Error("the last of 10,000 waits", last)
		}
	})
}

// TestUnknown: while the table does not answer nothing goes, and it is not asked again and again.
func TestUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newTable()
		db.err = errors.New("down")
		l := New("d", Rate{Rate: delivery.Rate{Events: 100, Per: time.Second}}, false, db.reserve)
		if waits, err := l.Take(t.Context(), make([]Want, 2)); err == nil || waits[0] != unknownWait || waits[1] != unknownWait {
			t.Fatal(waits, err)
		}
		if room := l.Capacity(time.Now(), 5); room != 0 {
			t.Error("room for", room)
		}
		db.err = nil
		sleep(unknownWait + 50*time.Millisecond)
		if n := take(t, l, "", 2); n != 2 || db.asked != 2 {
			t.Errorf("%d of 2 went, asked %d times", n, db.asked)
		}
	})
}

// TestKeysAreForgotten: the memory of a relay is bounded, whatever the keys.
func TestKeysAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New("d", Rate{Rate: delivery.Rate{Events: 1, Per: 24 * time.Hour}}, true, newTable().reserve)
		for i := range maxKeys + minSweep {
			take(t, l, fmt.Sprint(i), 1)
		}
		if len(l.buckets) > maxKeys {
			t.Error(len(l.buckets), "keys are known")
		}
		if n := take(t, l, "0", 1); n != 0 {
			t.Error("a key that was forgotten has got its rate again")
		}
	})
}

// TestNeverMore: whatever relays do, in any time t at most rate * t + burst events of a key start. Waiting events start
// in the end.
func TestNeverMore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		var failed string
		var ended any // by rapid, which may not end a bubble
		synctest.Test(t, func(*testing.T) {
			defer func() { ended = recover() }()
			failed = neverMore(r)
		})
		if ended != nil {
			panic(ended)
		}
		if failed != "" {
			r.Fatal(failed)
		}
	})
}

// answers is the longest time that the table takes to answer.
const answers = 100 * time.Millisecond

func neverMore(r *rapid.T) string {
	var rate Rate
	rate.Events = rapid.IntRange(1, 500).Draw(r, "events")
	rate.Per = time.Duration(rapid.SampledFrom([]int{1, 60, 3600}).Draw(r, "per")) * time.Second
	rate.Burst = rapid.IntRange(0, 300).Draw(r, "burst")
	db := newTable()
	db.ahead = time.Duration(rapid.IntRange(-3600, 3600).Draw(r, "clock")) * time.Second
	keyed := rapid.Bool().Draw(r, "keyed")
	relays := make([]*Limiter, rapid.IntRange(1, 4).Draw(r, "relays"))
	for i := range relays {
		relays[i] = New("d", rate, keyed, db.reserve)
	}
	gone := make(map[string][]time.Time)
	for range rapid.IntRange(1, 60).Draw(r, "steps") {
		i := rapid.IntRange(0, len(relays)-1).Draw(r, "relay")
		key := ""
		if keyed {
			key = rapid.SampledFrom([]string{"a", "b"}).Draw(r, "key")
		}
		switch rapid.IntRange(0, 9).Draw(r, "what") {
		case 0: // killed: its reserve is spent
			relays[i] = New("d", rate, keyed, db.reserve)
		case 1: // a row without effect is deleted
			for k, tat := range db.tats {
				if tat.Before(time.Now().Add(db.ahead)) {
					delete(db.tats, k)
				}
			}
		default:
			db.slow = time.Duration(rapid.IntRange(0, int(answers/time.Millisecond)).Draw(r, "slow")) * time.Millisecond
			n := take(r, relays[i], key, rapid.IntRange(1, 200).Draw(r, "n"))
			for range n {
				gone[key] = append(gone[key], time.Now())
			}
			sleep(time.Duration(rapid.IntRange(0, 2000).Draw(r, "pause")) * time.Millisecond)
		}
	}
	// What is promised, and not what planOf makes of it.
	gap := float64(rate.Per) / float64(rate.Events)
	burst := rate.Burst
	if burst == 0 {
		burst = max(1, int(math.Ceil(float64(time.Second)/gap)))
	}
	for key, at := range gone {
		for i := range at {
			for j := i; j < len(at); j += max(1, len(at)/50) {
				span := at[j].Sub(at[i]) + answers // an event goes when the table has answered
				if most := int(math.Floor(float64(span)/gap)) + burst; j-i+1 > most {
					return fmt.Sprintf("key %q: %d events in %v at %+v", key, j-i+1, span, rate)
				}
			}
		}
	}
	// One that waits long enough goes.
	db.slow = 0
	sleep(2 * longestWait)
	for key := range gone {
		waits, _ := relays[0].Take(context.Background(), []Want{{Key: key, Waited: true}})
		if waits != nil && planOf(rate).Gap < longestWait {
			return "an event that has waited does not go"
		}
	}
	return ""
}
