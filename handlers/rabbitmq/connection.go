package rabbitmq

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// frameMax is what we ask for, the broker's own default. Bodies are cut into
	// frames; the properties of a message have to fit into one.
	frameMax = 131072
	// frameOverhead is what a frame with properties has besides them: header,
	// class, weight, size, flags and end.
	frameOverhead = 7 + 14 + 1
	// farewell bounds the goodbye, which is a courtesy.
	farewell = time.Second
	// notices is room for what the broker says while nobody listens: it is
	// listened to all the time.
	notices = 8
	locale  = "en_US"
)

// connection is one connection and what belongs to it: channels, their
// confirmations, the broker's alarms. When it is lost, all of that goes with
// it, and nothing of it can answer for the next one.
type connection struct {
	target target
	conn   *amqp.Connection
	sock   *socket
	closes chan *amqp.Error
	blocks chan amqp.Blocking
	gone   chan struct{} // closed when it is of no more use

	mu    sync.Mutex
	why   *failure      // why it is gone
	idle  []*channel    // the one used last at the end
	alarm *failure      // why the broker takes nothing, nil if it does
	calm  chan struct{} // closed at the next alarm, or while there is one
	redo  bool          // the declarations are to be made again
}

// dial connects, with everything that belongs to it up to the vhost. The error
// is a *failure.
func (h *Handler) dial(ctx context.Context) (*connection, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.cfg.ConnectTimeout,
		fmt.Errorf("connect_timeout of %v is over", h.cfg.ConnectTimeout))
	defer cancel()
	raw, err := h.open(ctx)
	if err != nil {
		return nil, h.target.connectFailure(ctx, stageConnect, err)
	}
	sock := &socket{Conn: raw, timeout: h.cfg.WriteTimeout}
	// The library minds no context. Closing the socket ends whatever it does.
	stop := context.AfterFunc(ctx, func() { _ = sock.Close() })
	conn, err := amqp.Open(sock, h.amqpConfig())
	if err != nil {
		stop()
		_ = sock.Close() // the library forgets it
		return nil, h.target.connectFailure(ctx, stageConnect, err)
	}
	c := &connection{
		target: h.target, conn: conn, sock: sock,
		closes: conn.NotifyClose(make(chan *amqp.Error, 1)),
		blocks: conn.NotifyBlocked(make(chan amqp.Blocking, notices)),
		gone:   make(chan struct{}), calm: make(chan struct{}),
	}
	err = h.declare(conn)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = sock.Close()
		return nil, h.target.connectFailure(ctx, stageDeclare, err)
	}
	return c, nil
}

// open makes the connection that AMQP is spoken over.
func (h *Handler) open(ctx context.Context) (net.Conn, error) {
	// A peer that is gone is found by the heartbeats, which are faster.
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", h.target.addr())
	if err != nil || h.tls == nil {
		return raw, err
	}
	encrypted := tlsClient(raw, h.tls, h.target.host)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return encrypted, nil
}

func (h *Handler) amqpConfig() amqp.Config {
	properties := amqp.NewConnectionProperties()
	properties["product"] = "notifyd"
	properties.SetClientConnectionName(h.cfg.ConnectionName)
	var auth amqp.Authentication = &amqp.PlainAuth{Username: h.target.username, Password: h.target.password}
	if h.cfg.Auth == AuthExternal {
		auth = &amqp.ExternalAuth{}
	}
	return amqp.Config{
		SASL: []amqp.Authentication{auth}, Vhost: h.target.vhost, FrameSize: frameMax,
		Heartbeat: h.cfg.Heartbeat, Locale: locale, Properties: properties,
		// Recovery stays nil: the keeper connects again, and nobody else does.
	}
}

// watch listens to what the broker says about the connection, until it is gone
// or ctx is done, and closes it. It returns why it is gone.
func (c *connection) watch(ctx context.Context, say func(alarm *failure)) *failure {
	blocks := c.blocks
	for {
		select {
		case <-ctx.Done():
			c.lose(&failure{at: stageClosed})
			c.close()
			return c.why
		case <-c.gone:
			c.close()
			return c.why
		case err := <-c.closes:
			f := &failure{at: stageLost, text: "the broker is gone"}
			if err != nil {
				f.code, f.text = err.Code, c.target.clean(fmt.Sprintf("%d %s", err.Code, err.Reason))
			}
			c.lose(f)
			c.close()
			return c.why
		case b, ok := <-blocks:
			if !ok {
				blocks = nil // the connection ends, and closes says why
				continue
			}
			say(c.setAlarm(b))
		}
	}
}

// setAlarm notes that the broker blocks us, or does not any more.
func (c *connection) setAlarm(b amqp.Blocking) *failure {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case b.Active && c.alarm == nil:
		c.alarm = &failure{at: stageBlocked, text: c.target.clean(b.Reason)}
		close(c.calm)
		c.sock.hurry()
	case !b.Active && c.alarm != nil:
		c.alarm = nil
		c.calm = make(chan struct{})
		c.sock.relax()
	}
	return c.alarm
}

// lose gives the connection up. What still uses it finds out by gone; the first
// reason counts.
func (c *connection) lose(why *failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == nil {
		c.why = why
		close(c.gone)
	}
}

// abort ends everything that the connection does, at once.
func (c *connection) abort(why *failure) {
	c.lose(why)
	_ = c.sock.Close()
}

// close says goodbye, for a second at most, and closes the socket. It is called
// once, by watch.
func (c *connection) close() {
	c.mu.Lock()
	alarmed := c.alarm != nil
	c.mu.Unlock()
	if !alarmed { // else nobody reads the goodbye
		timer := time.AfterFunc(farewell, func() { _ = c.sock.Close() })
		_ = c.conn.CloseDeadline(time.Now().Add(farewell))
		timer.Stop()
	}
	_ = c.sock.Close()
}

// fit reports whether the connection can be used.
func (c *connection) fit() bool {
	select {
	case <-c.gone:
		return false
	default:
		return !c.conn.IsClosed()
	}
}

// state returns the failure that keeps anything from being published, nil if
// there is none, and a channel that is closed with the next alarm.
func (c *connection) state() (*failure, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != nil {
		return c.lostLocked(), c.calm
	}
	return c.alarm, c.calm
}

// lostLocked is why the connection is gone, as a failure of one delivery.
func (c *connection) lostLocked() *failure {
	f := *c.why
	f.at = stageLost
	return &f
}

// lost waits until it is known why the connection ended, which it has.
func (c *connection) lost(ctx context.Context) *failure {
	select {
	case <-c.gone:
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.lostLocked()
	case <-ctx.Done():
		return ended(ctx, stageLost)
	}
}

// acquire returns a channel that nobody else uses. The caller gives it back by
// release.
func (c *connection) acquire(ctx context.Context, h *Handler) (*channel, *failure) {
	if f, _ := c.state(); f != nil {
		return nil, f
	}
	c.mu.Lock()
	var ch *channel
	for n := len(c.idle) - 1; n >= 0 && ch == nil; n-- {
		if last := c.idle[n]; !last.amqp.IsClosed() {
			ch = last
		}
		c.idle = c.idle[:n]
	}
	redo := c.redo
	c.redo = false
	c.mu.Unlock()
	// What follows waits for the broker, some of it in the library.
	stop := context.AfterFunc(ctx, func() { c.abort(ended(ctx, stageConfirm)) })
	defer stop()
	if redo {
		if err := h.declare(c.conn); err != nil {
			return nil, h.target.connectFailure(ctx, stageDeclare, err)
		}
	}
	if ch != nil {
		return ch, ch.settle(ctx, c)
	}
	ch, err := newChannel(c.conn)
	if err != nil {
		if ctx.Err() == nil && !c.conn.IsClosed() {
			return nil, h.target.connectFailure(ctx, stageConnect, err)
		}
		return nil, c.lost(ctx)
	}
	return ch, nil
}

// release takes a channel back.
func (c *connection) release(ch *channel) {
	if ch.amqp.IsClosed() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, ch)
}

// declareAgain makes the next delivery repeat the declarations: something that
// was there is not any more.
func (c *connection) declareAgain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.redo = true
}
