package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// silence has the cluster take produce requests and leave them unanswered until over
// is called, by the end of the test at the latest. A cluster
// that is closed in the moment when a request is about to be held hangs for ever: so
// nothing more is held then, and it is closed when all that was held has gone on.
func silence(t *testing.T, c *kfake.Cluster) (asked <-chan struct{}, over func()) {
	t.Helper()
	taken, free := make(chan struct{}, 1000), make(chan struct{})
	var (
		mu    sync.Mutex
		ended bool
		held  sync.WaitGroup
	)
	hold := func() bool {
		mu.Lock()
		defer mu.Unlock()
		if !ended {
			held.Add(1)
		}
		return !ended
	}
	onProduce(c, func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		taken <- struct{}{}
		if hold() {
			defer held.Done()
			c.SleepControl(func() { <-free })
		}
		return nil, nil, false
	})
	over = sync.OnceFunc(func() { close(free) })
	t.Cleanup(func() {
		over()
		mu.Lock()
		ended = true
		mu.Unlock()
		held.Wait()
	})
	return taken, over
}

func TestCancelEndsADelivery(t *testing.T) {
	t.Parallel()
	for _, transactional := range []bool{false, true} {
		t.Run(fmt.Sprint("transactional=", transactional), func(t *testing.T) {
			t.Parallel()
			c := fake(t, 1)
			asked, over := silence(t, c)
			h := open(t, c.ListenAddrs(), func(cfg *Config) {
				cfg.Transactional = transactional
				// What the held request may leave open, the broker aborts after this and
				// 5 s, well before the reader loses patience.
				cfg.DeliveryTimeout = 10 * time.Second
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			cause := errors.New("the relay is stopping")
			done := make(chan []error)
			go func() { done <- h.DeliverBatch(ctx, events(1, 2)) }()
			<-asked
			cancel(cause)
			for _, err := range <-done {
				if !errors.Is(err, cause) {
					t.Errorf("error %v is not the cause of the context's end", err)
				}
			}
			over()
			deliverytest.Deliver(t, h, events(3))
			if got := written(t, c.ListenAddrs(), "t", 1, kgo.FetchIsolationLevel(kgo.ReadCommitted()))[0]; !slices.IsSorted(got) || got[len(got)-1] != 3 {
				t.Errorf("written: %d", got)
			}
		})
	}
}

func TestDeliveryTimeout(t *testing.T) {
	t.Parallel()
	c := fake(t, 1)
	silence(t, c)
	h := open(t, c.ListenAddrs(), func(cfg *Config) { cfg.DeliveryTimeout = 200 * time.Millisecond })
	err := h.Deliver(t.Context(), events(1)[0])
	deliverytest.WantClass(t, err, "unavailable")
	deliverytest.WantText(t, err, "delivery_timeout of 200ms")
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	h := open(t, []string{"127.0.0.1:1"}, func(cfg *Config) { cfg.DeliveryTimeout = patience })
	err := h.Deliver(t.Context(), events(1)[0])
	deliverytest.WantClass(t, err, "unavailable")
	deliverytest.WantText(t, err, "127.0.0.1:1", "refused")
}

// TestStaleBatchIsRefused holds a request back on its way, lets its batch be given
// up and delivered again together with a newer event, and then lets the request
// arrive.
func TestStaleBatchIsRefused(t *testing.T) {
	t.Parallel()
	c := fake(t, 1)
	h := open(t, c.ListenAddrs())
	// The connection of the request that is held back is to be given up soon.
	h.options = append(h.options, kgo.ProduceRequestTimeout(100*time.Millisecond), kgo.RequestTimeoutOverhead(time.Second))
	deliverytest.Deliver(t, h, events(1))
	var held atomic.Bool
	asked, over, passed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	onProduce(c, func(*kmsg.ProduceRequest) (kmsg.Response, error, bool) {
		if held.CompareAndSwap(false, true) {
			close(asked)
			c.SleepControl(func() { <-over })
			close(passed)
		}
		return nil, nil, false
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan []error)
	go func() { done <- h.DeliverBatch(ctx, events(2, 3)) }()
	<-asked
	cancel()
	for _, err := range <-done {
		deliverytest.WantClass(t, err, "relay")
	}
	deliverytest.Deliver(t, h, events(2, 3, 4))
	close(over)
	<-passed
	deliverytest.Deliver(t, h, events(5))
	if got := written(t, c.ListenAddrs(), "t", 5)[0]; !slices.Equal(got, deliverytest.UpTo(5)) {
		t.Errorf("written: %d", got)
	}
}

// TestFirstRecordOfATopicGoesAlone has the first request of a client fail: nothing
// that was waiting for the topic's partitions may overtake what was in it.
func TestFirstRecordOfATopicGoesAlone(t *testing.T) {
	t.Parallel()
	c := fake(t, 2)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.UnknownServerError, Count: 1})
	h := open(t, c.ListenAddrs(), func(cfg *Config) { cfg.MaxMessageBytes = 1024 })
	all := events(deliverytest.UpTo(300)...)
	for i, err := range h.DeliverBatch(t.Context(), all) {
		if err == nil {
			t.Fatalf("event %d overtook the first", all[i].ID)
		}
	}
	deliverytest.Deliver(t, h, all)
	inOrderOnce(t, written(t, c.ListenAddrs(), "t", len(all)), len(all))
}
