package alert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/sleep"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inbox is a target that keeps its messages, or fails.
type inbox struct {
	mu   sync.Mutex
	got  []payload
	at   []time.Time
	fail func(e *delivery.Event) error
}

func (in *inbox) Deliver(_ context.Context, e *delivery.Event) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.at = append(in.at, time.Now())
	if in.fail != nil {
		if err := in.fail(e); err != nil {
			return err
		}
	}
	var p payload
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		return err
	}
	in.got = append(in.got, p)
	return nil
}

func (in *inbox) titles() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	var all []string
	for _, p := range in.got {
		all = append(all, p.Title)
	}
	return all
}

// running starts an alerter in the bubble of the test; stop ends it.
func running(t *testing.T, cfg Config, oldest Oldest, targets ...Target) (a *Alerter, log *bytes.Buffer, stop func()) {
	t.Helper()
	log = &bytes.Buffer{}
	cfg.Source = "host1"
	a, err := New(cfg, targets, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx, oldest) }()
	return a, log, func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run() = %v", err)
		}
	}
}

func dead(id int64) delivery.Incident {
	return delivery.Incident{
		Kind: delivery.IncidentDead, Time: time.Now(), Destination: "mail", EventID: id, EventType: "order.placed",
		Err: errors.New("550 no such\nuser"),
	}
}

func TestIncidentsShareAMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var in inbox
		a, _, stop := running(t, DefaultConfig(), nil, Target{"ops", &in})
		defer stop()
		for id := range int64(7) {
			a.Observe(dead(id + 1))
		}
		a.Observe(delivery.Incident{Kind: delivery.IncidentDown, Time: time.Now(), Destination: "shop", Err: errors.New("connection refused")})
		time.Sleep(gatherFor) //nolint:forbidigo // the bubble's clock
		synctest.Wait()
		if len(in.got) != 1 {
			t.Fatalf("got %d messages, want 1", len(in.got))
		}
		p := in.got[0]
		if p.Title != "notifyd host1: 7 dead letters for mail; shop is down" {
			t.Errorf("title = %q", p.Title)
		}
		for _, want := range []string{"550 no such user", "[event 1 order.placed 2 order.placed", "5 order.placed ...]", "connection refused"} {
			if !strings.Contains(p.Text, want) {
				t.Errorf("text lacks %q:\n%s", want, p.Text)
			}
		}
		if len(p.Incidents) != 2 || p.Incidents[0].Count != 7 || p.Incidents[0].Kind != "dead_letter" || len(p.Incidents[0].Events) != maxSamples {
			t.Errorf("incidents = %+v", p.Incidents)
		}
	})
}

func TestNoSoonerThanEvery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var in inbox
		cfg := DefaultConfig()
		a, _, stop := running(t, cfg, nil, Target{"ops", &in})
		defer stop()
		const span = time.Hour
		for began := time.Now(); time.Since(began) < span; time.Sleep(time.Second) { //nolint:forbidigo // the bubble's clock
			a.Observe(dead(1))
		}
		synctest.Wait()
		if most := int(span/cfg.Every) + 1; len(in.got) > most || len(in.got) < most-1 {
			t.Errorf("%d messages within %v, want one every %v", len(in.got), span, cfg.Every)
		}
		count := 0
		for i, p := range in.got {
			count += p.Incidents[0].Count
			if i > 0 && in.at[i].Sub(in.at[i-1]) < cfg.Every {
				t.Errorf("messages %v apart", in.at[i].Sub(in.at[i-1]))
			}
		}
		if left := 3600 - count; left < 0 || left > 300 {
			t.Errorf("%d of 3600 incidents were reported", count)
		}
	})
}

func TestTargetThatFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fail     func(e *delivery.Event) error
		tries    int // 0: any number
		reported int
		log      string
	}{
		"for a while": {func(e *delivery.Event) error {
			if e.Attempt < 4 {
				return delivery.Unavailable(errors.New("refused"))
			}
			return nil
		}, 4, 1, "not sent yet"},
		"for good":   {func(*delivery.Event) error { return delivery.Permanent(errors.New("bad blocks")) }, 1, 0, "bad blocks"},
		"always":     {func(*delivery.Event) error { return errors.New("refused") }, 0, 0, "attempts="},
		"by a panic": {func(*delivery.Event) error { panic("oops") }, 0, 0, "oops"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				bad, good := inbox{fail: c.fail}, inbox{}
				a, log, stop := running(t, DefaultConfig(), nil, Target{"bad", &bad}, Target{"good", &good})
				a.Observe(dead(1))
				time.Sleep(sendFor + time.Hour) //nolint:forbidigo // the bubble's clock
				synctest.Wait()
				stop()
				if len(good.got) != 1 {
					t.Errorf("the other target got %d messages", len(good.got))
				}
				if len(bad.got) != c.reported || c.tries > 0 && len(bad.at) != c.tries {
					t.Errorf("%d tries, %d messages; want %d, %d", len(bad.at), len(bad.got), c.tries, c.reported)
				}
				if !strings.Contains(log.String(), c.log) {
					t.Errorf("the log lacks %q: %s", c.log, log)
				}
			})
		})
	}
}

func TestEventsThatWaitTooLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var in inbox
		began := time.Now()
		// An event is written after an hour and delivered after two.
		oldest := func(context.Context) (time.Duration, error) {
			switch at := time.Since(began); {
			case at < time.Hour || at > 2*time.Hour:
				return 0, nil
			case at > 90*time.Minute && at < 91*time.Minute:
				return 0, errors.New("the database is away")
			default:
				return at - time.Hour, nil
			}
		}
		_, _, stop := running(t, DefaultConfig(), oldest, Target{"ops", &in})
		defer stop()
		time.Sleep(3 * time.Hour) //nolint:forbidigo // the bubble's clock
		synctest.Wait()
		want := []string{"notifyd host1: events wait too long", "notifyd host1: events no longer wait too long"}
		if got := in.titles(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("reported %q, want %q", got, want)
		}
	})
}

func TestKinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var in inbox
		cfg := DefaultConfig()
		cfg.Kinds = []delivery.IncidentKind{delivery.IncidentListenerLost}
		a, _, stop := running(t, cfg, nil, Target{"ops", &in})
		a.Observe(dead(1))
		stop()
		if len(in.got) != 0 {
			t.Errorf("reported %q", in.titles())
		}
	})
}

// TestFarewell: incidents that are unreported when the relay stops are reported then.
func TestFarewell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var in inbox
		a, _, stop := running(t, DefaultConfig(), nil, Target{"ops", &in})
		a.Observe(dead(1))
		stop()
		if got := in.titles(); len(got) != 1 || got[0] != "notifyd host1: a dead letter for mail" {
			t.Errorf("reported %q", got)
		}
	})
}

// TestPromptAfterQuiet: incidents that shared a message leave no debt: after a
// quiet time, the next incident is reported at once.
func TestPromptAfterQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var in inbox
		cfg := DefaultConfig()
		a, _, stop := running(t, cfg, nil, Target{"ops", &in})
		defer stop()
		a.Observe(dead(1))
		time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
		a.Observe(dead(2))
		time.Sleep(gatherFor + cfg.Every + time.Second) //nolint:forbidigo // the bubble's clock
		a.Observe(dead(3))
		time.Sleep(gatherFor) //nolint:forbidigo // the bubble's clock
		synctest.Wait()
		if len(in.got) != 2 {
			t.Errorf("reported %q", in.titles())
		}
	})
}

// TestStopWhileSending: a message that is being sent when the relay stops
// arrives, and one that waits for a retry is tried once more.
func TestStopWhileSending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var again inbox
		again.fail = func(e *delivery.Event) error {
			if e.Attempt == 1 {
				return errors.New("not now")
			}
			return nil
		}
		arrived := 0
		slow := delivery.HandlerFunc(func(ctx context.Context, _ *delivery.Event) error {
			if !sleep.For(ctx, 2*time.Second) {
				return ctx.Err()
			}
			arrived++
			return nil
		})
		a, _, stop := running(t, DefaultConfig(), nil, Target{"slow", slow}, Target{"again", &again})
		a.Observe(dead(1))
		time.Sleep(gatherFor + time.Millisecond) //nolint:forbidigo // the bubble's clock
		a.Observe(dead(2))
		stop()
		if arrived != 2 || len(again.got) != 1 {
			t.Errorf("%d and %d messages arrived; want 2, and 1 since the last was not to be tried again", arrived, len(again.got))
		}
	})
}

// TestStopWithADeafHandler: a handler that ignores its context does not keep
// the relay from stopping.
func TestStopWithADeafHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		deaf := delivery.HandlerFunc(func(context.Context, *delivery.Event) error { <-release; return nil })
		a, err := New(DefaultConfig(), []Target{{"deaf", deaf}}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		a.Observe(dead(1))
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx, nil) }()
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		cancel()
		select {
		case err := <-done:
			if !errors.Is(err, ErrHandler) || !errors.Is(err, context.Canceled) {
				t.Errorf("Run() = %v", err)
			}
		case <-time.After(farewell + 2*returnGrace):
			t.Error("Run does not return")
		}
	})
}

// TestEveryKindHasAText: a new kind needs a text.
func TestEveryKindHasAText(t *testing.T) {
	t.Parallel()
	n := 0
	for k := delivery.IncidentDead; k.String() != "unknown"; k++ {
		n++
		g := group{kind: k, count: 2, destination: "mail"}
		if strings.Contains(g.text(), "_") {
			t.Errorf("%v has no text of its own: %q", k, g.text())
		}
	}
	if n != int(delivery.IncidentRepeats) {
		t.Errorf("%d kinds have a name", n)
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	var groups []*group
	for i := range 1000 {
		groups = add(groups, delivery.Incident{
			Kind: delivery.IncidentDead, Destination: fmt.Sprint("d", i), EventID: int64(i), EventType: "a",
			Err: errors.New(strings.Repeat("ü\n", 1000)),
		})
	}
	if len(groups) != maxGroups {
		t.Errorf("%d groups", len(groups))
	}
	if e := groups[0].err; len(e) > maxError+3 || !utf8.ValidString(e) || strings.Contains(e, "\n") {
		t.Errorf("error = %q", e)
	}
	e := message(groups, "", time.Now())
	if e.Type != EventType || e.ID == 0 || !json.Valid(e.Payload) {
		t.Errorf("event = %+v", e)
	}
}

// TestErrorInAnotherEncoding: an answer in Latin-1 does not cost the rest of a long error.
func TestErrorInAnotherEncoding(t *testing.T) {
	t.Parallel()
	e := shortened("550 bo\xeete pleine: " + strings.Repeat("a", maxError))
	if len(e) < maxError || !utf8.ValidString(e) || !strings.HasPrefix(e, "550 bo\uFFFDte pleine: aaa") {
		t.Errorf("error = %q", e)
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	log, ops := slog.New(slog.DiscardHandler), []Target{{"ops", &inbox{}}}
	for _, c := range []struct {
		cfg     Config
		targets []Target
	}{{Config{}, ops}, {Config{Every: time.Second, OldestWaiting: -1}, ops}, {DefaultConfig(), nil}} {
		if _, err := New(c.cfg, c.targets, log); err == nil {
			t.Errorf("New(%+v, %v) found no mistake", c.cfg, c.targets)
		}
	}
}
