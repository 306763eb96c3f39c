package dispatch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/notifyd/notifyd/delivery"
)

// nilError is an error of a handler that forgets that a nil pointer in an interface is not nil.
type nilError struct{ text string }

func (e *nilError) Error() string   { return e.text }
func (e *nilError) Permanent() bool { return e.text == "never" }

// traps is an error whose methods panic, or worse, where they are named.
type traps struct {
	method string
	does   func()
}

func (t traps) in(method string) {
	if t.method == method {
		t.does()
	}
}

func (t traps) Error() string             { t.in("Error"); return "a trap" }
func (t traps) Unwrap() error             { t.in("Unwrap"); return nil }
func (t traps) Is(error) bool             { t.in("Is"); return false }
func (t traps) As(any) bool               { t.in("As"); return false }
func (t traps) Permanent() bool           { t.in("Permanent"); return false }
func (t traps) Unavailable() bool         { t.in("Unavailable"); return false }
func (t traps) Throttled() bool           { t.in("Throttled"); return false }
func (t traps) RetryAfter() time.Duration { t.in("RetryAfter"); return -time.Hour }

// panicking is a value that cannot even be printed.
type panicking struct{}

func (p panicking) Error() string { panic(p) }

// harms are the ways in which a handler may return, or fail to. Each is a failed attempt.
func harms() map[string]func() error {
	var nobody *nilError
	all := map[string]func() error{
		"a typed nil":                 func() error { return nobody },
		"a typed nil, wrapped":        func() error { return fmt.Errorf("call: %w", nobody) },
		"a typed nil, joined":         func() error { return errors.Join(errors.New("x"), nobody) },
		"a typed nil, marked":         func() error { return delivery.Permanent(nobody) },
		"100 MB":                      func() error { return errors.New(strings.Repeat("x", 100<<20)) },
		"no UTF-8, and zero bytes":    func() error { return errors.New("a\x00\xff\xfe\x00b") },
		"a panic":                     func() error { panic("x") },
		"a panic with a typed nil":    func() error { panic(nobody) },
		"a panic that panics":         func() error { panic(panicking{}) },
		"a panic with 100 MB":         func() error { panic(strings.Repeat("x", 100<<20)) },
		"a panic with nil":            func() error { panic(nil) },
		"the end of its goroutine":    func() error { runtime.Goexit(); return nil },
		"a text that ends goroutines": func() error { return traps{"Error", runtime.Goexit} },
		"a text that never ends":      func() error { return traps{"Error", func() { time.Sleep(time.Hour) }} }, //nolint:forbidigo // of the bubble
	}
	for _, method := range []string{"Error", "Unwrap", "Is", "As", "Permanent", "Unavailable", "Throttled", "RetryAfter"} {
		all["an error that panics in "+method] = func() error { return traps{method, func() { panic(panicking{}) }} }
	}
	return all
}

// TestNothingThatAHandlerReturnsDoesHarm: in every case the event has failed, its text is fit for
// logs, alerts and tables, and the other event is delivered.
func TestNothingThatAHandlerReturnsDoesHarm(t *testing.T) {
	t.Parallel()
	for name, harm := range harms() {
		for form, batch := range map[string]bool{"one by one": false, "batches": true} {
			t.Run(name+"/"+form, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					one := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
						if e.ID == 1 {
							return harm()
						}
						return nil
					})
					var h delivery.Handler = one
					if batch {
						h = delivery.BatchHandlerFunc(func(ctx context.Context, events []*delivery.Event) []error { return []error{one(ctx, events[0])} })
					}
					cfg := testLane()
					cfg.Batch = 1
					for cfg.MaxAttempts = 1; cfg.MaxAttempts < 3; cfg.MaxAttempts++ { // the first is the last, and it is not
						checkHarm(t, h, cfg)
					}
				})
			})
		}
	}
}

func checkHarm(t *testing.T, h delivery.Handler, cfg LaneConfig) {
	t.Helper()
	l, o := overheardLane(h, cfg)
	p := claimOf(l, 2)
	after(2 * time.Hour)
	l.goroutines.Wait()
	n, answers, left := p.Take()
	if n != 1 || len(answers) != 1 || left != 0 {
		t.Fatalf("%d delivered, %d answers, %d left", n, len(answers), left)
	}
	a, want := answers[0], VerdictFailed
	if cfg.MaxAttempts == 1 {
		want = VerdictDead
	}
	if a.Verdict != want || a.Failures != 1 || a.Class != delivery.ClassEvent || a.Delay < 0 || a.Delay > 2*time.Minute {
		t.Errorf("%+v", a)
	}
	text := a.Err.Error()
	if text == "" || len(text) > 10<<10 || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		t.Errorf("the text of the error has %d bytes: %.200q", len(text), text)
	}
	for _, i := range o.all {
		if i.Err.Error() != text {
			t.Errorf("observers hear %.200q", i.Err.Error())
		}
	}
	if len(o.kinds()) != 2-cfg.MaxAttempts || o.logged("level=ERROR")+o.logged("level=WARN") == 0 {
		t.Errorf("incidents %v, and in the log: %s", o.kinds(), o.text.String())
	}
}

// TestRepliesKeepTheirError: an observer of an incident finds the handler's own error.
func TestRepliesKeepTheirError(t *testing.T) {
	t.Parallel()
	inner := &nilError{"inner"}
	l := newTestLane(delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
		return fmt.Errorf("call: %w", delivery.RetryAfter(time.Minute, inner))
	}), testLane())
	r := l.target.call(t.Context(), &delivery.Event{})
	var found *nilError
	if !errors.As(r, &found) || found != inner || r.Error() != "call: inner" || r.Delay != time.Minute || r.Permanent {
		t.Errorf("%+v", r)
	}
}

// rude is an observer, and a Reporter, that panics.
type rude struct{ delivery.Handler }

func (rude) Observe(delivery.Incident) { panic(panicking{}) }
func (rude) Report() delivery.Report   { panic(panicking{}) }
func (rude) KeepsOrder() bool          { panic(panicking{}) }
func (rude) DeliverBatch(context.Context, []*delivery.Event) []error {
	return nil
}

// TestObserversAndReportersMayPanic: the panic is logged, and nothing else changes.
func TestObserversAndReportersMayPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &overheard{}
		log := overheardLog(o)
		d, err := New(Config{Window: time.Second}, rude{}, log)
		if err != nil {
			t.Fatal(err)
		}
		one := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
			switch e.ID {
			case 1:
				return delivery.Permanent(errors.New("never"))
			case 2:
				return delivery.Unavailable(errors.New("down"))
			}
			return nil
		})
		cfg := testLane()
		cfg.Concurrency = 1
		if err := d.Add("a", struct {
			delivery.Handler
			delivery.Reporter
		}{one, rude{}}, cfg); err != nil {
			t.Fatal(err)
		}
		if err := d.Add("b", rude{one}, cfg); !errors.Is(err, ErrDestination) {
			t.Errorf("a handler that panics when it is added: %v", err)
		}
		d.Begin(t.Context())
		l := d.lanes[0]
		p := claimOf(l, 2)
		l.goroutines.Wait()
		if all, left := verdicts(t, p); all[VerdictDead] != 1 || all[VerdictQuarantined] != 1 || left != 0 {
			t.Errorf("answers %v, %d have none", all, left)
		}
		d.ReportDatabase(errors.New("lost"))
		for range 3 {
			if s := d.Stats(); len(s.Destinations) != 1 || s.Destinations[0].Report != nil {
				t.Errorf("%+v", s)
			}
		}
		if n, m := o.logged("incident observer failed"), o.logged("handler's Report method failed"); n != 3 || m != 1 {
			t.Errorf("logged %d times for the observer, %d times for the handler", n, m)
		}
		l.drop()
	})
}
