package mqtt

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/privateserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/sleep"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds waiting for something that is to happen; no test expects it to run out.
const patience = 60 * time.Second

// broker starts a broker that keeps sessions, and has room for all messages.
func broker(tb testing.TB, conf string) *privateserver.Server {
	tb.Helper()
	return testenv.OwnServer(tb, "mqtt", privateserver.MQTT("max_inflight_messages 0\nmax_queued_messages 0\n"+conf))
}

// open makes a handler and closes it after the test.
func open(tb testing.TB, addr string, changes ...func(*Config)) *Handler {
	tb.Helper()
	cfg := Config{Servers: []string{"mqtt://" + addr}, Topic: "t", AckTimeout: patience, ConnectTimeout: patience}
	return deliverytest.Open(tb, New, deliverytest.Changed(cfg, changes...))
}

func to(topic string) func(*Config) { return func(c *Config) { c.Topic = topic } }

// events makes events with the given ids; the aggregate of each is its id modulo 7.
func events(ids ...int64) []*delivery.Event { return deliverytest.Spread("mqtt", ids...) }

// subscriber gets the messages of a broker, by the library's client. It connects again after a loss.
type subscriber struct {
	tb      testing.TB
	addr    string
	connect *paho.Connect
	topic   string

	mu        sync.Mutex
	connected bool
	messages  []*paho.Publish
}

// subscribe returns a subscriber once it gets messages. change may set the login.
func subscribe(tb testing.TB, addr, topic string, change func(*paho.Connect)) *subscriber {
	tb.Helper()
	forever := uint32(3600)
	s := &subscriber{tb: tb, addr: addr, topic: topic, connect: &paho.Connect{
		ClientID: "subscriber", KeepAlive: 60, Properties: &paho.ConnectProperties{SessionExpiryInterval: &forever},
	}}
	if change != nil {
		change(s.connect)
	}

	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			s.listen(ctx)
			sleep.For(ctx, 20*time.Millisecond)
		}
	})
	tb.Cleanup(func() { cancel(); running.Wait() })
	s.await()
	return s
}

// await waits until the subscriber is connected.
func (s *subscriber) await() {
	s.tb.Helper()
	testenv.Await(s.tb, "the subscriber is connected", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.connected })
}

func (s *subscriber) set(connected bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connected = connected
}

// listen gets messages until the connection or ctx ends.
func (s *subscriber) listen(ctx context.Context) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return
	}
	client := paho.NewClient(paho.ClientConfig{
		Conn: packets.NewThreadSafeConn(conn), PacketTimeout: patience,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.messages = append(s.messages, p.Packet)
			return true, nil
		}},
	})
	if _, err := client.Connect(ctx, s.connect); err != nil {
		_ = conn.Close()
		return
	}
	defer s.set(false)
	subscription := paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: s.topic, QoS: 1}}}
	if _, err := client.Subscribe(ctx, &subscription); err == nil {
		s.set(true)
	}
	select {
	case <-client.Done():
	case <-ctx.Done():
		_ = client.Disconnect(&paho.Disconnect{})
	}
}

// all returns the messages so far.
func (s *subscriber) all() []*paho.Publish {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*paho.Publish(nil), s.messages...)
}

// ids returns the ids of the messages so far, in order.
func (s *subscriber) ids() (ids []int64) {
	for _, m := range s.all() {
		id, err := strconv.ParseInt(m.Properties.User.Get("notifyd-id"), 10, 64)
		if err != nil {
			s.tb.Errorf("message %v: %v", m, err)
		}
		ids = append(ids, id)
	}
	return ids
}

// have waits for a number of messages.
func (s *subscriber) have(n int) []*paho.Publish {
	s.tb.Helper()
	testenv.Await(s.tb, strconv.Itoa(n)+" messages", func() bool { return len(s.all()) >= n })
	return s.all()
}

// sessionsFile is where the broker keeps its sessions.
const sessionsFile = "mosquitto.db"

// keep has a broker write its sessions to the disk, so that a killed one has them again.
func keep(tb testing.TB, s *privateserver.Server) {
	tb.Helper()
	if err := syscall.Kill(s.PID(), syscall.SIGUSR1); err != nil {
		tb.Fatal(err)
	}
	testenv.Await(tb, "the sessions are on the disk", func() bool {
		_, err := os.Stat(filepath.Join(s.Dir(), sessionsFile))
		return err == nil
	})
}

var (
	_ delivery.BatchHandler = (*Handler)(nil)
	_ io.Closer             = (*Handler)(nil)
)
