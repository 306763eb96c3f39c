package mqtt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// fake is a broker that answers as a test wants.
type fake struct {
	// connack is the answer to a connection; nil for success.
	connack []byte
	// properties are those of a successful connection.
	properties packets.Properties
	// answer returns the answer to a message; nil for none.
	answer func(p *packets.Publish) *packets.ControlPacket
	// mutePings leaves pings without an answer.
	mutePings bool

	listener net.Listener
	mu       sync.Mutex
	ids      []string // of clients
	bodies   []string
	pings    int
}

func (f *fake) start(t *testing.T) *fake {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.listener = l

	var conns sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); conns.Wait() })
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { f.serve(conn) })
		}
	})
	return f
}

func (f *fake) addr() string { return f.listener.Addr().String() }

// serve answers until the client, or an answer, ends the connection.
func (f *fake) serve(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // of the test
	for {
		p, err := packets.ReadPacket(conn)
		if err != nil {
			return
		}
		var reply []byte
		isLast := false

		switch c := p.Content.(type) {
		case *packets.Connect:
			f.mu.Lock()
			f.ids = append(f.ids, c.ClientID)
			f.mu.Unlock()
			reply = f.connack
			if reply == nil {
				reply = encoded(control(packets.CONNACK, &packets.Connack{Properties: &f.properties}))
			}
		case *packets.Publish:
			f.mu.Lock()
			f.bodies = append(f.bodies, string(c.Payload))
			f.mu.Unlock()
			if answer := f.answer(c); answer != nil {
				reply = encoded(answer)
				isLast = answer.Type == packets.DISCONNECT
			}
		case *packets.Pingreq:
			f.mu.Lock()
			f.pings++
			f.mu.Unlock()
			if !f.mutePings {
				reply = []byte{packets.PINGRESP << 4, 0}
			}
		default:
			return
		}

		if _, err := conn.Write(reply); err != nil || isLast {
			return
		}
	}
}

func control(kind byte, content packets.Packet) *packets.ControlPacket {
	p := packets.NewControlPacket(kind)
	p.Content = content
	return p
}

func encoded(p *packets.ControlPacket) []byte {
	var text bytes.Buffer
	_, _ = p.WriteTo(&text) // a Buffer takes everything
	return text.Bytes()
}

// ack returns a PUBACK with a reason.
func ack(p *packets.Publish, r reason) *packets.ControlPacket {
	return control(packets.PUBACK, &packets.Puback{PacketID: p.PacketID, ReasonCode: byte(r), Properties: &packets.Properties{}})
}

func goodbyeFor(r reason) *packets.ControlPacket {
	return control(packets.DISCONNECT, &packets.Disconnect{ReasonCode: byte(r), Properties: &packets.Properties{}})
}

// TestReasons: what becomes of an event by the reason of a PUBACK, where the topic is fixed, and where it is made of the event.
func TestReasons(t *testing.T) {
	t.Parallel()
	for r, want := range map[reason]struct{ fixed, own, text string }{
		0x10:              {"delivered", "delivered", ""},
		unspecified:       {"unclear-retry", "unclear-retry", "unspecified error (0x80)"},
		implementation:    {"unclear-retry", "unclear-retry", "implementation specific error (0x83)"},
		notAuthorized:     {"unavailable", "unclear-retry", "allow the user"},
		topicInvalid:      {"unavailable", "unclear-permanent", "check topic"},
		identifierInUse:   {"unavailable", "unavailable", "packet identifier in use"},
		packetTooLarge:    {"permanent", "permanent", "maximum packet size"},
		rateTooHigh:       {"throttled", "throttled", "set rate_limit"},
		quotaExceeded:     {"throttled", "throttled", "set rate_limit"},
		payloadInvalid:    {"permanent", "permanent", "correct the payload"},
		retainUnsupported: {"unavailable", "unavailable", "retain: false"},
		0xee:              {"unclear-retry", "unclear-retry", "unknown reason (0xEE)"},
	} {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			f := (&fake{answer: func(p *packets.Publish) *packets.ControlPacket { return ack(p, r) }}).start(t)
			for topic, class := range map[string]string{"t": want.fixed, "t/{{ .Event.ID }}": want.own} {
				err := open(t, f.addr(), to(topic)).Deliver(t.Context(), events(1)[0])
				deliverytest.WantClass(t, err, class)
				if class != "delivered" {
					deliverytest.WantText(t, err, want.text)
				}
			}
		})
	}
}

// TestDisconnects: a broker that ends the connection over one message of a batch gets the others all the same, and the
// message has the class of its reason.
func TestDisconnects(t *testing.T) {
	t.Parallel()
	for r, want := range map[reason]string{
		malformed: "unclear-retry", protocolError: "unclear-retry", topicInvalid: "unavailable",
		packetTooLarge: "permanent", payloadInvalid: "permanent",
	} {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			f := (&fake{answer: func(p *packets.Publish) *packets.ControlPacket {
				if bytes.Contains(p.Payload, []byte("bad")) {
					return goodbyeFor(r)
				}
				return ack(p, 0)
			}}).start(t)
			all := events(deliverytest.UpTo(21)...)
			all[3].Payload = json.RawMessage(`"bad"`)
			errs := open(t, f.addr(), to("t")).DeliverBatch(t.Context(), all)
			deliverytest.WantClass(t, errs[3], want)
			if want == "unavailable" {
				return // the topic is wrong for all
			}
			for i, err := range errs {
				if i != 3 && err != nil {
					t.Errorf("event %d: %v", i+1, err)
				}
			}
		})
	}
}

// TestDisconnectsOfNeighbours: an event of another batch, which shares the connection with the refused message, is not
// refused with it.
func TestDisconnectsOfNeighbours(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	came := 0
	f := (&fake{answer: func(p *packets.Publish) *packets.ControlPacket {
		mu.Lock()
		defer mu.Unlock()
		came++
		switch {
		case came == 1:
			return nil
		case came == 2 || bytes.Contains(p.Payload, []byte("bad")):
			return goodbyeFor(packetTooLarge)
		default:
			return ack(p, 0)
		}
	}}).start(t)
	h := open(t, f.addr())
	good, bad := events(1)[0], events(2)[0]
	bad.Payload = json.RawMessage(`"bad"`)

	var running sync.WaitGroup
	running.Go(func() {
		if err := h.Deliver(t.Context(), good); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() { deliverytest.WantClass(t, h.Deliver(t.Context(), bad), "permanent") })
	running.Wait()
}

// TestEndsAboutConnection: a broker that ends the connection for another reason is a destination at fault.
func TestEndsAboutConnection(t *testing.T) {
	t.Parallel()
	for r, want := range map[reason]struct{ class, text string }{
		shuttingDown: {"unavailable", "restarts"}, takenOver: {"unavailable", "another client"}, serverBusy: {"unavailable", "busy"},
		notAuthorized: {"unavailable", "check username"}, administrative: {"unavailable", "administrative action"}, moved: {"unavailable", "check servers"},
		quotaExceeded: {"throttled", "rate_limit"}, keepAliveTimeout: {"unavailable", "keep alive"}, qosUnsupported: {"unavailable", "QoS 1"},
	} {
		f := (&fake{answer: func(*packets.Publish) *packets.ControlPacket { return goodbyeFor(r) }}).start(t)
		err := open(t, f.addr()).Deliver(t.Context(), events(1)[0])
		deliverytest.WantClass(t, err, want.class)
		deliverytest.WantText(t, err, want.text)
	}
}

// TestConnacks: refused connections, and brokers that cannot do what a delivery needs.
func TestConnacks(t *testing.T) {
	t.Parallel()
	refused := func(r reason) *fake {
		return &fake{connack: encoded(control(packets.CONNACK, &packets.Connack{ReasonCode: byte(r), Properties: &packets.Properties{}}))}
	}
	none := byte(0)
	for name, c := range map[string]struct {
		broker *fake
		text   string
	}{
		"login":         {refused(badLogin), "check username"},
		"banned":        {refused(banned), "banned"},
		"client id":     {refused(clientIDInvalid), "check client_id"},
		"busy":          {refused(serverBusy), "busy"},
		"another":       {refused(useAnother), "check servers"},
		"version":       {refused(wrongVersion), "MQTT 5"},
		"old version":   {&fake{connack: []byte{packets.CONNACK << 4, 2, 0, 1}}, "does not speak MQTT 5"},
		"QoS 0":         {&fake{properties: packets.Properties{MaximumQOS: &none}}, "takes QoS 0 only"},
		"no retain":     {&fake{properties: packets.Properties{RetainAvailable: &none}}, "set retain: false"},
		"HTTP":          {&fake{connack: []byte("HTTP/1.1 400 Bad Request\r\n\r\n")}, "does not speak MQTT"},
		"a huge answer": {&fake{connack: []byte{packets.CONNACK << 4, 0xff, 0xff, 0xff, 0x7f}}, "does not speak MQTT"},
		"no end":        {&fake{connack: []byte{packets.CONNACK << 4, 0xff, 0xff, 0xff, 0xff, 0xff}}, "does not speak MQTT"},
		"another type":  {&fake{connack: []byte{packets.PINGRESP << 4, 0}}, "does not speak MQTT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := open(t, c.broker.start(t).addr(), func(c *Config) { c.Retain = true })
			for _, err := range []error{h.Deliver(t.Context(), events(1)[0]), h.Check(t.Context())} {
				deliverytest.WantClass(t, err, "unavailable")
				deliverytest.WantText(t, err, c.text)
			}
		})
	}
}

// TestReceiveMaximum: never are more messages under way than the broker allows, whatever batches run.
func TestReceiveMaximum(t *testing.T) {
	t.Parallel()
	const most, batches = 3, 4
	limit := uint16(most)
	acks := make(chan *packets.Publish, 1000)
	f := (&fake{
		properties: packets.Properties{ReceiveMaximum: &limit},
		answer:     func(p *packets.Publish) *packets.ControlPacket { acks <- p; return nil },
	}).start(t)
	h := open(t, f.addr())
	if err := h.Check(t.Context()); err != nil {
		t.Fatal(err)
	}

	ctx := t.Context()
	var running sync.WaitGroup
	for n := range batches {
		running.Go(func() { h.DeliverBatch(ctx, events(deliverytest.UpTo(int64(10*n+10))...)) })
	}
	for range most {
		testenv.Receive(t, patience, "a message", acks)
	}
	h.mu.Lock()
	l := h.link
	h.mu.Unlock()
	if len(l.ids) != 0 || cap(l.ids) != most {
		t.Errorf("%d of %d identifiers are free", len(l.ids), cap(l.ids))
	}
	if len(acks) > 0 {
		t.Errorf("%d messages too many", len(acks))
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	running.Wait()
}

// TestNoAcknowledgement: a broker that never acknowledges is a destination at fault, and gets nothing more.
func TestNoAcknowledgement(t *testing.T) {
	t.Parallel()
	f := (&fake{answer: func(*packets.Publish) *packets.ControlPacket { return nil }}).start(t)
	h := open(t, f.addr(), func(c *Config) { c.AckTimeout = 100 * time.Millisecond })
	errs := h.DeliverBatch(t.Context(), events(1, 2, 8, 9))
	for _, err := range errs {
		deliverytest.WantClass(t, err, "unavailable")
		deliverytest.WantText(t, err, "no acknowledgement within ack_timeout")
	}
	f.mu.Lock()
	got := len(f.bodies)
	f.mu.Unlock()
	if got > 2 {
		t.Errorf("%d messages came, of two aggregates", got)
	}
	if !h.link.isGone() {
		t.Error("a connection that may lead nowhere is kept for later")
	}
}

// TestBrokerReadsNothing: a broker that takes the connection and then reads nothing more keeps no delivery beyond its
// context, and no handler from closing.
func TestBrokerReadsNothing(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // of the test
	conns := make(chan net.Conn, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		if _, err := packets.ReadPacket(conn); err == nil {
			_, _ = conn.Write(encoded(control(packets.CONNACK, &packets.Connack{Properties: &packets.Properties{}})))
		}
		conns <- conn
	}()

	h := open(t, l.Addr().String(), func(c *Config) { c.AckTimeout = maxTimeout })
	all := events(deliverytest.UpTo(30)...)
	for i, e := range all {
		e.AggregateID = ""
		e.Payload = slices.Concat(json.RawMessage(`"`), bytes.Repeat([]byte("x"), 1<<20), json.RawMessage(`"`))
		all[i] = e
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan []error, 2)
	go func() { done <- h.DeliverBatch(ctx, all) }()
	conn := testenv.Receive(t, patience, "the connection", conns)
	defer conn.Close() //nolint:errcheck // of the test
	cause := errors.New("the relay stops")
	cancel(cause)
	for _, err := range testenv.Receive(t, patience, "the end of the cancelled delivery", done) {
		if !errors.Is(err, cause) {
			t.Errorf("got %v", err)
		}
	}

	go func() { done <- h.DeliverBatch(t.Context(), all) }()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	for _, err := range testenv.Receive(t, patience, "the end of the delivery", done) {
		deliverytest.WantClass(t, err, "unavailable")
		deliverytest.WantText(t, err, "closed")
	}
}

// TestPings: an idle connection lives as long as the broker answers pings, as often as the broker wants them.
func TestPings(t *testing.T) {
	t.Parallel()
	answer := func(p *packets.Publish) *packets.ControlPacket { return ack(p, 0) }
	answering, silent := (&fake{answer: answer}).start(t), (&fake{answer: answer, mutePings: true}).start(t)
	idle := func(f *fake, silence time.Duration) *link {
		h := open(t, f.addr())
		h.ping = silence
		deliverytest.Deliver(t, h, events(1))
		return h.link
	}

	l := idle(answering, 2*time.Second)
	testenv.Await(t, "three pings", func() bool { answering.mu.Lock(); defer answering.mu.Unlock(); return answering.pings >= 3 })
	if l.isGone() {
		t.Error("the connection has ended:", l.lost())
	}

	l = idle(silent, 100*time.Millisecond)
	testenv.Receive(t, patience, "the end of the silent connection", l.gone)
	deliverytest.WantText(t, l.lost(), errSilent.Error())
}

// TestServerKeepAlive: the broker's own interval counts if it is shorter.
func TestServerKeepAlive(t *testing.T) {
	t.Parallel()
	second := uint16(1)
	f := (&fake{
		properties: packets.Properties{ServerKeepAlive: &second},
		answer:     func(p *packets.Publish) *packets.ControlPacket { return ack(p, 0) },
	}).start(t)
	h := open(t, f.addr())
	deliverytest.Deliver(t, h, events(1))
	if h.link.silence != time.Second {
		t.Errorf("the longest silence is %v", h.link.silence)
	}
}

// TestForeignAnswers: what no broker may send ends the connection.
func TestForeignAnswers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(p *packets.Publish) *packets.ControlPacket{
		"an identifier of no message": func(p *packets.Publish) *packets.ControlPacket {
			other := *p
			other.PacketID += 500
			return ack(&other, 0)
		},
		"a message": func(p *packets.Publish) *packets.ControlPacket { return p.ToControlPacket() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := open(t, (&fake{answer: answer}).start(t).addr()).Deliver(t.Context(), events(1)[0])
			deliverytest.WantClass(t, err, "unavailable")
			deliverytest.WantText(t, err, "does not speak MQTT")
		})
	}
}

// TestTopicsAreNotLogged: a reason that repeats a topic made of a payload is not shown.
func TestTopicsAreNotLogged(t *testing.T) {
	t.Parallel()
	f := (&fake{answer: func(p *packets.Publish) *packets.ControlPacket {
		return control(packets.PUBACK, &packets.Puback{
			PacketID: p.PacketID, ReasonCode: byte(notAuthorized), Properties: &packets.Properties{ReasonString: "no right for " + p.Topic},
		})
	}}).start(t)
	fixed := open(t, f.addr(), to("orders")).Deliver(t.Context(), events(1)[0])
	deliverytest.WantText(t, fixed, "no right for orders")
	own := open(t, f.addr(), to("orders/{{ .Event.AggregateID }}")).Deliver(t.Context(), events(1)[0])
	if own == nil || bytes.Contains([]byte(own.Error()), []byte("no right for")) {
		t.Errorf("got %v", own)
	}
}
