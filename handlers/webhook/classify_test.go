package webhook

import (
	"testing"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// TestClassify is the failure table of docs/destinations/webhook.md.
func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o       observation
		fixed   outcome.Class // the host stands in the configuration
		dynamic outcome.Class // the event chose it
	}{
		{observation{at: stageDraft}, outcome.Permanent, outcome.Permanent},
		{observation{at: stageBlocked}, outcome.Unavailable, outcome.Permanent},
		{observation{at: stageTurn}, outcome.Throttled, outcome.Retry},
		{observation{at: stageTurn, shut: true}, outcome.Unavailable, outcome.Retry},
		{observation{at: stageConnect}, outcome.Unavailable, outcome.Retry},
		{observation{at: stageTLS}, outcome.Unavailable, outcome.Retry},
		{observation{at: stageSend}, outcome.Unavailable, outcome.Retry},
		{observation{at: stageWait}, outcome.Unavailable, outcome.Retry},
		{observation{at: stageConnect, proxy: true}, outcome.Unavailable, outcome.Unavailable},
		{observation{at: stageAnswer, code: 407, proxy: true}, outcome.Unauthorized, outcome.Unauthorized},
		{observation{at: stageAnswer, code: 404, constant: true}, outcome.Unavailable, outcome.Retry},
		{observation{at: stageAnswer, code: 404}, outcome.Unclear, outcome.Retry},
		{observation{at: stageAnswer, code: 402, constant: true}, outcome.Unavailable, outcome.Retry},
		{observation{at: stageAnswer, code: 405, constant: true}, outcome.Unavailable, outcome.Retry},
		{observation{at: stageAnswer, code: 400, constant: true}, outcome.Unclear, outcome.Retry},
		{observation{at: stageAnswer, code: 410, constant: true}, outcome.Unclear, outcome.Permanent},
		{observation{at: stageAnswer, code: 422, constant: true}, outcome.Permanent, outcome.Permanent},
		{observation{at: stageAnswer, code: 500, constant: true}, outcome.UnclearRetry, outcome.Retry},
	} {
		for _, dynamic := range []bool{false, true} {
			want := c.fixed
			c.o.dynamic = dynamic
			if dynamic {
				want = c.dynamic
			}
			if got := classify(c.o); got != want {
				t.Errorf("%+v is class %d, want %d", c.o, got, want)
			}
		}
	}
}

func TestClassOfEveryStatus(t *testing.T) {
	t.Parallel()
	want := map[int]outcome.Class{
		401: outcome.Unavailable, 403: outcome.Unavailable, 407: outcome.Unauthorized, 421: outcome.Unavailable, 426: outcome.Unavailable, 429: outcome.Throttled,
		408: outcome.UnclearRetry, 409: outcome.Retry, 413: outcome.Permanent, 422: outcome.Permanent, 423: outcome.Retry, 424: outcome.Retry, 425: outcome.Retry,
		501: outcome.Unavailable, 502: outcome.Unavailable, 503: outcome.Unavailable, 504: outcome.Unavailable, 505: outcome.Unavailable, 507: outcome.Unavailable, 511: outcome.Unavailable,
	}
	for code := 520; code <= 530; code++ {
		want[code] = outcome.Unavailable
	}
	for code := 100; code < 600; code++ {
		w, ok := want[code]
		switch {
		case ok:
		case code < 200, code >= 300 && code < 400:
			w = outcome.Unavailable
		case code < 300:
			if !isDelivered(code) {
				t.Errorf("%d is not a success", code)
			}
			continue
		case code < 500:
			w = outcome.Unclear
		default:
			w = outcome.UnclearRetry
		}
		if got := classify(observation{at: stageAnswer, code: code}); got != w || isDelivered(code) {
			t.Errorf("%d is class %d, want %d", code, got, w)
		}
	}
}
