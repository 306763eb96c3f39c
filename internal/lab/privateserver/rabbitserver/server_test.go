package rabbitserver

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is testenv.Long, whose package imports this one.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() && os.Getenv("NOTIFYD_TEST_REQUIRE") != "all" {
		t.Skip("long: make test-all runs it")
	}
}

func start(t *testing.T) *Server {
	t.Helper()
	s, err := Start(t.Context(), Config{})
	if errors.Is(err, privateserver.ErrNotFound) && os.Getenv("NOTIFYD_TEST_REQUIRE") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(s.Dir()); !os.IsNotExist(err) {
			t.Errorf("the directory is still there: %v", err)
		}
	})
	return s
}

// TestLife takes a node through all operations that tests use.
func TestLife(t *testing.T) {
	t.Parallel()
	long(t)
	s := start(t)
	if out, err := s.Ctl(t.Context(), "list_vhosts"); err != nil || !strings.Contains(out, "/") {
		t.Errorf("list_vhosts: %q, %v", out, err)
	}
	if _, err := s.Ctl(t.Context(), "no_such_command"); err == nil {
		t.Error("rabbitmqctl no_such_command succeeded")
	}
	put(t, s, "kept")
	// RabbitMQ may confirm a message while its queue is only in the memory of Mnesia.
	if _, err := s.Ctl(t.Context(), "eval", "mnesia:sync_log()."); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); !errors.Is(err, privateserver.ErrRunning) {
		t.Errorf("Start of a running node: %v", err)
	}
	for _, down := range []func(context.Context) error{s.Kill, s.Halt} {
		if err := down(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := down(t.Context()); !errors.Is(err, privateserver.ErrDown) {
			t.Errorf("ending a node that is down: %v", err)
		}
		for name, port := range map[string]int{"the node": s.Port(), "epmd": s.epmd} {
			if conn, err := net.Dial("tcp", privateserver.Local(port)); err == nil {
				t.Errorf("%s still listens", name)
				_ = conn.Close()
			}
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := queued(t, s, "kept"); n != 1 {
		t.Errorf("%d messages after two starts, want 1", n)
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := ask(t.Context(), s.Server); err == nil {
		t.Error("a paused node answers")
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := queued(t, s, "kept"); n != 1 {
		t.Errorf("%d messages after the pause, want 1", n)
	}
}

// TestLoopbackOnly reads the kernel's table of listening sockets.
func TestLoopbackOnly(t *testing.T) {
	t.Parallel()
	long(t)
	s := start(t)
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Skip("no /proc here")
	}
	for name, port := range map[string]int{"amqp": s.Port(), "distribution": s.dist, "epmd": s.epmd} {
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
	for _, port := range []int{s.Port(), s.dist, s.epmd} {
		hex := strings.ToUpper(strconv.FormatInt(int64(port), 16))
		if bytes.Contains(table6, []byte(" 00000000000000000000000000000000:"+hex+" ")) {
			t.Errorf("port %d listens on every address of IPv6", port)
		}
	}
}

func TestURL(t *testing.T) {
	t.Parallel()
	for vhost, want := range map[string]string{
		"":     "amqp://guest:guest@127.0.0.1:5672/%2F",
		"t_x":  "amqp://guest:guest@127.0.0.1:5672/t_x",
		"/a b": "amqp://guest:guest@127.0.0.1:5672/%2Fa%20b",
	} {
		if got := vhostURL("127.0.0.1:5672", vhost); got != want {
			t.Errorf("vhostURL(%q) = %s, want %s", vhost, got, want)
		}
		if uri, err := amqp.ParseURI(vhostURL("127.0.0.1:5672", vhost)); err != nil || vhost != "" && uri.Vhost != vhost {
			t.Errorf("the library reads %q as %q, %v", vhost, uri.Vhost, err)
		}
	}
}

func TestStartQuotesTheNode(t *testing.T) {
	t.Parallel()
	long(t)
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
