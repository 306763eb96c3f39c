package slack

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/notifyd/notifyd/internal/sleep"
)

const (
	// perChannel is Slack's limit for messages in one channel, and of one
	// webhook. See https://docs.slack.dev/apis/web-api/rate-limits.
	perChannel = rate.Limit(1)
	// maxChannels bounds how many channels are remembered.
	maxChannels = 1024
)

// gate lets messages through at the pace that Slack allows: one a second for
// each channel, and none at all during a pause that Slack asked for. It is safe for
// concurrent use.
type gate struct {
	limit rate.Limit

	mu       sync.Mutex
	channels map[string]*rate.Limiter
	until    time.Time // nothing before
}

func newGate(limit rate.Limit) *gate {
	return &gate{limit: limit, channels: make(map[string]*rate.Limiter)}
}

// busyError is the error of a delivery whose turn would come too late.
type busyError struct {
	what  string
	wait  time.Duration
	asked bool // by Slack, for all channels
}

func (e *busyError) Error() string { return fmt.Sprintf("%s: the next turn is in %v", e.what, e.wait) }

// wait returns when it is the turn of a message for the channel. It fails with
// ctx's cause, or at once with a busyError if the turn comes after ctx's deadline.
func (g *gate) wait(ctx context.Context, channel string) error {
	for {
		if err := pause(ctx, g.held(), busyError{what: "slack has asked for a pause", asked: true}); err != nil {
			return err
		}

		turn := g.channel(channel).Reserve()
		if err := pause(ctx, turn.Delay(), busyError{what: "slack allows one message per second and channel"}); err != nil {
			turn.Cancel()
			return err
		}

		if g.held() == 0 {
			return nil
		}
	}
}

// hold lets no message through for d.
func (g *gate) hold(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until := time.Now().Add(d); until.After(g.until) {
		g.until = until
	}
}

// held returns how long the gate still holds messages back; 0 if it is
// open.
func (g *gate) held() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.until.IsZero() {
		return 0
	}
	return max(time.Until(g.until), 0)
}

func (g *gate) channel(name string) *rate.Limiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l, ok := g.channels[name]; ok {
		return l
	}
	if len(g.channels) >= maxChannels {
		g.forget()
	}
	l := rate.NewLimiter(g.limit, 1)
	g.channels[name] = l
	return l
}

// forget drops the channels that have been quiet for a second: a new limiter is
// the same. If none has, it drops any: its next message may be a second too early.
func (g *gate) forget() {
	any1 := ""
	for name, l := range g.channels {
		if l.Tokens() >= 1 {
			delete(g.channels, name)
		} else {
			any1 = name
		}
	}
	if len(g.channels) >= maxChannels {
		delete(g.channels, any1)
	}
}

// pause waits for d. It fails at once with busy if ctx ends before that.
func pause(ctx context.Context, d time.Duration, busy busyError) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}

	if d <= 0 {
		return nil
	}

	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d {
		busy.wait = d.Round(time.Millisecond)
		return &busy
	}

	if !sleep.For(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}
