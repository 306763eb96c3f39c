package rabbitmq

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

const (
	// frameMax is the frame size to ask for, the broker's default. Bodies are cut into
	// frames; the properties of a message have to fit into one.
	frameMax = 131072
	// frameOverhead is the rest of a frame with properties: header,
	// class, weight, size, flags and end.
	frameOverhead = 7 + 14 + 1
	// farewell bounds the goodbye, which is a courtesy.
	farewell = time.Second
	// notices is the room for notifications of the broker, which are read all the
	// time.
	notices = 8
	locale  = "en_US"
)

// connection is one connection with its channels, their confirmations, and the
// broker's alarms. All of them end with it, and none can answer for the next one.
type connection struct {
	target target
	conn   *amqp.Connection
	sock   *socket
	closes chan *amqp.Error
	blocks chan amqp.Blocking
	gone   chan struct{} // closed when the connection is unusable
	old    chan struct{} // closed when nothing new begins; the connection ends with its last user
	aging  *time.Timer   // retires the connection
	renew  time.Time     // the earliest end because of a failure

	mu    sync.Mutex
	users int           // deliveries
	until time.Time     // the end of a connection with failures, zero for one without
	why   *failure      // why it is gone
	idle  []*channel    // the one used last at the end
	alarm *failure      // why the broker takes no messages, nil if it does
	calm  chan struct{} // closed at the next alarm, or while there is one
	redo  bool          // repeat the declarations
}

// dial connects, with everything that belongs to it up to the vhost. The error
// is a *failure.
func (h *Handler) dial(ctx context.Context) (*connection, error) {
	ctx, cancel := outcome.Within(ctx, "connect_timeout", h.cfg.ConnectTimeout)
	defer cancel()

	raw, err := h.open(ctx)
	if err != nil {
		return nil, h.target.connectFailure(ctx, stageConnect, err)
	}

	sock := &socket{Conn: raw, timeout: h.cfg.WriteTimeout}
	// The library ignores contexts. Closing the socket ends its work.
	stop := context.AfterFunc(ctx, func() { _ = sock.Close() })
	conn, err := amqp.Open(sock, h.amqpConfig())
	if err != nil {
		stop()
		_ = sock.Close() // the library does not close it
		return nil, h.target.connectFailure(ctx, stageConnect, err)
	}

	c := &connection{
		target: h.target,
		conn:   conn,
		sock:   sock,
		closes: conn.NotifyClose(make(chan *amqp.Error, 1)),
		blocks: conn.NotifyBlocked(make(chan amqp.Blocking, notices)),
		gone:   make(chan struct{}),
		old:    make(chan struct{}),
		calm:   make(chan struct{}),
		renew:  time.Now().Add(h.renewEvery),
	}

	h.delays.forget()
	err = h.declare(conn)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}

	if err != nil {
		_ = sock.Close()
		return nil, h.target.connectFailure(ctx, stageDeclare, err)
	}

	c.aging = time.AfterFunc(h.age, c.retire)
	return c, nil
}

// open makes the connection that AMQP is spoken over.
func (h *Handler) open(ctx context.Context) (net.Conn, error) {
	// Heartbeats find a dead peer sooner.
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
		SASL:       []amqp.Authentication{auth},
		Vhost:      h.target.vhost,
		FrameSize:  frameMax,
		Heartbeat:  h.cfg.Heartbeat,
		Locale:     locale,
		Properties: properties,
		// Recovery stays nil: only the connector connects again.
	}
}

// watch reads the broker's notifications until the connection is gone or ctx is done, and closes the connection. It returns
// why the connection is gone, and nil once old is closed: the connection then has to be watched again.
func (c *connection) watch(ctx context.Context, old <-chan struct{}, say func(alarm *failure)) *failure {
	blocks := c.blocks
	for {
		select {
		case <-ctx.Done():
			c.lose(&failure{at: stageClosed})
			c.close()
			return c.why

		case <-old:
			return nil
		case <-c.gone:
			c.close()
			return c.why

		case err := <-c.closes:
			f := &failure{at: stageLost, text: "the broker is gone"}
			if err != nil {
				f.code = err.Code
				f.text = c.target.clean(fmt.Sprintf("%d %s", err.Code, err.Reason))
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

// setAlarm records whether the broker blocks publishers.
func (c *connection) setAlarm(b amqp.Blocking) *failure {
	c.mu.Lock()
	defer c.mu.Unlock()

	switch {
	case b.Active && c.alarm == nil:
		c.alarm = &failure{at: stageBlocked, text: c.target.clean(b.Reason)}
		c.until = time.Now().Add(c.conn.Config.Heartbeat)
		close(c.calm)
		c.sock.hurry()
	case !b.Active && c.alarm != nil:
		c.alarm = nil
		c.until = time.Time{}
		c.calm = make(chan struct{})
		c.sock.relax()
	}

	return c.alarm
}

// lose gives the connection up. Its users find out by gone; the first reason counts.
func (c *connection) lose(why *failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loseLocked(why)
}

func (c *connection) loseLocked(why *failure) {
	if c.why == nil {
		c.why = why
		close(c.gone)
	}
}

// enter makes the caller a user of the connection, and reports false if the connection no longer accepts
// users.
func (c *connection) enter() bool {
	if !c.fit() {
		return false
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	if !c.until.IsZero() && !time.Now().Before(c.until) {
		c.retireLocked()
	}

	if c.isOld() {
		return false
	}

	c.users++
	return true
}

// leave ends what enter began.
func (c *connection) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users--
	c.endLocked()
}

// suspect records a failure that may be this broker's alone: behind a balancer of connections the next connection may lead
// to another one.
func (c *connection) suspect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.until.IsZero() {
		c.until = c.renew
	}
}

// retire lets nothing new begin on the connection.
func (c *connection) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retireLocked()
}

func (c *connection) retireLocked() {
	if !c.isOld() {
		close(c.old)
	}
	c.endLocked()
}

// endLocked ends an old connection without users.
func (c *connection) endLocked() {
	if c.isOld() && c.users == 0 {
		c.loseLocked(&failure{at: stageLost, text: "it is old"})
	}
}

func (c *connection) isOld() bool {
	select {
	case <-c.old:
		return true
	default:
		return false
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
	c.aging.Stop()
	c.mu.Lock()

	alarmed := c.alarm != nil
	c.mu.Unlock()

	if !alarmed { // with an alarm the broker does not read the goodbye
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

// state returns the failure that prevents every publish, or nil, and a
// channel that is closed with the next alarm.
func (c *connection) state() (*failure, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why != nil {
		return c.lostLocked(), c.calm
	}
	return c.alarm, c.calm
}

// lostLocked returns the reason for the loss of the connection, as a
// failure of one delivery.
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

// acquire returns a channel for the caller alone, who gives it back by release.
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

	// The rest waits for the broker, in the library too.
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

// declareAgain makes the next delivery repeat the declarations, after something
// declared has disappeared.
func (c *connection) declareAgain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.redo = true
}
