package redis

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/privateserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// fault is one line of the table: what Redis can be brought to say, and what
// becomes of the event.
type fault struct {
	name      string
	on, off   []string // commands that make the fault and undo it, for the administrator
	change    func(*Config)
	class     delivery.Class
	permanent bool
	text      string
}

// asPlainUser has the handler come without the name that the conformance test
// uses: such users may do everything.
func asPlainUser(addr string) func(*Config) {
	return func(c *Config) { c.URL = handlers.NewSecret("redis://" + addr) }
}

const own = "o:{{ .Event.Type }}"

func faults(addr string) []fault {
	plain := asPlainUser(addr)
	and := func(all ...func(*Config)) func(*Config) {
		return func(c *Config) {
			for _, f := range all {
				f(c)
			}
		}
	}
	const event, destination = delivery.ClassEvent, delivery.ClassDestination
	return []fault{
		{"the key is not a stream", []string{"set o:x 1"}, []string{"del o:x"}, to("o:x"), destination, false, "WRONGTYPE"},
		{"the key of one event is not a stream", []string{"set o:order.created 1"}, []string{"del o:order.created"}, to(own), event, false, "WRONGTYPE"},
		{"the server is full", []string{"config set maxmemory 1"}, []string{"config set maxmemory 0"}, nil, destination, false, "raise maxmemory"},
		{"too few replicas", []string{"config set min-replicas-to-write 1"}, []string{"config set min-replicas-to-write 0"}, nil, destination, false, "NOREPLICAS"},
		{"a replica", []string{"replicaof 127.0.0.1 1"}, []string{"replicaof no one"}, nil, destination, false, "READONLY"},
		{"no more clients", []string{"config set maxclients 1"}, []string{"config set maxclients 10000"}, nil, destination, false, "maxclients"},
		{"a wrong password", nil, nil, func(c *Config) {
			c.URL = handlers.NewSecret(strings.Replace(c.URL.Reveal(), "staple@", "staple%21@", 1))
		}, destination, false, "check username and password"},
		{"no password", []string{"config set requirepass s3cret"}, []string{"config set requirepass ''"}, plain, destination, false, "set password"},
		{"a key that is not ours", nil, nil, to("other"), destination, false, "NOPERM"},
		{"the key of one event is not ours", nil, nil, to("other{{ .Event.ID }}"), event, false, "NOPERM"},
		{"a command that is not ours", []string{"acl setuser ann -xadd"}, []string{"acl setuser ann +xadd"}, to(own), destination, false, "allow it"},
		{"no subscriber", []string{"acl setuser ann +publish &*"}, []string{"acl setuser ann -publish"}, func(c *Config) {
			c.Stream, c.Channel, c.RequireSubscribers, c.Deduplicate = "", "c", true, 0
		}, destination, false, "no subscriber"},
		{"too large", nil, nil, func(c *Config) { c.MaxMessageBytes = 1024; c.Stream = strings.Repeat("s", 2000) }, event, true, "max_message_bytes"},
		{"no such database", nil, nil, and(plain, func(c *Config) { c.Database = 99 }), destination, false, "DB index is out of range"},
		{"no TLS there", nil, nil, func(c *Config) { c.URL, c.ConnectTimeout = handlers.NewSecret("rediss://"+addr), 2*time.Second }, destination, false, "speak TLS"},
		{"no server", nil, nil, func(c *Config) { c.URL = handlers.NewSecret("redis://localhost:1") }, destination, false, "refused"},
	}
}

// cases are the faults, for the conformance suite.
func cases(t *testing.T, s *privateserver.Server, with func(testing.TB, ...func(*Config)) *Handler) (all []handlertest.Case) {
	t.Helper()
	for _, f := range faults(s.Addr()) {
		all = append(all, handlertest.Case{
			Name: f.name, Class: f.class, Permanent: f.permanent, Text: f.text,
			Unclear: f.class == delivery.ClassEvent && !f.permanent, // a place that is made of the event
			Provoke: func(tb testing.TB) error {
				tb.Helper()
				return provoke(tb, s, f, with)
			},
		})
	}
	return all
}

func provoke(tb testing.TB, s *privateserver.Server, f fault, with func(testing.TB, ...func(*Config)) *Handler) error {
	tb.Helper()
	// Connected before the fault, which may keep clients out.
	cl := client(tb, s.Addr()).Conn()
	defer cl.Close() //nolint:errcheck // of the test
	run := func(lines []string) {
		for _, line := range lines {
			args := make([]any, 0, 4)
			for word := range strings.FieldsSeq(line) {
				args = append(args, strings.Trim(word, "'"))
			}
			if err := cl.Do(tb.Context(), args...).Err(); err != nil {
				tb.Fatalf("%s: %v", line, err)
			}
		}
	}
	run([]string{"ping"})
	if f.change == nil {
		f.change = func(*Config) {}
	}
	h := with(tb, f.change)
	defer h.Close() //nolint:errcheck // always nil
	run(f.on)
	defer run(f.off)
	one := h.Deliver(tb.Context(), events(1)[0])
	// In a transaction it is the same.
	for _, err := range h.DeliverBatch(tb.Context(), events(1, 1, 1)) {
		if deliverytest.Class(err) != deliverytest.Class(one) {
			tb.Errorf("alone it is %v\nin a batch %v", one, err)
		}
	}
	return one
}

// TestDiskFull has a server that cannot save.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t, "--appendonly", "no", "--save", "3600 1", "--dbfilename", "x.rdb")
	cl := client(t, s.Addr())
	// A directory has the name of the file that it wants to write.
	h := open(t, "redis://"+s.Addr())
	deliverytest.Deliver(t, h, events(1))
	if err := os.Mkdir(filepath.Join(s.Dir(), "x.rdb"), 0o700); err != nil {
		t.Fatal(err)
	}
	do(t, cl, "bgsave")
	testenv.Await(t, "saving fails", func() bool {
		return strings.Contains(fmt.Sprint(do(t, cl, "info", "persistence")), "rdb_last_bgsave_status:err")
	})
	for _, err := range h.DeliverBatch(t.Context(), events(2, 3)) {
		deliverytest.WantClass(t, err, "unavailable")
		deliverytest.WantText(t, err, "MISCONF", "disk")
	}
}

// TestClusterDown has a node without slots.
func TestClusterDown(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t, "--cluster-enabled", "yes", "--cluster-port", fmt.Sprint(testenv.FreePort(t)))
	for _, change := range []func(*Config){
		func(c *Config) { c.URL, c.Addresses, c.Cluster = handlers.Secret{}, []string{s.Addr()}, true },
		func(c *Config) { c.URL = handlers.NewSecret("redis://" + s.Addr()) },
	} {
		for _, err := range open(t, "", change).DeliverBatch(t.Context(), events(1, 2)) {
			deliverytest.WantClass(t, err, "unavailable")
		}
	}
}

// TestSaidByAFake: errors that a real server returns only in passing.
func TestSaidByAFake(t *testing.T) {
	t.Parallel()
	for said, c := range map[string]struct{ class, text string }{
		"-LOADING Redis is loading the dataset in memory":                                         {"unavailable", "LOADING"},
		"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":       {"unavailable", "MASTERDOWN"},
		"-TRYAGAIN Multiple keys request during rehashing of slot":                                {"unavailable", "TRYAGAIN"},
		"-CLUSTERDOWN The cluster is down":                                                        {"unavailable", "nodes of the cluster"},
		"-ASK 3999 127.0.0.1:6381":                                                                {"unavailable", "cluster: true"},
		"-ERR Elements are too large to be stored":                                                {"permanent", "proto-max-bulk-len"},
		"-ERR Protocol error: invalid bulk length":                                                {"permanent", "proto-max-bulk-len"},
		"-ERR The stream has exhausted the last possible ID, unable to add more items":            {"unavailable", "exhausted"},
		"-ERR unknown command 'XADD', with args beginning with: 's' '*' 'payload' 's3cret' ":      {"unavailable", "unknown command 'XADD'"},
		"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.": {"unavailable", "BUSY"},
		"+OK":       {"unavailable", "does not fit"},
		":1":        {"unavailable", "does not fit"},
		"$-1":       {"unavailable", ""},
		"*0":        {"unavailable", "does not fit"},
		"nonsense":  {"unavailable", ""},
		"$3\r\n1-1": {"delivered", ""},
	} {
		t.Run(said, func(t *testing.T) {
			t.Parallel()
			err := open(t, "redis://"+fake(t, said)).Deliver(t.Context(), events(1)[0])
			deliverytest.WantClass(t, err, c.class)
			if c.text != "" {
				deliverytest.WantText(t, err, c.text)
			}
			for e := err; e != nil; e = errors.Unwrap(e) {
				if strings.Contains(fmt.Sprintf("%v %+v %#v", e, e, e), "s3cret") {
					t.Errorf("a payload is in %v", e)
				}
			}
		})
	}
}

// fake is a server that says the same to everything but HELLO.
func fake(t *testing.T, said string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 1<<16)
			for {
				n, err := conn.Read(buf)
				if err != nil {
					break
				}
				answer := said + "\r\n"
				if strings.Contains(string(buf[:n]), "hello") {
					answer = "*0\r\n"
				}
				if _, err := conn.Write([]byte(answer)); err != nil {
					break
				}
			}
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

// TestTimeouts has a server that takes connections and does not answer.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t)
	h := open(t, "redis://"+s.Addr(), func(c *Config) { c.ReadTimeout, c.ConnectTimeout = 50*time.Millisecond, time.Second })
	// Writing to a busy disk may take longer than the timeout.
	testenv.Await(t, "it answers", func() bool { return h.Deliver(t.Context(), events(1)[0]) == nil })
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // with a connection, and without
		for _, err := range h.DeliverBatch(t.Context(), events(2, 3)) {
			deliverytest.WantClass(t, err, "unavailable")
			deliverytest.WantText(t, err, "read_timeout of 50ms")
		}
		if len(idleLanes(h)) != 0 {
			t.Error("a client whose answers are still to come is kept for later")
		}
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Await(t, "it answers again", func() bool { return h.Deliver(t.Context(), events(4)[0]) == nil })
}
