package delivery

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"
)

// foreign is an error type of some other package.
type foreign struct {
	permanent, unavailable bool
	delay                  time.Duration
}

func (*foreign) Error() string               { return "foreign" }
func (e *foreign) Permanent() bool           { return e.permanent }
func (e *foreign) Unavailable() bool         { return e.unavailable }
func (e *foreign) RetryAfter() time.Duration { return e.delay }

func TestMarksOfErrors(t *testing.T) {
	t.Parallel()
	wrap := func(err error) error { return fmt.Errorf("call: %w", err) }
	const none = -1
	for name, tc := range map[string]struct {
		err                    error
		permanent, unavailable bool
		delay                  time.Duration
	}{
		"nil":                     {nil, false, false, none},
		"plain":                   {io.EOF, false, false, none},
		"permanent":               {Permanent(io.EOF), true, false, none},
		"permanent, wrapped":      {wrap(wrap(Permanent(io.EOF))), true, false, none},
		"permanent, joined":       {errors.Join(io.ErrClosedPipe, Permanent(io.EOF)), true, false, none},
		"unavailable":             {wrap(Unavailable(io.EOF)), false, true, none},
		"retry after":             {wrap(RetryAfter(time.Second, io.EOF)), false, false, time.Second},
		"retry after, negative":   {RetryAfter(-time.Second, io.EOF), false, false, 0},
		"all three":               {Permanent(wrap(RetryAfter(time.Hour, Unavailable(io.EOF)))), true, true, time.Hour},
		"unclear":                 {wrap(Unclear(io.EOF)), false, false, none},
		"unclear, permanent":      {Unclear(wrap(Permanent(io.EOF))), false, false, none},
		"foreign":                 {wrap(&foreign{true, true, time.Minute}), true, true, time.Minute},
		"foreign, says otherwise": {&foreign{}, false, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := IsPermanent(tc.err); got != tc.permanent {
				t.Errorf("IsPermanent: %t", got)
			}
			if got := IsUnavailable(tc.err); got != tc.unavailable {
				t.Errorf("IsUnavailable: %t", got)
			}
			got, ok := RetryDelay(tc.err)
			if ok != (tc.delay != none) || ok && got != tc.delay {
				t.Errorf("RetryDelay: %v %t", got, ok)
			}
		})
	}
}

func TestMarksKeepNilAndTheChain(t *testing.T) {
	t.Parallel()
	for name, mark := range map[string]func(error) error{
		"Permanent":   Permanent,
		"Unavailable": Unavailable,
		"RetryAfter":  func(err error) error { return RetryAfter(time.Second, err) },
	} {
		if err := mark(nil); err != nil {
			t.Errorf("%s(nil) is %v", name, err)
		}
		err := mark(fmt.Errorf("call: %w", &foreign{}))
		var f *foreign
		if !errors.As(err, &f) || err.Error() != "call: foreign" || !errors.Is(mark(io.EOF), io.EOF) {
			t.Errorf("%s hides its cause: %v", name, err)
		}
	}
}

func TestClassNames(t *testing.T) {
	t.Parallel()
	for class, want := range map[Class]string{ClassEvent: "event", ClassDestination: "destination", ClassRelay: "relay", 9: "class(9)"} {
		if got := class.String(); got != want {
			t.Errorf("class %d is %q", class, got)
		}
	}
}

// TestUnclear: the mark hides Permanent until the event is known to be at fault.
func TestUnclear(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err                error
		unclear, permanent bool
	}{
		"nil":                {nil, false, false},
		"permanent":          {Permanent(io.EOF), false, true},
		"unclear":            {Unclear(io.EOF), true, false},
		"unclear, permanent": {fmt.Errorf("call: %w", Unclear(Permanent(io.EOF))), true, true},
		"permanent, unclear": {Permanent(Unclear(io.EOF)), true, false},
	} {
		if got := IsUnclear(c.err); got != c.unclear {
			t.Errorf("%s: unclear is %t", name, got)
		}

		proven := Proven(c.err)
		if got := IsPermanent(proven); got != c.permanent {
			t.Errorf("%s: once proven, permanent is %t", name, got)
		}
		if IsUnclear(proven) || c.err != nil && !errors.Is(proven, io.EOF) {
			t.Errorf("%s: once proven, it is %v", name, proven)
		}
	}

	if Unclear(nil) != nil {
		t.Error("Unclear(nil) is an error")
	}
}
