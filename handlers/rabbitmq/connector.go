package rabbitmq

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/backoff"
)

const (
	// firstPause is the first and shortest pause after a connection was lost or
	// could not be made: a waiting delivery cuts longer pauses down to it.
	firstPause = 100 * time.Millisecond
	// longestPause is the longest pause while the broker is down and no delivery
	// waits.
	longestPause = 10 * time.Second
)

// connector maintains one connection, by a goroutine that starts with the first
// delivery and ends with close.
type connector struct {
	dial func(ctx context.Context) (*connection, error)
	log  *slog.Logger
	wake chan struct{} // a delivery waits for a connection

	mu      sync.Mutex
	conn    *connection // nil while there is none
	try     *try        // the one under way, or the next
	cancel  context.CancelFunc
	running sync.WaitGroup
	closed  bool
}

// try is one attempt to connect.
type try struct {
	done chan struct{} // closed when the result is known
	conn *connection
	err  error // a *failure
}

func newConnector(dial func(context.Context) (*connection, error), log *slog.Logger) *connector {
	return &connector{dial: dial, log: log, wake: make(chan struct{}, 1), try: &try{done: make(chan struct{})}}
}

// get returns the connection, or why the next try to make one failed. The caller leaves the connection.
func (k *connector) get(ctx context.Context) (*connection, error) {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return nil, &failure{at: stageClosed}
	}

	if k.cancel == nil {
		// The connector outlives ctx: close ends it.
		run, cancel := context.WithCancel(context.WithoutCancel(ctx))
		k.cancel = cancel
		k.running.Go(func() { k.run(run) })
	}

	if k.conn != nil && k.conn.enter() {
		defer k.mu.Unlock()
		return k.conn, nil
	}

	t := k.try
	k.mu.Unlock()

	select {
	case k.wake <- struct{}{}:
	default:
	}

	select {
	case <-t.done:
		switch {
		case t.err != nil || t.conn.enter():
			return t.conn, t.err
		case t.conn.isOld():
			return k.get(ctx)
		default:
			return nil, t.conn.lost(ctx)
		}
	case <-ctx.Done():
		return nil, ended(ctx, stageConnect)
	}
}

// run connects, again and again.
func (k *connector) run(ctx context.Context) {
	pauses := backoff.NewPauses(firstPause, longestPause, 1.5)

	silent := false  // the outage was reported
	said := false    // the connection was reported
	alarmed := false // so was the alarm, of the last connection or the present one

	for {
		conn, err := k.dial(ctx)
		k.publish(conn, err)

		switch {
		case ctx.Err() != nil && err != nil:
			k.publish(nil, &failure{at: stageClosed})
			return
		case err != nil:
			if !silent {
				k.log.WarnContext(ctx, "rabbitmq not connected", "err", err)
			}
			silent = true
			if f, ok := err.(*failure); ok && f.isLogin() { //nolint:errorlint // it is not wrapped
				k.untilWanted(ctx)
				continue
			}
		default:
			if !said {
				k.log.InfoContext(ctx, "rabbitmq connected", "addr", conn.target.addr(), "vhost", conn.target.vhost)
			}

			begin := time.Now()
			isBlocked := false
			why := conn.watch(ctx, conn.old, func(alarm *failure) {
				isBlocked = alarm != nil
				if !isBlocked || !alarmed {
					k.sayAlarm(ctx, alarm)
				}
				alarmed = isBlocked
			})
			alarmed = isBlocked

			k.forget(conn)
			if why == nil { // its users have it for as long as they need
				k.running.Go(func() { _ = conn.watch(ctx, nil, func(*failure) {}) })
			}

			if ctx.Err() != nil {
				k.publish(nil, &failure{at: stageClosed})
				return
			}

			said = conn.isOld()
			if said {
				continue
			}

			k.log.WarnContext(ctx, "rabbitmq not connected", "err", why)
			silent = true
			if time.Since(begin) > longestPause {
				pauses.Reset()
			}
		}
		k.pause(ctx, pauses.Next())
	}
}

func (k *connector) sayAlarm(ctx context.Context, alarm *failure) {
	if alarm != nil {
		k.log.WarnContext(ctx, "rabbitmq blocks publishers", "reason", alarm.text)
	} else {
		k.log.InfoContext(ctx, "rabbitmq accepts publishers again")
	}
}

// publish hands out the result of a try and begins another.
func (k *connector) publish(conn *connection, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()

	t := k.try
	t.conn = conn
	t.err = err

	k.conn = conn
	k.try = &try{done: make(chan struct{})}
	close(t.done)
}

func (k *connector) forget(conn *connection) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == conn {
		k.conn = nil
	}
}

// pause waits for d, or for less if a delivery waits.
func (k *connector) pause(ctx context.Context, d time.Duration) {
	begin := time.Now()
	timer := time.NewTimer(d)
	defer timer.Stop()

	wake := k.wake
	for {
		select {
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		case <-wake:
			wake = nil
			timer.Reset(max(0, min(d, firstPause)-time.Since(begin)))
		}
	}
}

// untilWanted waits for the next delivery: each login with a wrong password brings the account nearer to being
// locked, and the lane has a pace for that.
func (k *connector) untilWanted(ctx context.Context) {
	select {
	case <-k.wake: // of a delivery that has its answer
	default:
	}
	select {
	case <-k.wake:
	case <-ctx.Done():
	}
}

// current returns the connection, or nil.
func (k *connector) current() *connection {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.conn
}

// close ends the connection and waits for it.
func (k *connector) close() {
	k.mu.Lock()
	k.closed = true
	cancel := k.cancel
	k.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	k.running.Wait()
}
