package mqtt

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

const (
	// pingEvery is how long a broker may be silent. Half of the time later it is asked whether it is there.
	pingEvery = 30 * time.Second
	// window is how many messages may be under way on a connection, if the broker takes as many: enough for a round
	// trip to any place on earth at ten thousand a second.
	window = 1000
	// maxAnswer bounds a packet of the broker. It is announced, so that a broker cuts its reasons.
	maxAnswer = 64 << 10
	// writeBuffer is for many small messages in one write.
	writeBuffer = 64 << 10
	// goodbye bounds the last write on a connection.
	goodbye = time.Second
)

// link is a connection to a broker.
type link struct {
	conn   net.Conn
	born   time.Time
	record *idle.Record
	users  sync.WaitGroup // batches; a new one begins only while the handler has the link

	ackTimeout time.Duration
	silence    time.Duration
	maxPacket  int64           // of the broker; 0 for no limit
	ids        chan uint16     // identifiers that no message has; as many as may be under way
	queue      chan []byte     // packets to write
	gone       <-chan struct{} // closed when the connection ends
	finish     context.CancelCauseFunc
	over       context.Context //nolint:containedctx // its cause is why the connection has ended

	hasRefused atomic.Bool // a message

	mu      sync.Mutex
	waiting map[uint16]chan<- error // the results of messages under way, by identifier
}

// dial connects to the first server that takes the connection. The next call begins with another one.
func (h *Handler) dial(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(h.closing, func() { cancel(outcome.ErrClosed) }) //nolint:contextcheck // either context ends it
	defer stop()

	h.mu.Lock()
	first := h.next
	h.next++
	h.mu.Unlock()

	var errs []error
	for i := range h.cfg.Servers {
		s := serverOf(h.cfg.Servers[(first+i)%len(h.cfg.Servers)])
		l, err := h.dialServer(ctx, s)
		if err == nil {
			return l, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		errs = append(errs, fmt.Errorf("connect to %s: %w", s.addr, err))
	}
	return nil, errors.Join(errs...)
}

func (h *Handler) dialServer(ctx context.Context, s server) (*link, error) {
	within, cancel := outcome.Within(ctx, "connect_timeout", h.cfg.ConnectTimeout)
	defer cancel()

	conn, err := (&net.Dialer{}).DialContext(within, "tcp", s.addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(within, func() { _ = conn.Close() })

	l, err := h.greet(within, conn, s)
	isClosed := !stop()
	switch {
	case isClosed && l != nil:
		l.end(context.Cause(within))
		return nil, context.Cause(within)
	case err == nil:
		return l, nil
	}

	_ = conn.Close()
	if within.Err() != nil {
		return nil, context.Cause(within)
	}
	return nil, err
}

// greet makes a connection of MQTT, with TLS if the server has it.
func (h *Handler) greet(ctx context.Context, conn net.Conn, s server) (*link, error) {
	if s.secure {
		conf := h.tls.Clone()
		if conf.ServerName == "" {
			conf.ServerName = s.host
		}
		secure := tls.Client(conn, conf)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, noAnswer(err)
		}
		conn = secure
	}

	if _, err := h.hello().WriteTo(conn); err != nil {
		return nil, noAnswer(err)
	}
	answer, err := readPacket(conn)
	if err != nil {
		return nil, noAnswer(err)
	}

	switch p := answer.Content.(type) {
	case *packets.Connack:
		if p.ReasonCode != packets.ConnackSuccess {
			return nil, refusal(connecting, p.ReasonCode, p.Properties)
		}
		if err := h.checkServer(p.Properties); err != nil {
			return nil, err
		}
		return newLink(conn, p, h.cfg.AckTimeout, h.ping), nil
	case *packets.Disconnect:
		return nil, refusal(connecting, p.ReasonCode, p.Properties)
	default:
		return nil, errForeign
	}
}

// noAnswer names what a server does that expects another protocol.
func noAnswer(err error) error {
	isEnded := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
	if isEnded {
		return errors.Join(errNoAnswer, err)
	}
	return err
}

// hello is the first packet: a session that ends with the connection, and an id that no other connection has.
func (h *Handler) hello() *packets.ControlPacket {
	const ownPart = 12 // letters; a broker has to take ids of 23
	most := uint32(maxAnswer)
	p := packets.NewControlPacket(packets.CONNECT)
	p.Content = &packets.Connect{
		ProtocolName:    "MQTT",
		ProtocolVersion: 5,
		CleanStart:      true,
		KeepAlive:       uint16(max(1, h.ping/time.Second)), //nolint:gosec // 30 s, or less in tests
		ClientID:        h.cfg.ClientID + "-" + strings.ToLower(rand.Text()[:ownPart]),
		Username:        h.cfg.Username,
		UsernameFlag:    h.cfg.Username != "",
		Password:        []byte(h.cfg.Password.Reveal()),
		PasswordFlag:    !h.cfg.Password.IsZero(),
		Properties:      &packets.Properties{MaximumPacketSize: &most},
	}
	return p
}

// checkServer wants a broker that can do what a delivery needs.
func (h *Handler) checkServer(p *packets.Properties) error {
	switch {
	case p.MaximumQOS != nil && *p.MaximumQOS < qos:
		return errNoQoS
	case h.cfg.Retain && p.RetainAvailable != nil && *p.RetainAvailable == 0:
		return errNoRetain
	default:
		return nil
	}
}

func newLink(conn net.Conn, ack *packets.Connack, ackTimeout, silence time.Duration) *link {
	most := uint16(window)
	p := ack.Properties
	if p.ReceiveMaximum != nil && *p.ReceiveMaximum > 0 {
		most = min(most, *p.ReceiveMaximum)
	}
	if p.ServerKeepAlive != nil && *p.ServerKeepAlive > 0 {
		silence = min(silence, time.Duration(*p.ServerKeepAlive)*time.Second)
	}

	l := &link{
		conn:       conn,
		born:       time.Now(),
		record:     idle.NewRecord(),
		ackTimeout: ackTimeout,
		silence:    silence,
		ids:        make(chan uint16, most),
		queue:      make(chan []byte),
		waiting:    make(map[uint16]chan<- error),
	}
	if p.MaximumPacketSize != nil {
		l.maxPacket = int64(*p.MaximumPacketSize)
	}
	for id := range most {
		l.ids <- id + 1
	}

	l.over, l.finish = context.WithCancelCause(context.Background()) //nolint:forbidigo // the connection's own life
	l.gone = l.over.Done()
	context.AfterFunc(l.over, func() { _ = conn.SetDeadline(time.Now().Add(goodbye)) }) // ends a write that blocks
	go l.write()
	go l.read()
	return l
}

func (l *link) isGone() bool { return l.over.Err() != nil }

// end ends the connection and all that waits for it. Only the first cause counts.
func (l *link) end(cause error) { l.finish(cause) }

// lost returns why the connection has ended.
func (l *link) lost() error { return context.Cause(l.over) }

// flight is a message under way.
type flight struct {
	result <-chan error
	until  *time.Timer
}

// publish hands a message over to the connection. The result comes once, unless the connection ends.
func (l *link) publish(ctx context.Context, p *packets.Publish) (flight, error) {
	timer := time.NewTimer(l.ackTimeout)
	var id uint16
	select {
	case id = <-l.ids:
	case <-timer.C:
		return flight{}, errAckTimeout
	case <-l.gone:
		return flight{}, l.lost()
	case <-ctx.Done():
		return flight{}, context.Cause(ctx)
	}

	numbered := *p
	numbered.PacketID = id
	var text bytes.Buffer
	if _, err := numbered.WriteTo(&text); err != nil {
		l.ids <- id
		return flight{}, err
	}
	if size := int64(text.Len()); l.maxPacket > 0 && size > l.maxPacket {
		l.ids <- id
		return flight{}, fmt.Errorf("%w of %d bytes: the message has %d", errTooLarge, l.maxPacket, size)
	}

	result := make(chan error, 1)
	l.mu.Lock()
	l.waiting[id] = result
	l.mu.Unlock()

	var err error
	select {
	case l.queue <- text.Bytes():
		return flight{result, timer}, nil
	case <-timer.C:
		err = errAckTimeout
	case <-l.gone:
		err = l.lost()
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	l.settle(id, nil) // it was not sent, and has no answer
	return flight{}, err
}

// await waits for the acknowledgement of a message.
func (l *link) await(ctx context.Context, f flight) error {
	defer f.until.Stop()
	select {
	case err := <-f.result:
		return err
	default:
	}

	select {
	case err := <-f.result:
		return err
	case <-f.until.C:
		return errAckTimeout
	case <-l.gone:
		select {
		case err := <-f.result:
			return err
		default:
			return l.lost()
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// settle gives a message its result, and its identifier to another one. It reports false for an identifier that no message
// has.
func (l *link) settle(id uint16, err error) bool {
	l.mu.Lock()
	result, known := l.waiting[id]
	delete(l.waiting, id)
	l.mu.Unlock()
	if known {
		result <- err
		l.ids <- id
	}
	return known
}

// onlyOne returns the identifier of the message under way, if it is one. Whatever is handed over later gets the error of the
// connection.
func (l *link) onlyOne() (id uint16, only bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id = range l.waiting {
		only = len(l.waiting) == 1
	}
	return id, only
}

// write writes packets, several at once if they are there, and asks a broker that has long been silent for an answer. At
// the end it says goodbye.
func (l *link) write() {
	defer l.conn.Close() //nolint:errcheck // nothing more is read
	pings := time.NewTicker(l.silence / 2)
	defer pings.Stop()
	out := bufio.NewWriterSize(l.conn, writeBuffer)

	for {
		var text []byte
		select {
		case text = <-l.queue:
		case <-pings.C:
			text = pingRequest()
		case <-l.gone:
			_ = l.conn.SetDeadline(time.Now().Add(goodbye))
			_, _ = l.conn.Write(disconnect())
			return
		}

		for text != nil {
			err := errors.Join(l.conn.SetWriteDeadline(time.Now().Add(l.ackTimeout)), writeAll(out, text))
			if err != nil {
				l.writeFailed(err)
				return
			}

			select {
			case text = <-l.queue:
			default:
				text = nil
			}
		}

		if err := out.Flush(); err != nil {
			l.writeFailed(err)
			return
		}
	}
}

// writeFailed ends the connection, unless the broker has left a last packet that has the reason.
func (l *link) writeFailed(err error) {
	wait := time.NewTimer(goodbye)
	defer wait.Stop()
	select {
	case <-l.gone:
	case <-wait.C:
		l.end(errors.Join(errLost, err))
	}
}

func writeAll(out *bufio.Writer, text []byte) error {
	_, err := out.Write(text)
	return err
}

func pingRequest() []byte { return []byte{packets.PINGREQ << 4, 0} }

// disconnect ends a connection in order.
func disconnect() []byte { return []byte{packets.DISCONNECT << 4, 0} }

// read reads the broker's packets, until the connection ends.
func (l *link) read() {
	in := bufio.NewReader(l.conn)
	for {
		err := l.conn.SetReadDeadline(time.Now().Add(l.silence))
		if err != nil {
			l.end(errors.Join(errLost, err))
			return
		}

		p, err := readPacket(in)
		if err != nil {
			l.end(readFailed(err))
			return
		}
		if err := l.heard(p); err != nil {
			l.end(err)
			return
		}
	}
}

func readFailed(err error) error {
	if isTimeout, ok := errors.AsType[net.Error](err); ok && isTimeout.Timeout() {
		return errSilent
	}
	if errors.Is(err, errForeign) {
		return err
	}
	return errors.Join(errLost, err)
}

// heard takes a packet of the broker. An error ends the connection.
func (l *link) heard(p *packets.ControlPacket) error {
	switch c := p.Content.(type) {
	case *packets.Puback:
		var refused error
		if reason(c.ReasonCode).isRefusal() {
			l.hasRefused.Store(true)
			refused = refusal(publishing, c.ReasonCode, c.Properties)
		}
		if !l.settle(c.PacketID, refused) {
			return errForeign
		}
		return nil
	case *packets.Disconnect:
		if id, only := l.onlyOne(); only {
			alone := refusal(disconnecting, c.ReasonCode, c.Properties)
			alone.alone = true
			l.settle(id, alone)
		}
		return refusal(disconnecting, c.ReasonCode, c.Properties)
	case *packets.Pingresp:
		return nil
	default:
		return errForeign
	}
}
