package stream

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/tail"
)

// TestValidAgain: a renewal that comes late makes the lease valid again, and wakes no shard. So a shard that has found its
// lease not valid looks again soon, and not with the next poll.
func TestValidAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, err := dispatch.New(dispatch.Config{Window: 50 * time.Millisecond}, nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		h := delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })
		if err := d.Add("all", h, dispatch.LaneConfig{}); err != nil {
			t.Fatal(err)
		}
		lane := d.StreamLanes()[0]
		lane.Own(func() {})
		e := &Engine{writers: tail.NewWriterScanner(), limits: engine.Limits{Claims: 4, Batch: 1000, Bytes: 8 << 20, EventBytes: 64 << 20, PollInterval: time.Second}}
		e.limits.PollInterval = time.Hour
		sh := newShard(e, lane, position.Position{Lease: lease.Lease{Destination: "all"}})
		sh.loaded = true
		if did, err := sh.feed(t.Context(), nil); did || err != nil {
			t.Fatalf("fed %t, %v, without a valid lease", did, err)
		}
		began := time.Now()
		sh.wait(t.Context())
		if took := time.Since(began); took > leasePoll {
			t.Errorf("the shard waited for %v", took)
		}
	})
}
