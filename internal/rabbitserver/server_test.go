package rabbitserver

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T) *Server {
	t.Helper()
	s, err := Start(t.Context(), Config{})
	if errors.Is(err, ErrNotFound) && os.Getenv("NOTIFYD_TEST_REQUIRE") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(s.dir); !os.IsNotExist(err) {
			t.Errorf("the directory is still there: %v", err)
		}
	})
	return s
}

// TestLife takes a node through everything that tests do to one.
func TestLife(t *testing.T) {
	t.Parallel()
	s := start(t)
	if out, err := s.Ctl(t.Context(), "list_vhosts"); err != nil || !strings.Contains(out, "/") {
		t.Errorf("list_vhosts: %q, %v", out, err)
	}
	if _, err := s.Ctl(t.Context(), "no_such_command"); err == nil {
		t.Error("rabbitmqctl no_such_command succeeded")
	}
	put(t, s, "kept")
	// RabbitMQ confirms a message while the queue that it is in may still be in
	// the memory of Mnesia alone.
	if _, err := s.Ctl(t.Context(), "eval", "mnesia:sync_log()."); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); !errors.Is(err, errRunning) {
		t.Errorf("Start of a running node: %v", err)
	}
	for _, down := range []func() error{s.Kill, func() error { return s.Halt(t.Context()) }} {
		helpers := descendants(s.node.pid)
		if err := down(); err != nil {
			t.Fatal(err)
		}
		if err := down(); !errors.Is(err, errDown) {
			t.Errorf("ending a node that is down: %v", err)
		}
		for _, pid := range helpers {
			if alive(pid) {
				t.Errorf("process %d is left", pid)
			}
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := queued(t, s, "kept"); n != 1 {
		t.Errorf("%d messages after two starts, want 1", n)
	}
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := s.ask(); err == nil {
		t.Error("a paused node answers")
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	if n := queued(t, s, "kept"); n != 1 {
		t.Errorf("%d messages after the pause, want 1", n)
	}
}

// TestLoopbackOnly reads the kernel's table of listening sockets.
func TestLoopbackOnly(t *testing.T) {
	t.Parallel()
	s := start(t)
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Skip("no /proc here")
	}
	for name, port := range map[string]int{"amqp": s.ports.amqp, "distribution": s.ports.dist, "epmd": s.ports.epmd} {
		hex := strings.ToUpper(strconv.FormatInt(int64(port), 16))
		if !bytes.Contains(table, []byte(" 0100007F:"+hex+" ")) {
			t.Errorf("%s does not listen on 127.0.0.1:%d", name, port)
		}
		if bytes.Contains(table, []byte(" 00000000:"+hex+" ")) {
			t.Errorf("%s listens on every address", name)
		}
	}
	files, err := filepath.Glob("/proc/net/tcp6")
	if err != nil || len(files) == 0 {
		return
	}
	table6, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []int{s.ports.amqp, s.ports.dist, s.ports.epmd} {
		hex := strings.ToUpper(strconv.FormatInt(int64(port), 16))
		if bytes.Contains(table6, []byte(" 00000000000000000000000000000000:"+hex+" ")) {
			t.Errorf("port %d listens on every address of IPv6", port)
		}
	}
}

func TestURL(t *testing.T) {
	t.Parallel()
	s := &Server{ports: ports{amqp: 5672}}
	for vhost, want := range map[string]string{
		"":     "amqp://guest:guest@127.0.0.1:5672/%2F",
		"t_x":  "amqp://guest:guest@127.0.0.1:5672/t_x",
		"/a b": "amqp://guest:guest@127.0.0.1:5672/%2Fa%20b",
	} {
		if got := s.URL(vhost); got != want {
			t.Errorf("URL(%q) = %s, want %s", vhost, got, want)
		}
		if uri, err := amqp.ParseURI(s.URL(vhost)); err != nil || vhost != "" && uri.Vhost != vhost {
			t.Errorf("the library reads %q as %q, %v", vhost, uri.Vhost, err)
		}
	}
}

func TestStartSaysWhatTheNodeSaid(t *testing.T) {
	t.Parallel()
	if _, err := find(); err != nil && os.Getenv("NOTIFYD_TEST_REQUIRE") == "" {
		t.Skip(err)
	}
	_, err := Start(t.Context(), Config{Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("Start = %v, want the setting that the node did not take", err)
	}
}

func connect(t *testing.T, s *Server) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(s.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// put leaves one message in a durable queue.
func put(t *testing.T, s *Server, queue string) {
	t.Helper()
	ch := connect(t, s)
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	dc, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, true, false,
		amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := dc.WaitContext(t.Context()); !ok || err != nil {
		t.Fatalf("confirmed: %t, %v", ok, err)
	}
}

func queued(t *testing.T, s *Server, queue string) int {
	t.Helper()
	q, err := connect(t, s).QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}
