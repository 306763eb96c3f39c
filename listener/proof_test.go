package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// patience bounds the wait for an expected event.
const patience = time.Minute

// proving is a listener that proves itself, and its reports.
type proving struct {
	*Listener
	heard   hintLog
	log     *logbook
	blind   chan bool
	changes chan error
}

// proved starts a listener that connects by connect; trigger is the URL for its canaries.
func proved(tb testing.TB, connect Connect, trigger string) *proving {
	tb.Helper()
	p := &proving{heard: make(hintLog, 1000), log: &logbook{}, blind: make(chan bool, 1000), changes: make(chan error, 1000)}
	p.Listener = newListener(connect, "outbox_events", p.heard, slog.New(p.log), nil)
	p.conn.subscribers[0].OnBlind = func(is bool) { p.blind <- is }
	p.conn.subscribers[0].OnChange = func(err error) { p.changes <- err }
	b := NewTrigger((&dialer{url: trigger}).connect, slog.New(&logbook{}))
	start(tb, b.Run)
	if err := p.Prove(Proof{Channel: "canary_of_" + fmt.Sprintf("%p", p), Every: 100 * time.Millisecond, Notify: b.Notify}); err != nil {
		tb.Fatal(err)
	}
	return p
}

// until waits for a condition on the state.
func (p *proving) until(tb testing.TB, what string, ok func(State) bool) {
	tb.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		if ok(p.State()) {
			return
		}
	}
	tb.Fatalf("%s did not happen; the state is %+v", what, p.State())
}

func TestCanary(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	p := proved(t, (&dialer{url: url}).connect, url)
	stop := start(t, p.Run)
	p.until(t, "proof", func(s State) bool {
		return s.Sent > 5 && !s.Proven.IsZero() && s.RoundTrip > 0 && s.Listening && s.Trouble == nil
	})
	p.heard.expect(t, "rescan")
	testdb.Exec(t, conn, insert, 1)
	p.heard.expect(t, "1") // no canary is a hint
	stop()
	if p.State().Overdue > 0 {
		return // a machine that takes seconds for a canary is too slow for the rest
	}
	p.log.expect(t)
	if len(p.blind) > 0 || len(p.changes) > 0 {
		t.Error("there was trouble")
	}
}

// deafConn is a socket that reads nothing after a switch, like one whose peer has vanished.
type deafConn struct {
	net.Conn
	deaf   <-chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (c *deafConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.deaf:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c *deafConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// TestDeadConnection: a connection that receives nothing is given up, and until a canary is heard
// again the relay is blind.
func TestDeadConnection(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	cut := make(chan struct{})
	var dials atomic.Int32
	p := proved(t, func(ctx context.Context) (*pgx.Conn, error) {
		cfg, err := pgx.ParseConfig(url)
		if err != nil {
			return nil, err
		}
		dial := cfg.DialFunc
		cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err == nil && dials.Add(1) == 1 {
				return &deafConn{Conn: conn, deaf: cut, closed: make(chan struct{})}, nil
			}
			return conn, err
		}
		return pgx.ConnectConfig(ctx, cfg)
	}, url)
	stop := start(t, p.Run)
	p.heard.expect(t, "rescan")
	p.until(t, "proof", func(s State) bool { return !s.Proven.IsZero() })
	close(cut)
	if !testenv.Receive(t, patience, "blindness", p.blind) {
		t.Error("not blind on a dead connection")
	}
	if testenv.Receive(t, patience, "sight", p.blind) {
		t.Error("blind on a good connection")
	}
	if err := testenv.Receive(t, patience, "the incident", p.changes); !errors.Is(err, errDead) {
		t.Errorf("reported %v", err)
	}
	p.heard.expect(t, "rescan")
	testdb.Exec(t, conn, insert, 1)
	p.heard.expect(t, "1")
	if err := testenv.Receive(t, patience, "the end of the incident", p.changes); err != nil {
		t.Errorf("reported %v", err)
	}
	stop()
	p.log.expect(t, "WARN not listening", "INFO listening again")
	if s := p.State(); s.Lost < 1 || s.Overdue < 1 {
		t.Errorf("%+v", s)
	}
}

// TestPoolerIsFound: LISTEN through a pooler in transaction mode is accepted, and no notification
// is heard. It is reported once, with the remedy.
func TestPoolerIsFound(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	d := &dialer{url: testenv.PgBouncer(t, url, "transaction") + "&default_query_exec_mode=exec"}
	p := proved(t, d.connect, url)
	stop := start(t, p.Run)
	p.heard.expect(t, "rescan")
	if err := testenv.Receive(t, patience, "the incident", p.changes); !errors.Is(err, ErrDeaf) {
		t.Errorf("reported %v", err)
	}
	if !testenv.Receive(t, patience, "blindness", p.blind) {
		t.Error("not blind behind a pooler")
	}
	p.until(t, "another attempt", func(s State) bool { return s.Overdue >= 2 })
	stop()
	p.log.expect(t, "WARN not listening")
	if len(p.blind)+len(p.changes) > 0 {
		t.Error("reported more than one incident")
	}
}

// TestPoolerThatKeepsSessions: a pooler in session mode counts as a direct connection.
func TestPoolerThatKeepsSessions(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	p := proved(t, (&dialer{url: testenv.PgBouncer(t, url, "session")}).connect, url)
	start(t, p.Run)
	p.until(t, "proof", func(s State) bool { return s.Sent > 5 && !s.Proven.IsZero() && s.Trouble == nil })
}

// TestCanaryThatCannotBeSent: the state of the listening connection is unknown, and the relay is
// blind.
func TestCanaryThatCannotBeSent(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	p := proved(t, (&dialer{url: url}).connect, url)
	send, down := p.proof.Notify, make(chan struct{})
	p.proof.Notify = func(ctx context.Context, channel, payload string) error {
		select {
		case <-down:
			return send(ctx, channel, payload)
		default:
			return errors.New("no connection")
		}
	}
	stop := start(t, p.Run)
	p.until(t, "trouble", func(s State) bool { return s.Unsent > 3 && s.Trouble != nil })
	if !testenv.Receive(t, patience, "blindness", p.blind) {
		t.Error("not blind")
	}
	close(down)
	if testenv.Receive(t, patience, "sight", p.blind) {
		t.Error("still blind")
	}
	if err := testenv.Receive(t, patience, "the incident", p.changes); err == nil {
		t.Error("reported only the end")
	}
	if err := testenv.Receive(t, patience, "its end", p.changes); err != nil {
		t.Errorf("reported %v", err)
	}
	stop()
	p.log.expect(t, "WARN not listening", "INFO listening again")
	if s := p.State(); s.Lost != 0 || s.Trouble != nil {
		t.Errorf("%+v", s)
	}
}

// TestStorm: however often the connection comes and goes, one line reports the incident, and one
// line sums it up. A connection that broke at once is not replaced at once.
func TestStorm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, changes := &logbook{}, 0
		l := newListener(nil, "c", make(hintLog, 1), slog.New(log), nil)
		l.conn.subscribers[0].OnChange = func(error) { changes++ }
		for range 20 {
			l.conn.listens(&pgx.Conn{}, false)
			<-time.After(calm - time.Millisecond)
			l.conn.settle()
			l.conn.ended(t.Context(), errors.New("terminating connection"))
			for range 5 {
				l.conn.ended(t.Context(), errors.New("sorry, too many clients already"))
			}
		}
		log.expect(t, "WARN not listening")
		l.conn.listens(&pgx.Conn{}, false)
		<-time.After(l.conn.settle())
		l.conn.settle()
		log.expect(t, "WARN not listening", "INFO listening again")
		if s := l.State(); changes != 2 || s.Lost != 20 {
			t.Errorf("%d changes, %+v", changes, s)
		}
	})
}

func TestIncompleteProof(t *testing.T) {
	t.Parallel()
	notify := func(context.Context, string, string) error { return nil }
	for name, p := range map[string]Proof{
		"no channel":      {Every: 1, Notify: notify},
		"events' channel": {Channel: "c", Every: 1, Notify: notify},
		"no time":         {Channel: "d", Notify: notify},
		"no notify":       {Channel: "d", Every: 1},
	} {
		if err := newListener(nil, "c", make(hintLog, 1), slog.New(&logbook{}), nil).Prove(p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
