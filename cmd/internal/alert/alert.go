// Package alert notifies people of problems that a relay cannot fix: dead letters, unavailable destinations, an
// unavailable database, events that wait too long.
//
// Incidents within a few seconds share one message, and messages are at least [Config.Every] apart, however many
// incidents occur. A message goes straight to its handlers and not through the outbox, so it is sent while the database
// is down. A handler that fails is logged, and never causes an alert.
package alert

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/backoff"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/login"
	"github.com/notifyd/notifyd/internal/sleep"
)

// EventType is the type of the events that handlers get.
const EventType = "notifyd.alert"

const (
	// gatherFor is how long the first incident of a message waits for others: a
	// destination that fails takes some events with it.
	gatherFor = 5 * time.Second
	// sendTimeout bounds one attempt to send a message.
	sendTimeout = 30 * time.Second
	// sendFor bounds all attempts. A message that was not sent by then is discarded.
	sendFor = 10 * time.Minute
	// farewell bounds the sending of the last message when the relay stops.
	farewell = 5 * time.Second
	// returnGrace is how long a handler may take to return after farewell.
	returnGrace = time.Second
	// checkEvery is the interval between two checks for events that wait too long.
	checkEvery = 15 * time.Second
)

// Config selects the incidents to report, and how often. DefaultConfig has the defaults.
type Config struct {
	// Kinds are the incidents to report; nil means all.
	Kinds []delivery.IncidentKind
	// Every is the shortest time between two messages, more than 0.
	Every time.Duration
	// OldestWaiting is how long an event may wait, retries included, before its wait is an incident; 0 means forever.
	OldestWaiting time.Duration
	// Source names the relay in messages, such as the name of the host.
	Source string
}

// DefaultConfig reports all incidents, with at least 5 minutes between messages, and events that have waited for 15
// minutes.
func DefaultConfig() Config { return Config{Every: 5 * time.Minute, OldestWaiting: 15 * time.Minute} }

// Target is a destination of alerts.
type Target struct {
	// Name is the name of the destination.
	Name string
	// Handler gets an event of the type [EventType]. The code that created it closes it after Run has returned.
	Handler delivery.Handler
}

// Oldest returns how long the oldest event has waited; Relay.OldestWaiting is one.
type Oldest func(ctx context.Context) (time.Duration, error)

// Alerter collects incidents and sends messages about them. It implements
// delivery.Observer.
type Alerter struct {
	cfg     Config
	targets []Target
	log     *slog.Logger
	wake    chan struct{} // capacity 1: there are incidents to report

	mu     sync.Mutex
	groups []*group // in the order of their first incidents
}

// New returns an alerter. It sends nothing until Run is called.
func New(cfg Config, targets []Target, log *slog.Logger) (*Alerter, error) {
	switch {
	case cfg.Every <= 0:
		return nil, fmt.Errorf("alert: a message every %v is not above 0", cfg.Every)
	case cfg.OldestWaiting < 0:
		return nil, fmt.Errorf("alert: a longest wait of %v is negative", cfg.OldestWaiting)
	case len(targets) == 0:
		return nil, errors.New("alert: there is no target")
	}
	return &Alerter{cfg: cfg, targets: targets, log: log, wake: make(chan struct{}, 1)}, nil
}

// Observe records an incident. It does not block.
func (a *Alerter) Observe(i delivery.Incident) {
	if a.cfg.Kinds != nil && !slices.Contains(a.cfg.Kinds, i.Kind) {
		return
	}

	a.mu.Lock()
	a.groups = add(a.groups, i)
	a.mu.Unlock()

	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run sends messages until ctx ends, and then sends the last one. The last message, or a message that is being sent at
// that time, may take 5 seconds more. Run returns the cause of ctx's end, joined with [ErrHandler] if a handler did not
// return after its context had ended. oldest may be nil.
func (a *Alerter) Run(ctx context.Context, oldest Oldest) error {
	var others sync.WaitGroup
	defer others.Wait()

	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()

	others.Go(func() {
		<-ctx.Done()
		sleep.For(lasting, farewell)
		cancel()
	})
	if oldest != nil && a.cfg.OldestWaiting > 0 {
		others.Go(func() { a.watch(ctx, oldest) })
	}

	var last time.Time
	for a.gather(ctx, last) {
		groups := a.take()
		if len(groups) == 0 {
			continue // the last message had all incidents
		}
		last = time.Now()
		if err := a.send(ctx, lasting, groups); err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
	}

	return errors.Join(context.Cause(ctx), a.send(ctx, lasting, a.take()))
}

// gather waits until there is an incident to report and the interval has passed. It returns false once ctx has ended.
func (a *Alerter) gather(ctx context.Context, last time.Time) bool {
	select {
	case <-a.wake:
	case <-ctx.Done():
		return false
	}

	pause := gatherFor
	if !last.IsZero() {
		pause = max(pause, a.cfg.Every-time.Since(last))
	}
	return sleep.For(ctx, pause)
}

// take empties the collection.
func (a *Alerter) take() []*group {
	a.mu.Lock()
	defer a.mu.Unlock()
	groups := a.groups
	a.groups = nil
	return groups
}

// ErrHandler is returned by Run if handler ignores the end of its context.
var ErrHandler = errors.New("alert: a handler did not return after its context had ended")

// send sends a message to all targets at the same time, so that an unavailable target does not delay the others. lasting
// ends some seconds after ctx.
func (a *Alerter) send(ctx, lasting context.Context, groups []*group) error {
	if len(groups) == 0 {
		return nil
	}
	event := message(groups, a.cfg.Source, time.Now())
	var sending sync.WaitGroup
	for _, t := range a.targets {
		e := *event
		e.Destination = t.Name
		sending.Go(func() { a.sendTo(ctx, lasting, t, &e) })
	}

	sent := make(chan struct{})
	go func() {
		defer close(sent)
		sending.Wait()
	}()

	select {
	case <-sent:
		return nil
	case <-lasting.Done():
	}

	grace := time.NewTimer(returnGrace)
	defer grace.Stop()

	select {
	case <-sent:
		return nil
	case <-grace.C:
		a.log.ErrorContext(ctx, "alert handler ignores the end of its context")
		return ErrHandler
	}
}

// sendTo tries until the message is delivered, refused permanently, or too old. When ctx ends, the next try is the last
// one.
func (a *Alerter) sendTo(ctx, lasting context.Context, t Target, e *delivery.Event) {
	pauses := backoff.NewPauses(time.Second, time.Minute, 1.5)

	began := time.Now()
	for e.Attempt = 1; ; e.Attempt++ {
		stopping := ctx.Err() != nil
		err := deliver(lasting, t.Handler, e)
		if err == nil {
			return
		}

		pause := pauses.Next()
		if delivery.IsUnauthorized(err) {
			pause = max(pause, login.First*time.Duration(e.Attempt))
		}

		if delivery.IsPermanent(err) || time.Since(began)+pause > sendFor || stopping {
			a.log.ErrorContext(ctx, "alert not sent", "destination", t.Name, "attempts", e.Attempt, "err", err)
			return
		}

		if e.Attempt == 1 {
			a.log.WarnContext(ctx, "alert not sent yet", "destination", t.Name, "err", err)
		}

		sleep.For(ctx, pause)
	}
}

// deliver calls the handler. A panic becomes an error.
func deliver(ctx context.Context, h delivery.Handler, e *delivery.Event) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, sendTimeout, errors.New("an alert has to be sent within "+sendTimeout.String()))
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the handler panicked: %v", p)
		}
	}()

	return h.Deliver(ctx, e)
}

// watch raises an incident when an event has waited too long, and another when no event has.
func (a *Alerter) watch(ctx context.Context, oldest Oldest) {
	late := false
	for sleep.For(ctx, checkEvery) {
		age, err := oldest(ctx)
		if err != nil {
			continue // the relay reports an unavailable database
		}

		i := delivery.Incident{Time: time.Now()}
		switch {
		case age > a.cfg.OldestWaiting && !late:
			i.Kind = delivery.IncidentStale
			i.Err = fmt.Errorf("the oldest event has waited for %v, more than %v", age.Round(time.Second), a.cfg.OldestWaiting)
		case age <= a.cfg.OldestWaiting && late:
			i.Kind = delivery.IncidentCaughtUp
		default:
			continue
		}

		late = !late
		a.Observe(i)
	}
}

var _ delivery.Observer = (*Alerter)(nil)
