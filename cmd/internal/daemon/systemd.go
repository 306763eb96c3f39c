package daemon

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/systemd"
	"github.com/notifyd/notifyd/observe"
)

// statusEvery is the interval of status updates if systemd sets no watchdog interval.
const statusEvery = 10 * time.Second

// tellManager notifies the service manager that the relay is ready, alive or stopping,
// until stop is called. A relay counts as alive when it returns its figures, since
// claims and deliveries need the same locks, and as long as its health does not demand
// a restart.
func tellManager(ctx context.Context, sd *systemd.Notifier, relay managed, log *slog.Logger) (stop func()) {
	if !sd.Enabled() {
		return func() {}
	}

	m := &manager{sd: sd, relay: relay, log: log}
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.run(ctx, done)
	}()

	return func() {
		close(done)
		<-ended
	}
}

// managed is the view of one relay or of many that the service manager gets.
type managed interface {
	// Ready is closed once it delivers.
	Ready() <-chan struct{}
	// Status describes the current problems in one line. It takes the locks that claims and deliveries need.
	Status() string
	// Live returns nil unless only a restart is likely to help.
	Live() error
}

type manager struct {
	sd     *systemd.Notifier
	relay  managed
	log    *slog.Logger
	status string // the last one sent
	deaf   bool   // an error was logged
}

func (m *manager) run(ctx context.Context, done <-chan struct{}) {
	every := statusEvery
	if w := m.sd.Watchdog(); w > 0 {
		every = w / 2
	}

	tick := time.NewTicker(every)
	defer tick.Stop()

	m.say(ctx, "waiting for the database")

	ready := m.relay.Ready()
	stopping := ctx.Done()

	stop := func() {
		m.heard(ctx, m.sd.Stopping(ctx, "stopping"))
		ready = nil
		stopping = nil
	}

	for {
		select {
		case <-ready:
			ready = nil
			m.status = m.relay.Status()
			m.heard(ctx, m.sd.Ready(ctx, m.status))
		case <-stopping:
			stop()
		case <-tick.C:
			status := m.relay.Status()
			if m.relay.Live() == nil {
				m.heard(ctx, m.sd.Alive(ctx))
			}
			if ready == nil && stopping != nil {
				m.say(ctx, status)
			}
		case <-done:
			if stopping != nil { // the relay has ended before the signal was seen here
				stop()
			}
			return
		}
	}
}

// say sends a new status.
func (m *manager) say(ctx context.Context, status string) {
	if status != m.status {
		m.status = status
		m.heard(ctx, m.sd.Status(ctx, status))
	}
}

// heard logs the first error: an unreachable manager is not a reason to stop.
func (m *manager) heard(ctx context.Context, err error) {
	if err != nil && !m.deaf {
		m.log.WarnContext(ctx, "service manager not notified", "err", err)
	}
	m.deaf = err != nil
}

// statusOf describes the problems of a relay in one line.
func statusOf(s observe.Stats) string {
	var down []string
	for _, d := range s.Destinations {
		if d.Down {
			down = append(down, d.Name)
		}
	}

	switch {
	case len(s.Hangs) > 0:
		return "hangs: " + s.Hangs[0].Reason
	case s.DatabaseDown:
		return observe.DatabaseTrouble(s.DatabaseCure, s.DatabaseDownSince)
	case len(s.Refusals) > 0:
		return "the database refuses: " + s.Refusals[0].Err.Error()
	case len(down) > 0:
		return "delivering; down: " + strings.Join(down, ", ")
	default:
		return "delivering"
	}
}
