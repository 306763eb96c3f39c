package stream

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/wake"
)

// untilLogged is a log that calls found when it has a text.
type untilLogged struct {
	mu    sync.Mutex
	text  bytes.Buffer
	want  string
	found func()
}

func (l *untilLogged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(b)
	if strings.Contains(l.text.String(), l.want) {
		l.found()
	}
	return len(b), nil
}

// TestPanicOfAShard: a panic in the goroutine of a shard is reported as a refused statement, with its stack, and does not
// end the process.
func TestPanicOfAShard(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	log := &untilLogged{want: "a shard panicked", found: stop}
	d, err := dispatch.New(dispatch.Config{Window: 50 * time.Millisecond}, nil, slog.New(slog.NewJSONHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{d: d, log: slog.New(slog.DiscardHandler), ctx: ctx, wake: new(wake.Machine), shards: make(map[shardKey]*activeShard)}
	at := shardKey{"mail", 0}
	e.gained(lease.Lease{Destination: at.destination}) // the engine has no pool, so loading the position panics
	<-e.shards[at].over
	for _, want := range []string{"database refuses a statement", "a shard panicked", "stream.(*Engine).serve"} {
		if text := log.text.String(); !strings.Contains(text, want) {
			t.Errorf("%q is missing in the log:\n%s", want, text)
		}
	}
}
