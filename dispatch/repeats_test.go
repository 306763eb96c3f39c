package dispatch

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestRepeats: ten failures of a kind have a line of their own, the others are counted. Another kind is not affected.
func TestRepeats(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	r := &repeats{every: time.Hour}
	fail := func(n int, format string) {
		for i := range n {
			r.log(log, log.With("event_id", i), slog.LevelWarn, "delivery failed", fmt.Errorf(format, i))
		}
	}
	fail(322, "event %d: HTTP 409")
	fail(1, "event %d: HTTP 500 of another server")
	if n := strings.Count(text.String(), "msg=\"delivery failed\""); n != shownRepeats+1 {
		t.Errorf("%d lines:\n%s", n, text.String())
	}

	text.Reset()
	r.end(log)
	if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=WARN msg="delivery failed" more_like_it=312 err="event 321: HTTP 409"`) {
		t.Errorf("the count:\n%s", got)
	}

	// The flood goes on: no further line of its own. When it is over, the kind is forgotten.
	text.Reset()
	fail(5, "event %d: HTTP 409")
	r.count(log)
	r.count(log)
	if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "more_like_it=5") {
		t.Errorf("%s", got)
	}
	fail(1, "event %d: HTTP 409")
	r.end(log)
	if n := strings.Count(text.String(), "\n"); n != 2 {
		t.Errorf("%d lines:\n%s", n, text.String())
	}

	// Any number of kinds is bounded.
	text.Reset()
	for i := range 1000 {
		r.log(log, log, slog.LevelWarn, "delivery failed", errors.New(strings.Repeat("x", i)))
	}
	if n := strings.Count(text.String(), "\n"); n != maxKinds+shownRepeats {
		t.Errorf("%d lines", n)
	}
	r.end(log)
}
