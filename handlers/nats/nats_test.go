package nats

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func TestMessage(t *testing.T) {
	t.Parallel()
	place := testenv.NATS(t)
	_, js := client(t, place.URL)
	newStream(t, js, jetstream.StreamConfig{Name: place.Name, Subjects: []string{place.Name + ".>"}})
	e := events(5)[0]
	// Headers that NATS interprets, invalid names, and values that would end a header.
	e.Headers["nats-rollup"], e.Headers["Nats-Msg-Id"], e.Headers["a b"] = "all", "x", "x"
	e.Headers["lines"], e.Headers["content-type"] = "a\r\nb: c", "x"
	for format, want := range map[handlers.Format]natsgo.Header{
		handlers.FormatPayload: {
			"Content-Type": {"application/json"}, "notifyd-id": {"5"}, "notifyd-type": {"order.created"},
			"notifyd-aggregate-type": {"order"}, "notifyd-aggregate-id": {"k5"}, "notifyd-time": {"2026-11-21T10:00:00.123456Z"},
		},
		handlers.FormatCloudEventsBinary: {
			"Content-Type": {"application/json"}, "ce-specversion": {"1.0"}, "ce-id": {"5"}, "ce-source": {"/notifyd"},
			"ce-type": {"order.created"}, "ce-subject": {"k5"}, "ce-time": {"2026-11-21T10:00:00.123456Z"},
			"ce-partitionkey": {"k5"}, "ce-aggregatetype": {"order"}, "ce-traceparent": {"00-1-2-03"},
		},
		handlers.FormatCloudEventsStructured: {"Content-Type": {"application/cloudevents+json"}},
	} {
		want["traceparent"], want["tenant"], want["lines"] = []string{"00-1-2-03"}, []string{"a"}, []string{"a  b: c"}
		want[jetstream.ExpectedStreamHeader] = []string{place.Name}
		e.Destination = string(format)
		want[jetstream.MsgIDHeader] = []string{msgID(e)}
		h := open(t, place.URL, to(place.Name+"."+string(format)), func(c *Config) { c.Format, c.Stream = format, place.Name })
		if err := h.Deliver(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		all := stored(t, js, place.Name, 1)
		last := all[len(all)-1]
		if fmt.Sprint(last.Header) != fmt.Sprint(want) {
			t.Errorf("%s: headers are\n%v, want\n%v", format, last.Header, want)
		}
		if !json.Valid(last.Data) || format != handlers.FormatCloudEventsStructured && string(last.Data) != `{"n": 5}` {
			t.Errorf("%s: the body is %s", format, last.Data)
		}
	}
}

// TestDuplicates delivers events that a stream has already, and similar ones.
func TestDuplicates(t *testing.T) {
	t.Parallel()
	place := testenv.NATS(t)
	_, js := client(t, place.URL)
	newStream(t, js, jetstream.StreamConfig{Name: place.Name, Subjects: []string{place.Name}})
	h := open(t, place.URL, to(place.Name))
	deliverytest.Deliver(t, h, events(1, 2))
	deliverytest.Deliver(t, h, events(2, 3))
	// The same id, of another database.
	other := events(3)
	other[0].CreatedAt = other[0].CreatedAt.Add(time.Microsecond)
	deliverytest.Deliver(t, h, other)
	// To another destination.
	other = events(1)
	other[0].Destination = "backup"
	deliverytest.Deliver(t, h, other)
	if got := written(t, js, place.Name); !slices.Equal(got, []int64{1, 2, 3, 3, 1}) {
		t.Errorf("written: %d", got)
	}
}

func TestBatches(t *testing.T) {
	t.Parallel()
	place := testenv.NATS(t)
	_, js := client(t, place.URL)
	newStream(t, js, jetstream.StreamConfig{Name: place.Name, Subjects: []string{place.Name + ".>"}})
	h := open(t, place.URL, to(place.Name+".{{ .Event.Type }}"))
	for i := range int64(3) {
		ids := deliverytest.UpTo(500)
		for j := range ids {
			ids[j] += i * 500
		}
		all := events(ids...)
		for _, e := range all[:10] {
			e.AggregateID = ""
		}
		deliverytest.Deliver(t, h, all)
	}
	got := written(t, js, place.Name)
	last := make(map[int64]int64)
	for _, id := range got {
		if key := id % 7; (id-1)%500 >= 10 {
			if last[key] > id {
				t.Fatalf("event %d came before %d", last[key], id)
			}
			last[key] = id
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, deliverytest.UpTo(1500)) {
		t.Errorf("%d are written", len(got))
	}
}

// TestOrderAfterARefusal has a stream with room for small messages only: what
// follows a large one of the same aggregate must not overtake it.
func TestOrderAfterARefusal(t *testing.T) {
	t.Parallel()
	place := testenv.NATS(t)
	_, js := client(t, place.URL)
	cfg := jetstream.StreamConfig{Name: place.Name, Subjects: []string{place.Name}, MaxBytes: 5000, Discard: jetstream.DiscardNew}
	newStream(t, js, cfg)
	all := events(1, 8, 15, 22, 29) // of one aggregate
	all[2].Payload = json.RawMessage(fmt.Sprintf(`"%06000d"`, 0))
	h := open(t, place.URL, to(place.Name))
	for i, err := range h.DeliverBatch(t.Context(), all) {
		deliverytest.WantClass(t, err, []string{"delivered", "delivered", "unavailable", "unavailable", "unavailable"}[i])
	}
	if got := written(t, js, place.Name); !slices.Equal(got, []int64{1, 8}) {
		t.Errorf("written: %d", got)
	}
	cfg.MaxBytes = 50000
	newStream(t, js, cfg)
	deliverytest.Deliver(t, h, all)
	if got := written(t, js, place.Name); !slices.Equal(got, []int64{1, 8, 15, 22, 29}) {
		t.Errorf("written: %d", got)
	}
}

func TestCore(t *testing.T) {
	t.Parallel()
	place := testenv.NATS(t)
	nc, _ := client(t, place.URL)
	sub, err := nc.SubscribeSync(place.Name + ".>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	h := open(t, place.URL, to(place.Name+".{{ .Event.AggregateID }}"), func(c *Config) { c.Mode = ModeCore })
	deliverytest.Deliver(t, h, events(deliverytest.UpTo(50)...))
	for id := range int64(50) {
		m, err := sub.NextMsgWithContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Header.Get("notifyd-id"); got != fmt.Sprint(id+1) || m.Header.Get(jetstream.MsgIDHeader) != "" {
			t.Errorf("message %d is %v", id+1, m.Header)
		}
	}
}

// TestLogins has a server that knows a key, and one with a token.
func TestLogins(t *testing.T) {
	t.Parallel()
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := key.Seed()
	if err != nil {
		t.Fatal(err)
	}
	other, _ := nkeys.CreateUser()
	otherSeed, _ := other.Seed()
	keyed, token := testenv.OwnNATS(t, "authorization { users: [{nkey: "+public+"}] }"), testenv.OwnNATS(t, "authorization { token: s3cr3t }")
	core := func(c *Config) { c.Mode = ModeCore }
	for name, c := range map[string]struct {
		url    string
		change func(*Config)
		want   string
	}{
		"key":           {keyed.Addr(), func(c *Config) { c.NKeySeed = handlers.NewSecret(string(seed)) }, "delivered"},
		"another key":   {keyed.Addr(), func(c *Config) { c.NKeySeed = handlers.NewSecret(string(otherSeed)) }, "unavailable"},
		"no key":        {keyed.Addr(), func(*Config) {}, "unavailable"},
		"token":         {token.Addr(), func(c *Config) { c.Token = handlers.NewSecret("s3cr3t") }, "delivered"},
		"another token": {token.Addr(), func(c *Config) { c.Token = handlers.NewSecret("s3cr3t!") }, "unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := open(t, "nats://"+c.url, core, c.change).Deliver(t.Context(), events(1)[0])
			deliverytest.WantClass(t, err, c.want)
			if err != nil {
				deliverytest.WantText(t, err, "check username")
			}
		})
	}
}

// TestSeveralServers has one that is down among those to try.
func TestSeveralServers(t *testing.T) {
	t.Parallel()
	place := testenv.NATS(t)
	down := fmt.Sprintf("nats://127.0.0.1:%d", testenv.FreePort(t))
	for range 4 { // they are tried in any order
		deliverytest.Deliver(t, open(t, down, func(c *Config) { c.Servers, c.Mode = []string{down, place.URL, down}, ModeCore }), events(1))
	}
}

func TestCredentialsFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"empty": "", "text": "SUAM"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(Config{Servers: []string{"nats://localhost"}, Subject: "s", CredentialsFile: name}, handlers.WithBaseDir(dir))
		if field.Path(err) != "credentials_file" {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := New(Config{Servers: []string{"nats://localhost"}, Subject: "s", CredentialsFile: "none"}, handlers.WithBaseDir(dir))
	if field.Path(err) != "credentials_file" {
		t.Errorf("no file: %v", err)
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
	h := open(t, "nats://"+l.Addr().String(), func(c *Config) { c.ConnectTimeout = maxTimeout })
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
