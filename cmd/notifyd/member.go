package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/internal/config"
)

const (
	// firstRetry and longestRetry bound the pause after a relay has ended by itself: its tables are missing,
	// for example. Relays wait by themselves for a database that does not answer.
	firstRetry   = time.Second
	longestRetry = 30 * time.Second
)

// member is one of many outboxes in a daemon: a relay, and its successors. What becomes of it concerns no
// other.
type member struct {
	name  string
	build func(ctx context.Context, c *config.Config) (*generation, error)
	once  bool // the first relay is the only one
	// begun is called once, with the first relay.
	begun func(relay *live)
	ready func()
	// ended is called each time the member has ended.
	ended func()
	log   *slog.Logger

	// For the goroutine that starts and stops it.
	config *config.Config
	stop   context.CancelFunc
	over   chan struct{}

	mu       sync.Mutex // guards the fields below
	live     *live      // nil before the first relay
	trouble  error      // why no relay runs; nil while one does
	unclean  error      // a handler did not return: no relay may run any more
	delivers bool
}

// start runs the member with a configuration, until end is called, or with once until the relay ends.
func (m *member) start(ctx context.Context, c *config.Config) {
	m.config = c
	ctx, m.stop = context.WithCancel(ctx)
	m.over = make(chan struct{})
	go func() { // end waits for it
		defer m.ended()
		defer close(m.over)
		m.run(ctx, c)
	}()
}

// end stops the member, and returns when running deliveries have ended, within the shutdown timeout.
func (m *member) end() {
	m.stop()
	<-m.over
}

func (m *member) run(ctx context.Context, c *config.Config) {
	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstRetry), backoff.WithMaxInterval(longestRetry), backoff.WithMaxElapsedTime(0))
	for ctx.Err() == nil {
		began := time.Now()
		err := m.serve(ctx, c)
		if ctx.Err() != nil || err == nil { // it was stopped, or is idle
			return
		}
		if m.once {
			_ = m.failed(err) // the daemon reports the error when it ends
			return
		}
		if time.Since(began) > longestRetry {
			pause.Reset()
		}
		if before := m.failed(err); before == nil || before.Error() != err.Error() {
			m.log.ErrorContext(ctx, "the outbox is not relayed; it is tried again, and the others go on", "err", err)
		}
		timer := time.NewTimer(pause.NextBackOff())
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// serve runs a relay until it ends.
func (m *member) serve(ctx context.Context, c *config.Config) error {
	if err := m.stuck(); err != nil {
		return err
	}
	g, err := m.build(ctx, c)
	if err != nil {
		return err
	}
	m.use(g.relay)
	ended := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-g.relay.Ready():
			m.runs()
		case <-ended:
		}
	})
	err = g.run(ctx)
	close(ended)
	watch.Wait()
	if errors.Is(err, notifyd.ErrShutdownIncomplete) {
		m.mu.Lock()
		m.unclean = errors.Join(errors.New("a delivery has not ended: restart notifyd"), err)
		m.mu.Unlock()
	}
	return errors.Join(err, g.close(), g.closeAlerts())
}

// use puts a relay in the place of the one before.
func (m *member) use(relay *notifyd.Relay) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.live == nil {
		m.live = newLive(relay)
		m.begun(m.live)
		return
	}
	m.live.replace(relay)
}

// runs records that the relay delivers.
func (m *member) runs() {
	m.mu.Lock()
	m.trouble, m.delivers = nil, true
	m.live.delivers()
	m.mu.Unlock()
	m.ready()
}

// failed records why the relay has ended, and returns the reason that was known before.
func (m *member) failed(err error) (before error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, m.trouble, m.delivers = m.trouble, err, false
	return before
}

// failure returns why the last relay has ended; nil if it runs, was stopped or was idle.
func (m *member) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.trouble
}

func (m *member) stuck() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unclean
}

// relay returns the relay of the moment; nil if there was none yet.
func (m *member) relay() *live {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live
}

// errNotYet is the state of an outbox that has just begun.
var errNotYet = errors.New("the table has not been read yet")

// health returns why the outbox is not relayed; nil if it is.
func (m *member) health() error {
	m.mu.Lock()
	live, trouble, delivers := m.live, m.trouble, m.delivers
	m.mu.Unlock()
	switch {
	case trouble != nil:
		return trouble
	case live == nil:
		return errNotYet
	}
	h := live.Health()
	if err := h.Ready(); err != nil || delivers {
		return err
	}
	return errNotYet
}

// lost returns why only a restart is likely to help; nil else.
func (m *member) lost() error {
	if live := m.relay(); live != nil {
		h := live.Health()
		return h.Live()
	}
	return nil
}
