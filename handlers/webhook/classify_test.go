package webhook

import (
	"errors"
	"testing"
	"time"
)

// TestClassify is the failure table of docs/destinations/webhook.md.
func TestClassify(t *testing.T) {
	t.Parallel()
	names := map[class]string{delivered: "delivered", refused: "refused", suspected: "suspected", down: "down", throttled: "throttled"}
	for _, c := range []struct {
		o       observation
		fixed   class // the host stands in the configuration
		dynamic class // the event chose it
	}{
		{observation{at: stageDraft}, refused, refused},
		{observation{at: stageBlocked}, down, refused},
		{observation{at: stageTurn}, throttled, suspected},
		{observation{at: stageTurn, shut: true}, down, suspected},
		{observation{at: stageConnect}, down, suspected},
		{observation{at: stageTLS}, down, suspected},
		{observation{at: stageSend}, down, suspected},
		{observation{at: stageWait}, down, suspected},
		{observation{at: stageConnect, proxy: true}, down, down},
		{observation{at: stageAnswer, code: 407, proxy: true}, down, down},
		{observation{at: stageAnswer, code: 404, constant: true}, down, suspected},
		{observation{at: stageAnswer, code: 410, constant: true}, refused, refused},
	} {
		for _, dynamic := range []bool{false, true} {
			want := c.fixed
			c.o.dynamic = dynamic
			if dynamic {
				want = c.dynamic
			}
			if got := classify(c.o); got != want {
				t.Errorf("%+v is %s, want %s", c.o, names[got], names[want])
			}
		}
	}
}

func TestClassOfEveryStatus(t *testing.T) {
	t.Parallel()
	want := map[int]class{
		401: down, 403: down, 405: down, 407: down, 421: down, 426: down, 429: throttled,
		408: suspected, 409: suspected, 423: suspected, 424: suspected, 425: suspected,
		501: down, 502: down, 503: down, 504: down, 505: down, 507: down, 511: down,
	}
	for code := 520; code <= 530; code++ {
		want[code] = down
	}
	for code := 100; code < 600; code++ {
		w, ok := want[code]
		switch {
		case ok:
		case code < 200, code >= 300 && code < 400:
			w = down
		case code < 300:
			w = delivered
		case code < 500:
			w = refused
		default:
			w = suspected
		}
		if got := classify(observation{at: stageAnswer, code: code}); got != w {
			t.Errorf("%d is class %d, want %d", code, got, w)
		}
	}
}

func TestMarks(t *testing.T) {
	t.Parallel()
	inner := errors.New("inner")
	for _, c := range []struct {
		class class
		wait  time.Duration
		want  string
	}{
		{refused, time.Minute, "permanent"},
		{down, time.Minute, "unavailable"},
		{throttled, 0, "throttled"},
		{throttled, time.Minute, "throttled for 1m0s"},
		{suspected, 0, "retry"},
		{suspected, time.Minute, "after 1m0s"},
	} {
		err := c.class.mark(&failure{wait: c.wait, err: inner, text: "text"})
		if got := verdictOn(err); got != c.want || !errors.Is(err, inner) || err.Error() != "webhook: text" {
			t.Errorf("class %d with a wait of %v is %s (%v), want %s", c.class, c.wait, got, err, c.want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"0": 0, "120": 2 * time.Minute, " 7 ": 7 * time.Second, "3600": time.Hour, "3601": time.Hour,
		"18446744073709551616":             time.Hour, // more than 64 bits
		"Sat, 21 Nov 2026 10:00:30 GMT":    30 * time.Second,
		"Saturday, 21-Nov-26 10:00:30 GMT": 30 * time.Second,
		"Sat Nov 21 10:00:30 2026":         30 * time.Second,
		"Sat, 21 Nov 2026 09:00:00 GMT":    0,
		"Sat, 21 Nov 2099 10:00:00 GMT":    time.Hour,
	} {
		if got, ok := retryAfter(value, now); got != want || !ok {
			t.Errorf("%q is %v, %t; want %v", value, got, ok, want)
		}
	}
	for _, value := range []string{"", "soon", "-1", "1.5", "0x10", "1e3", "2026-11-21T10:00:00Z"} {
		if got, ok := retryAfter(value, now); ok {
			t.Errorf("%q is %v, want none", value, got)
		}
	}
}
