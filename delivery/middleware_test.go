package delivery

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// full is a handler that can do everything.
type full struct{ BatchHandlerFunc }

func (full) KeepsOrder() bool               { return true }
func (full) Check(context.Context) error    { return errors.New("checked") }
func (full) MaxBytes() int                  { return 7 }
func (full) Report() Report                 { return Report{Unconfirmed: 3} }
func (full) Preview(*Event) (string, error) { return "preview", nil }

// newFull returns one that fails the events of the type "bad", and notes the sizes of calls.
func newFull(sizes *[]int) full {
	return full{func(_ context.Context, events []*Event) []error {
		*sizes = append(*sizes, len(events))
		errs := make([]error, len(events))
		for i, e := range events {
			if e.Type == "bad" {
				errs[i] = errors.New(e.Type)
			}
		}
		return errs
	}}
}

// unordered does not keep the order of a batch.
type unordered struct{ full }

func (unordered) KeepsOrder() bool { return false }

// plain is middleware as people write it.
func plain(next Handler) Handler {
	return HandlerFunc(func(ctx context.Context, e *Event) error { return next.Deliver(ctx, e) })
}

// batching is middleware that takes batches, and says nothing about their order.
func batching(next Handler) Handler {
	return BatchHandlerFunc(func(ctx context.Context, events []*Event) []error {
		return next.(BatchHandler).DeliverBatch(ctx, events) //nolint:forcetypeassert // for handlers of batches
	})
}

// disordering is middleware that takes batches, and says that it keeps no order.
func disordering(next Handler) Handler {
	return disorder{batching(next).(BatchHandler)} //nolint:forcetypeassert // it is one
}

type disorder struct{ BatchHandler }

func (disorder) KeepsOrder() bool { return false }

// checked answers a check itself.
type checked struct{ Handler }

func (checked) Check(context.Context) error { return errors.New("checked by middleware") }

// counting is made with Around.
func counting(n *int) Middleware {
	return Around(func(ctx context.Context, e *Event) (context.Context, *Event, func(error)) {
		return ctx, e, func(error) { *n++ }
	})
}

func TestChainCallsTheFirstOutermost(t *testing.T) {
	t.Parallel()
	var order []string
	mw := func(name string) Middleware {
		return func(next Handler) Handler {
			return HandlerFunc(func(ctx context.Context, e *Event) error {
				order = append(order, name)
				return next.Deliver(ctx, e)
			})
		}
	}
	h, err := Chain(HandlerFunc(func(context.Context, *Event) error { order = append(order, "handler"); return nil }), mw("1"), mw("2"), mw("3"))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Deliver(t.Context(), &Event{}); err != nil || !slices.Equal(order, []string{"1", "2", "3", "handler"}) {
		t.Errorf("order %v, %v", order, err)
	}
}

// TestChainLosesNothing: a handler that was wrapped can do what it could, or there is an
// error that says what it could not.
func TestChainLosesNothing(t *testing.T) {
	t.Parallel()
	var n int
	var sizes []int
	keeping, single := newFull(&sizes), checked{HandlerFunc(func(context.Context, *Event) error { return nil })}
	for name, c := range map[string]struct {
		h              Handler
		mw             []Middleware
		wrong          string // part of the error
		batches, keeps bool
	}{
		"none":                        {h: keeping, batches: true, keeps: true},
		"around":                      {h: keeping, mw: []Middleware{counting(&n), counting(&n)}, batches: true, keeps: true},
		"plain":                       {h: keeping, mw: []Middleware{plain}, wrong: "number 1 of 1, from the outside, takes one event at a time"},
		"plain outside":               {h: keeping, mw: []Middleware{plain, counting(&n)}, wrong: "number 1 of 2"},
		"plain inside":                {h: keeping, mw: []Middleware{counting(&n), plain}, wrong: "number 2 of 2"},
		"given up":                    {h: OneByOne(keeping), mw: []Middleware{plain, counting(&n)}},
		"silent about order":          {h: keeping, mw: []Middleware{batching}, wrong: "method KeepsOrder"},
		"without order":               {h: keeping, mw: []Middleware{counting(&n), disordering}, batches: true},
		"no order to lose":            {h: unordered{keeping}, mw: []Middleware{batching}, batches: true},
		"nothing to lose":             {h: single, mw: []Middleware{plain, counting(&n)}},
		"batches of a single":         {h: single, mw: []Middleware{func(Handler) Handler { return newFull(&sizes) }}, batches: true, keeps: true},
		"no handler":                  {h: single, mw: []Middleware{func(Handler) Handler { return nil }}, wrong: "returned no handler"},
		"around a middleware's batch": {h: single, mw: []Middleware{counting(&n), func(Handler) Handler { return newFull(&sizes) }}, batches: true, keeps: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, err := Chain(c.h, c.mw...)
			if c.wrong != "" {
				if !errors.Is(err, ErrMiddleware) || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("error %v, want %q", err, c.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			_, batches := h.(BatchHandler)
			if batches != c.batches || keepsOrder(h) != c.keeps {
				t.Errorf("batches %t, keeps order %t", batches, keepsOrder(h))
			}
			if checker, ok := As[Checker](h); !ok || checker.Check(t.Context()) == nil {
				t.Error("the check is gone")
			}
		})
	}
}

// TestAsGoesThroughMiddleware: what changes nothing about deliveries is found behind
// middleware that knows nothing of it.
func TestAsGoesThroughMiddleware(t *testing.T) {
	t.Parallel()
	var n int
	var sizes []int
	h, err := Chain(OneByOne(newFull(&sizes)), counting(&n), plain, plain)
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := As[Sizer](h); !ok || s.MaxBytes() != 7 {
		t.Error("no size")
	}
	if r, ok := As[Reporter](h); !ok || r.Report().Unconfirmed != 3 {
		t.Error("no report")
	}
	if p, ok := As[Previewer](h); !ok {
		t.Error("no preview")
	} else if text, err := p.Preview(&Event{}); err != nil || text != "preview" {
		t.Errorf("preview %q, %v", text, err)
	}
	if _, ok := As[interface{ Nothing() }](h); ok {
		t.Error("found what is not there")
	}
	if _, ok := As[Checker](nil); ok {
		t.Error("no handler can be checked")
	}
	if h, err = Chain(newFull(&sizes), counting(&n), Around(func(ctx context.Context, e *Event) (context.Context, *Event, func(error)) {
		return ctx, e, func(error) {}
	})); err != nil {
		t.Fatal(err)
	}
	if c, ok := As[Checker](h); !ok || c.Check(t.Context()).Error() != "checked" {
		t.Error("no check")
	}
	if h, err = Chain(h, func(Handler) Handler { return checkedBatch{full: newFull(&sizes)} }); err != nil {
		t.Fatal(err)
	}
	if c, ok := As[Checker](h); !ok || c.Check(t.Context()).Error() != "checked by middleware" {
		t.Error("the middleware's own check is not the one that is found")
	}
}

type checkedBatch struct{ full }

func (checkedBatch) Check(context.Context) error { return errors.New("checked by middleware") }

// TestAround: a begin and an answer for each event, one call for a batch.
func TestAround(t *testing.T) {
	t.Parallel()
	var sizes []int
	var begun, answers []string
	h, ok := Around(func(ctx context.Context, e *Event) (context.Context, *Event, func(error)) {
		begun = append(begun, e.Type)
		sent := *e
		sent.Type = strings.TrimPrefix(e.Type, "x-")
		return ctx, &sent, func(err error) {
			if err == nil {
				err = errors.New("none")
			}
			answers = append(answers, e.Type+": "+err.Error())
		}
	})(newFull(&sizes)).(BatchHandler)
	if !ok {
		t.Fatal("it takes no batches")
	}
	errs := h.DeliverBatch(t.Context(), []*Event{{Type: "x-good"}, {Type: "x-bad"}})
	if len(errs) != 2 || errs[0] != nil || errs[1] == nil {
		t.Errorf("answers %v", errs)
	}
	if err := h.Deliver(t.Context(), &Event{Type: "x-bad"}); err == nil {
		t.Error("no error")
	}
	if !slices.Equal(sizes, []int{2, 1}) || !slices.Equal(begun, []string{"x-good", "x-bad", "x-bad"}) ||
		!slices.Equal(answers, []string{"x-good: none", "x-bad: bad", "x-bad: bad"}) {
		t.Errorf("calls %v, begun %v, answers %v", sizes, begun, answers)
	}
}

// TestAroundBadAnswers: each event has an end, whatever the handler does.
func TestAroundBadAnswers(t *testing.T) {
	t.Parallel()
	var answers []error
	mw := Around(func(ctx context.Context, e *Event) (context.Context, *Event, func(error)) {
		return ctx, e, func(err error) { answers = append(answers, err) }
	})
	two := []*Event{{}, {}}
	for name, c := range map[string]struct {
		f    BatchHandlerFunc
		want string // "" for no error
	}{
		"panic":     {func(context.Context, []*Event) []error { panic("no") }, "panicked"},
		"miscounts": {func(context.Context, []*Event) []error { return make([]error, 3) }, "3 answers for 2 events"},
		"all well":  {func(context.Context, []*Event) []error { return nil }, ""},
	} {
		answers = nil
		func() {
			defer func() {
				if p := recover(); (p != nil) != (name == "panic") {
					t.Errorf("%s: panic %v", name, p)
				}
			}()
			mw(c.f).(BatchHandler).DeliverBatch(t.Context(), two) //nolint:forcetypeassert // or the test panics
		}()
		if len(answers) != 2 {
			t.Errorf("%s: %d ends, want 2", name, len(answers))
		}
		for _, err := range answers {
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: answer %v", name, err)
			}
		}
	}
}

// TestAroundEndsWhatHasBegun: where a Begin or an end panics, or ends the goroutine, every Begin that has returned has its end.
func TestAroundEndsWhatHasBegun(t *testing.T) {
	t.Parallel()
	three := []*Event{{ID: 1}, {ID: 2}, {ID: 3}}
	for name, c := range map[string]struct {
		begin, end func(id int64)
		want       int
	}{
		"a begin panics":   {begin: func(id int64) { failAt(id, 3) }, want: 2},
		"a begin exits":    {begin: func(id int64) { exitAt(id, 3) }, want: 2},
		"an end panics":    {end: func(id int64) { failAt(id, 2) }, want: 3},
		"the last one too": {end: func(id int64) { failAt(id, 3) }, want: 3},
		"an end exits":     {end: func(id int64) { exitAt(id, 2) }, want: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended, called := make(map[int64]error), false
			mw := Around(func(ctx context.Context, e *Event) (context.Context, *Event, func(error)) {
				if c.begin != nil {
					c.begin(e.ID)
				}
				return ctx, e, func(err error) {
					ended[e.ID] = err
					if c.end != nil {
						c.end(e.ID)
					}
				}
			})(BatchHandlerFunc(func(context.Context, []*Event) []error {
				called = true
				return nil
			}))
			over := make(chan struct{})
			go func() {
				defer close(over)
				defer func() { _ = recover() }()
				mw.(BatchHandler).DeliverBatch(t.Context(), three) //nolint:forcetypeassert // or the test panics
			}()
			<-over
			if len(ended) != c.want {
				t.Errorf("%d ends, want %d", len(ended), c.want)
			}
			for id, err := range ended {
				if (err == nil) != called {
					t.Errorf("event %d: %v, though the handler was called: %t", id, err, called)
				}
			}
		})
	}
}

func failAt(id, at int64) {
	if id == at {
		panic("no")
	}
}

func exitAt(id, at int64) {
	if id == at {
		runtime.Goexit()
	}
}
