package mqtt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func TestMessage(t *testing.T) {
	t.Parallel()
	s := broker(t, "")
	received := subscribe(t, s.Addr(), "orders/#", nil)
	e := events(5)[0]
	e.Headers["lines"], e.Headers["content-type"], e.Headers["notifyd-id"] = "a\r\nb", "x", "x"
	for format, want := range map[handlers.Format]map[string]string{
		handlers.FormatPayload: {
			"notifyd-id": "5", "notifyd-type": "order.created", "notifyd-aggregate-type": "order", "notifyd-aggregate-id": "k5",
			"notifyd-time": "2026-11-21T10:00:00.123456Z",
		},
		handlers.FormatCloudEventsBinary: {
			"specversion": "1.0", "id": "5", "source": "/notifyd", "type": "order.created", "subject": "k5",
			"time": "2026-11-21T10:00:00.123456Z", "partitionkey": "k5", "aggregatetype": "order",
		},
		handlers.FormatCloudEventsStructured: {},
	} {
		want["traceparent"], want["tenant"], want["lines"] = "00-1-2-03", "a", "a  b"
		before := len(received.all())
		h := open(t, s.Addr(), to("orders/"+string(format)+"/{{ .Event.Type }}"), func(c *Config) { c.Format = format })
		deliverytest.Deliver(t, h, []*delivery.Event{e})
		m := received.have(before + 1)[before]

		got := make(map[string]string)
		for _, p := range m.Properties.User {
			got[p.Key] = p.Value
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: the properties are\n%v, want\n%v", format, got, want)
		}
		contentType := "application/json"
		if format == handlers.FormatCloudEventsStructured {
			contentType = "application/cloudevents+json"
		} else if string(m.Payload) != `{"n": 5}` {
			t.Errorf("%s: the payload is %s", format, m.Payload)
		}
		if m.Properties.ContentType != contentType || m.QoS != 1 || m.Topic != "orders/"+string(format)+"/order.created" || !json.Valid(m.Payload) {
			t.Errorf("%s: %v", format, m)
		}
	}
}

// TestRetain: a later subscriber gets the last message of a topic, with retain alone.
func TestRetain(t *testing.T) {
	t.Parallel()
	s := broker(t, "")
	for _, retain := range []bool{false, true} {
		h := open(t, s.Addr(), to(fmt.Sprintf("retain/%t", retain)), func(c *Config) { c.Retain = retain })
		deliverytest.Deliver(t, h, events(1, 8))
	}
	received := subscribe(t, s.Addr(), "retain/#", nil)
	m := received.have(1)
	if got := received.ids(); len(got) != 1 || got[0] != 8 || m[0].Topic != "retain/true" {
		t.Errorf("got %d", got)
	}
}

// TestRelaysShareSettings: relays with the same settings do not end each other's connections.
func TestRelaysShareSettings(t *testing.T) {
	t.Parallel()
	s := broker(t, "")
	received := subscribe(t, s.Addr(), "t", nil)
	one, other := open(t, s.Addr()), open(t, s.Addr())
	for id := range int64(20) {
		deliverytest.Deliver(t, one, events(2*id))
		deliverytest.Deliver(t, other, events(2*id+1))
	}
	if one.link.isGone() || other.link.isGone() {
		t.Errorf("a connection has ended: %v, %v", one.link.lost(), other.link.lost())
	}
	received.have(40)
}

// TestTakeover: a client with the id of a connection ends it, and the next delivery goes over another one.
func TestTakeover(t *testing.T) {
	t.Parallel()
	var id string
	f := (&fake{answer: func(p *packets.Publish) *packets.ControlPacket { return ack(p, 0) }}).start(t)
	deliverytest.Deliver(t, open(t, f.addr()), events(1))
	f.mu.Lock()
	id = f.ids[0]
	f.mu.Unlock()
	if !strings.HasPrefix(id, "notifyd-") || len(id) > 23 {
		t.Errorf("the client id is %q", id)
	}

	s := broker(t, "log_type all\n")
	h := open(t, s.Addr())
	deliverytest.Deliver(t, h, events(1))
	taken := h.link
	log := testenv.ReadFile(t, s.LogFile())
	_, rest, _ := strings.Cut(log, " as notifyd-")
	own, _, _ := strings.Cut(rest, " ")
	subscribe(t, s.Addr(), "none", func(c *paho.Connect) { c.ClientID = "notifyd-" + own })
	testenv.Receive(t, patience, "the end of the connection", taken.gone)
	deliverytest.Deliver(t, h, events(2))
}

// TestSeveralServers has one that is down among those to try.
func TestSeveralServers(t *testing.T) {
	t.Parallel()
	s := broker(t, "")
	down := fmt.Sprintf("mqtt://127.0.0.1:%d", testenv.FreePort(t))
	for range 3 {
		h := open(t, s.Addr(), func(c *Config) { c.Servers = []string{down, "mqtt://" + s.Addr(), down} })
		deliverytest.Deliver(t, h, events(1))
		h.link.end(errReplaced)
		deliverytest.Deliver(t, h, events(2))
	}
}

// TestTLS has a broker that wants a client's certificate.
func TestTLS(t *testing.T) {
	t.Parallel()
	own, other := testenv.Certificate(t), testenv.Certificate(t)
	s := broker(t, fmt.Sprintf("certfile %s\nkeyfile %s\ncafile %s\nrequire_certificate true", own.Cert, own.Key, own.Cert))
	good := handlers.TLS{CAFile: own.Cert, CertFile: own.Cert, KeyFile: own.Key}
	for name, c := range map[string]struct {
		scheme string
		change func(*handlers.TLS)
		class  string
		text   string
	}{
		"as it should be":   {"mqtts://", func(*handlers.TLS) {}, "delivered", ""},
		"no TLS here":       {"mqtt://", func(*handlers.TLS) {}, "unavailable", "whether it has TLS"},
		"another authority": {"mqtts://", func(c *handlers.TLS) { c.CAFile = other.Cert }, "unavailable", "tls.ca_file"},
		"another name":      {"mqtts://", func(c *handlers.TLS) { c.ServerName = "example.com" }, "unavailable", "tls.server_name"},
		"no certificate":    {"mqtts://", func(c *handlers.TLS) { c.CertFile, c.KeyFile = "", "" }, "unavailable", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conf := good
			c.change(&conf)
			h := open(t, s.Addr(), func(cfg *Config) {
				cfg.Servers = []string{c.scheme + s.Addr()}
				if c.scheme == "mqtts://" {
					cfg.TLS = &conf
				}
			})
			err := h.Deliver(t.Context(), events(1)[0])
			deliverytest.WantClass(t, err, c.class)
			if c.text != "" {
				deliverytest.WantText(t, err, c.text)
			}
		})
	}
}

// TestFrozenBroker: a broker that is stopped and goes on gets what was under way again, and the rest.
func TestFrozenBroker(t *testing.T) {
	t.Parallel()
	s := broker(t, "")
	received := subscribe(t, s.Addr(), "t", nil)
	h := open(t, s.Addr(), func(c *Config) { c.AckTimeout = 200 * time.Millisecond; c.ConnectTimeout = 200 * time.Millisecond })
	testenv.Await(t, "it answers", func() bool { return h.Deliver(t.Context(), events(1)[0]) == nil })
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, err := range h.DeliverBatch(t.Context(), events(2, 3)) {
		deliverytest.WantClass(t, err, "unavailable")
		deliverytest.WantText(t, err, "ack_timeout")
	}
	deliverytest.WantClass(t, h.Deliver(t.Context(), events(2)[0]), "unavailable") // there is no connection either
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Await(t, "it answers again", func() bool { return h.DeliverBatch(t.Context(), events(2, 3, 4)) == nil })
	testenv.Await(t, "all have come", func() bool {
		got := received.ids()
		return slices.Contains(got, 2) && slices.Contains(got, 3) && slices.Contains(got, 4)
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	const key = "s3cr3t"
	servers := func(all ...string) func(*Config) { return func(c *Config) { c.Servers = all } }
	login := func(c *Config) { c.Username, c.Password = "u", handlers.NewSecret(key) }
	for name, c := range map[string]struct {
		change func(*Config)
		want   []string // "path: words"
	}{
		"nothing":     {func(c *Config) { *c = Config{} }, []string{"servers: missing", "topic: missing"}},
		"servers":     {servers("h", "tcp://h", "mqtt://u:"+key+"@h", "mqtt://a,mqtt://b", "mqtt://", "mqtt://h/x", "mqtt://h:0"), []string{"servers.0: must be a URL", "servers.1: must begin", "servers.2: must not hold", "servers.3: must be", "servers.4: must be a URL", "servers.5: must be a URL", "servers.6: must have a port"}},
		"no user":     {func(c *Config) { c.Password = handlers.NewSecret(key) }, []string{"username: missing"}},
		"no password": {func(c *Config) { c.Username = "u" }, []string{"password: missing"}},
		"readable":    {func(c *Config) { login(c); c.Servers[0] = "mqtt://m.example.com" }, []string{"password: would be readable"}},
		"allowed":     {func(c *Config) { login(c); c.Servers[0] = "mqtt://m.example.com"; c.AllowUnencrypted = true }, nil},
		"encrypted":   {func(c *Config) { login(c); c.Servers[0] = "mqtts://m.example.com" }, nil},
		"TLS":         {func(c *Config) { c.TLS = &handlers.TLS{} }, []string{"tls: has no effect"}},
		"TLS files":   {func(c *Config) { c.Servers[0], c.TLS = "mqtts://h", &handlers.TLS{CertFile: "x"} }, []string{"tls.key_file: missing"}},
		"topic":       {to("a/+"), []string{"topic: must not have wildcards"}},
		"topic 2":     {to("a/#"), []string{"topic: must not have wildcards"}},
		"topic 3":     {to("$share/g/a"), []string{"topic: must not begin"}},
		"topic 4":     {to("a\tb"), []string{"topic: must not have control"}},
		"topic 5":     {to(strings.Repeat("a", 70_000)), []string{"topic: has more"}},
		"topics":      {to("/a//b/"), nil},
		"template":    {to("{{ .Nope"), []string{"topic: "}},
		"client id":   {func(c *Config) { c.ClientID = "a\n" }, []string{"client_id: must be"}},
		"user":        {func(c *Config) { login(c); c.Username = "a\n" }, []string{"username: must be"}},
		"long":        {func(c *Config) { login(c); c.Username = strings.Repeat("a", 70_000) }, []string{"username: has more"}},
		"timeouts":    {func(c *Config) { c.ConnectTimeout, c.AckTimeout = -1, -1 }, []string{"ack_timeout: must be", "connect_timeout: must be"}},
		"format":      {func(c *Config) { c.Format = "xml" }, []string{"format: must be"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Servers: []string{"mqtt://localhost"}, Topic: "t"}
			c.change(&cfg)
			_, err := New(cfg)
			var got []string
			for _, e := range field.Split(err) {
				got = append(got, e.Error())
			}
			for _, want := range c.want {
				if !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, want) }) {
					t.Errorf("no mistake %q", want)
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("%d mistakes, want %d: %q", len(got), len(c.want), got)
			}
			if text := fmt.Sprintf("%v %+v", err, err); strings.Contains(text, key) {
				t.Errorf("a secret is in %s", text)
			}
		})
	}
}

// TestCheckMade: a value keeps its place in a topic.
func TestCheckMade(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		topic, template string
		ok              bool
	}{
		{"a/b", "a/{{ }}", true},
		{"/a/b", "/a/{{ }}", true},
		{"$aws/rules/x", "$aws/rules/{{ }}", true},
		{"$SYS/x", "{{ }}/x", false},
		{"/a", "{{ }}/a", false},
		{"a/", "a/{{ }}", false},
		{"a//b", "a/{{ }}/b", false},
		{"//b", "/{{ }}/b", false},
		{"", "{{ }}", false},
	} {
		if err := checkMade(c.topic, c.template); (err == nil) != c.ok {
			t.Errorf("%q of %q: %v", c.topic, c.template, err)
		}
	}
}

// TestReplay: a replayed event has another id.
func TestReplay(t *testing.T) {
	t.Parallel()
	e := events(42)[0]
	e.Replay = 1
	text, err := open(t, "127.0.0.1:1").Preview(e)
	if err != nil || !strings.Contains(text, "header notifyd-id: 42r1\n") {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestConnectionsHaveAnAge: a connection that is always in use is replaced, and no delivery notices.
func TestConnectionsHaveAnAge(t *testing.T) {
	t.Parallel()
	s := broker(t, "")
	received := subscribe(t, s.Addr(), "t", nil)
	h := open(t, s.Addr())
	h.age = 5 * time.Millisecond
	links := make(map[*link]bool)
	sent := 0
	more := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.link != nil {
			links[h.link] = true
		}
		if len(links) >= 5 {
			return false
		}
		sent++
		return true
	}
	var senders sync.WaitGroup
	for sender := range int64(4) {
		senders.Go(func() {
			for i := int64(1); more(); i++ {
				if err := h.Deliver(t.Context(), events(1000*sender + i)[0]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	senders.Wait()
	received.have(sent)
	delete(links, h.link) // all but the last are closed with their last user
	for l := range links {
		testenv.Receive(t, patience, "the end of an old connection", l.gone)
	}
}

// TestBalancer: a retry does not go over a connection to a broker that refuses everything.
func TestBalancer(t *testing.T) {
	t.Parallel()
	for name, topic := range map[string]string{"one topic": "t", "a topic of the event": "t/{{ .Event.ID }}"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			refuses := 0
			var servers []string
			for n := range 2 {
				f := (&fake{answer: func(p *packets.Publish) *packets.ControlPacket {
					mu.Lock()
					defer mu.Unlock()
					if refuses == n {
						return ack(p, notAuthorized)
					}
					return ack(p, 0)
				}}).start(t)
				servers = append(servers, f.addr())
			}
			h := open(t, testenv.Balancer(t, servers...), to(topic))
			deliverytest.Failover(t, h, events(deliverytest.UpTo(10)...), func(server int) {
				mu.Lock()
				defer mu.Unlock()
				refuses = server
			})
		})
	}
}

// TestCloseWhileConnecting has a server that takes connections and says nothing.
func TestCloseWhileConnecting(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // of the test
	h := open(t, l.Addr().String(), func(c *Config) { c.ConnectTimeout = maxTimeout })
	done := make(chan error)
	go func() { done <- h.Deliver(t.Context(), events(1)[0]) }()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // of the test
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	err = <-done
	deliverytest.WantClass(t, err, "unavailable")
	deliverytest.WantText(t, err, "closed")
}

// FuzzReadPacket: no answer of a server is read beyond the announced length, or ends the process.
func FuzzReadPacket(f *testing.F) {
	var most uint16 = 3
	for _, seed := range [][]byte{
		encoded(control(packets.CONNACK, &packets.Connack{Properties: &packets.Properties{ReceiveMaximum: &most, ReasonString: "no"}})),
		encoded(ack(&packets.Publish{PacketID: 7}, quotaExceeded)), encoded(goodbyeFor(takenOver)),
		{packets.CONNACK << 4, 2, 0, 1},
		{packets.PINGRESP << 4, 0},
		{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		[]byte("HTTP/1.1 400"),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		p, err := readPacket(r)
		if (p == nil) == (err == nil) {
			t.Errorf("%v, %v", p, err)
		}
		if read := len(data) - r.Len(); read > maxAnswer+5 {
			t.Errorf("%d bytes were read", read)
		}
	})
}
