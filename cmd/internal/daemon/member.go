package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/backoff"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/sleep"
	"github.com/notifyd/notifyd/internal/store"
)

const (
	// firstRetry and longestRetry are the shortest and the longest pause before a relay is built again, for example because
	// its tables are missing. While the database does not answer, the relay itself waits.
	firstRetry   = time.Second
	longestRetry = 30 * time.Second
)

// member is one outbox of a daemon: a relay, and its successors. What becomes of it concerns no other.
type member struct {
	name  string
	build func(ctx context.Context, c *config.Config) (*generation, error)
	once  bool // do not build another relay after one has ended
	// begun is called once, with the first relay.
	begun func(relay *live)
	ready func()
	// ended is called each time the member has ended.
	ended func()
	log   *slog.Logger

	alerting *sync.WaitGroup // alerters of relays that have ended: their last alerts delay no delivery

	// For the goroutine that starts and stops it.
	config  *config.Config // nil before the first start
	stop    context.CancelFunc
	over    chan struct{} // closed once it has ended
	outcome *string       // of the last reload: why it was refused, or "". Nil once it is stored.

	mu       sync.Mutex // guards the fields below
	live     *live      // nil before the first relay
	shown    bool       // begun was called
	trouble  error      // why no relay runs; nil while one does
	atStop   error      // why the relay that was stopped last did not end cleanly
	unclean  error      // a delivery still runs: no other relay may start
	delivers bool
}

// start runs the member with a configuration, until end is called, or with once until the relay ends. The first
// relay is g; without one it is built. A time in paused is when delivery was stopped for it.
func (m *member) start(ctx context.Context, c *config.Config, g *generation, paused time.Time) {
	m.config = c
	m.stopped(nil)
	if m.once {
		_ = m.failed(nil) // of the relay before
	}

	ctx, m.stop = context.WithCancel(ctx)
	m.over = make(chan struct{})

	go func() { // end waits for it
		defer m.ended()
		defer close(m.over)
		m.run(ctx, c, g, paused)
	}()
}

// end stops the member, and returns when running deliveries have ended, within the shutdown timeout. A member
// that was not started has ended.
func (m *member) end() {
	if m.stop != nil {
		m.stop()
		<-m.over
	}
}

func (m *member) run(ctx context.Context, c *config.Config, g *generation, paused time.Time) {
	pauses := backoff.NewPauses(firstRetry, longestRetry, 1.5)
	for {
		began := time.Now()
		err := m.serve(ctx, c, g, paused)
		g = nil
		paused = time.Time{}

		if ctx.Err() != nil {
			m.stopped(err)
			return
		}
		if err == nil { // it is idle
			return
		}

		before := m.failed(err)
		if m.once {
			return // the daemon reports the error when it ends
		}

		if time.Since(began) > longestRetry {
			pauses.Reset()
		}
		if before == nil || before.Error() != err.Error() {
			m.log.ErrorContext(ctx, "outbox not relayed", "err", err)
		}

		if !sleep.For(ctx, pauses.Next()) {
			return
		}
	}
}

// serve runs a relay until it ends. It closes its handlers: they are closed before those of its successor
// are used.
func (m *member) serve(ctx context.Context, c *config.Config, g *generation, paused time.Time) (err error) {
	if err := m.stuck(); err != nil {
		_ = g.abandon()
		return err
	}

	if g == nil {
		g, err = m.build(ctx, c)
		if err != nil {
			return err
		}
	}

	m.use(g.relay)
	m.show()

	ended := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-g.relay.Ready():
			m.runs()
			if !paused.IsZero() {
				g.log.InfoContext(ctx, "relay delivers with the new configuration", "paused", time.Since(paused))
			}
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

	closed := g.close()
	m.alerting.Go(func() {
		if err := g.closeAlerts(); err != nil {
			g.log.WarnContext(ctx, "alert destinations not closed cleanly", "err", err)
		}
	})
	return errors.Join(err, closed)
}

// use puts a relay in the place of the one before.
func (m *member) use(relay *notifyd.Relay) {
	m.mu.Lock()
	defer m.mu.Unlock()

	switch {
	case m.live == nil:
		m.live = newLive(relay)
	case m.live.Relay() != relay:
		m.live.replace(relay)
	}
}

// show calls begun, once.
func (m *member) show() {
	m.mu.Lock()
	defer m.mu.Unlock()

	if !m.shown {
		m.shown = true
		m.begun(m.live)
	}
}

// runs records that the relay delivers.
func (m *member) runs() {
	m.mu.Lock()
	m.trouble = nil
	m.delivers = true
	m.mu.Unlock()

	m.ready()
}

// failed records why the relay has ended, and returns the reason that was known before.
func (m *member) failed(err error) (before error) {
	m.mu.Lock()
	defer m.mu.Unlock()

	before = m.trouble
	m.trouble = err
	m.delivers = false
	return before
}

// stopped records the end of a relay that was stopped.
func (m *member) stopped(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.atStop = err
}

// unstopped returns why the relay that was stopped last did not end cleanly; nil if it did.
func (m *member) unstopped() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.atStop
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

// relay returns the current relay, or nil before the first one.
func (m *member) relay() *live {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live
}

// health returns why the outbox is not relayed; nil if it is.
func (m *member) health() error {
	m.mu.Lock()
	live := m.live
	trouble := m.trouble
	delivers := m.delivers
	m.mu.Unlock()

	switch {
	case trouble != nil:
		return trouble
	case live == nil:
		return admin.ErrNotReady
	}

	h := live.Health()
	if err := h.Ready(); err != nil || delivers {
		return err
	}
	return admin.ErrNotReady
}

// lost returns why only a restart is likely to help; nil else.
func (m *member) lost() error {
	if live := m.relay(); live != nil {
		return live.Live()
	}
	return nil
}

// note stores for "notifyd reload" the outcome of a reload, if there is one that is not stored. It does nothing while the
// database does not answer.
func (m *member) note(ctx context.Context) {
	live := m.relay()
	switch {
	case m.outcome == nil:
		return
	case live == nil:
		m.outcome = nil
		return
	case live.Health().DatabaseDown:
		return
	}

	err := live.Relay().ReloadRefused(ctx, *m.outcome)
	if err != nil {
		m.log.DebugContext(ctx, "reload outcome not stored", "err", err)
	}
	if err == nil || !store.IsDown(err) {
		m.outcome = nil
	}
}
