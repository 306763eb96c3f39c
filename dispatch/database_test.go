package dispatch

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// asking is an observer that reads the figures when it is notified.
type asking struct {
	d *database

	mu   sync.Mutex
	down []bool
}

func (a *asking) Observe(delivery.Incident) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = append(a.down, a.d.down())
}

func (a *asking) told() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.down)
}

// TestObserverMayAsk: an observer that reads the relay's figures does not hang.
func TestObserverMayAsk(t *testing.T) {
	t.Parallel()
	a := &asking{}
	a.d = &database{log: slog.New(slog.DiscardHandler), observer: a}
	a.d.report(errors.New("gone"))
	a.d.report(nil)
	a.d.settle(0)
	if len(a.down) != 2 || !a.down[0] || a.down[1] {
		t.Errorf("down() = %v, want true, then false", a.down)
	}
}

// TestStormIsOneOutage: a database that comes and goes is reported once, and
// summed up when it stays.
func TestStormIsOneOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		a := &asking{}
		a.d = &database{log: slog.New(slog.NewTextHandler(&text, nil)), observer: a}
		for range 20 {
			for range 3 {
				a.d.report(errors.New("the database system is starting up"))
			}
			if !a.d.down() {
				t.Error("an outage is not seen at once")
			}
			a.d.report(nil)
			if a.d.down() {
				t.Error("the end of an outage is not seen at once")
			}
			<-time.After(calm - time.Millisecond)
			a.d.report(nil)
		}
		if n := a.told(); n != 1 {
			t.Errorf("%d incidents within the storm, want 1", n)
		}
		<-time.After(time.Second)
		synctest.Wait()
		if n := strings.Count(text.String(), "\n"); n != 2 || !strings.Contains(text.String(), `msg="database answers again" after=1m34.981s errors=60`) {
			t.Errorf("logged %d lines, want 2:\n%s", n, text.String())
		}
		a.d.report(errors.New("gone"))
		if n := a.told(); n != 3 {
			t.Errorf("%d incidents, want 3: an outage after the calm is another one", n)
		}
	})
}

// refusedError is the refusal of a server, with its cure.
type refusedError struct{ error }

func (refusedError) Refusal() string { return "fix the password" }

// TestRefusalIsRepeated: what no waiting ends is an error with its cure, once a minute;
// an outage is a warning, once.
func TestRefusalIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		a := &asking{}
		a.d = &database{log: slog.New(slog.NewTextHandler(&text, nil)), observer: a}
		lines := func(want int) {
			t.Helper()
			if n := strings.Count(text.String(), "\n"); n != want {
				t.Errorf("logged %d lines, want %d:\n%s", n, want, text.String())
			}
		}
		a.d.report(errors.New("connection refused"))
		for range 180 {
			<-time.After(time.Second)
			a.d.report(errors.New("connection refused"))
		}
		lines(1)
		if cure := a.d.refusal(); cure != "" {
			t.Errorf("the cure of an outage is %q", cure)
		}
		for range 181 { // the server is back, and refuses
			a.d.report(fmt.Errorf("database: %w", refusedError{errors.New("wrong password")}))
			<-time.After(time.Second)
		}
		lines(5)
		if n := strings.Count(text.String(), `level=ERROR msg="database refuses the relay" err="database: wrong password" cure="fix the password"`); n != 4 {
			t.Errorf("%d reminders in three minutes, want 4:\n%s", n, text.String())
		}
		if n := a.told(); n != 1 {
			t.Errorf("%d incidents, want 1", n)
		}
		if cure := a.d.refusal(); cure != "fix the password" {
			t.Errorf("the cure of the refusal is %q", cure)
		}
		if a.d.report(nil); a.d.refusal() != "" {
			t.Error("a refusal that has ended has a cure")
		}
		a.d.settle(0)
		a.d.report(refusedError{errors.New("wrong password")}) // another one, and at once
		lines(7)
	})
}

// TestOutageEndsWithTheRelay: nothing is reported after the end, whenever the database answers again.
func TestOutageEndsWithTheRelay(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(h *database){
		"calm at the end": func(h *database) { h.report(nil); h.end() },
		"lost at the end": func(h *database) { h.end(); h.report(nil) },
		"lost for good":   (*database).end,
	} {
		synctest.Test(t, func(t *testing.T) {
			a := &asking{}
			a.d = &database{log: slog.New(slog.DiscardHandler), observer: a}
			a.d.report(errors.New("gone"))
			act(a.d)
			told := a.told()
			<-time.After(2 * calm)
			synctest.Wait()
			if a.told() != told {
				t.Errorf("%s: %d incidents after the end", name, a.told()-told)
			}
			if want := map[bool]int{true: 1, false: 2}[name == "lost for good"]; told != want {
				t.Errorf("%s: %d incidents, want %d", name, told, want)
			}
		})
	}
}
