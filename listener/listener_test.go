package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/backoff"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// hintLog takes hints, in order: "rescan" or an id.
type hintLog chan string

func (e hintLog) Wake(id int64) { e <- strconv.FormatInt(id, 10) }
func (e hintLog) Rescan()       { e <- "rescan" }

func (e hintLog) expect(tb testing.TB, want ...string) {
	tb.Helper()
	for _, w := range want {
		if got := <-e; got != w {
			tb.Fatalf("heard %s, want %s", got, w)
		}
	}
}

const insert = `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, $1::int)`

func TestListen(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	d, heard, log := &dialer{url: url}, make(hintLog, 1000), &logbook{}
	listens := 0
	l := newListener(d.connect, "outbox_events", heard, slog.New(log), func() { listens++ })
	stop := start(t, l.Run)
	heard.expect(t, "rescan")

	testdb.Exec(t, conn, insert, 3)
	heard.expect(t, "1", "2", "3")
	testdb.Exec(t, conn, insert, 100)
	heard.expect(t, "rescan")
	testdb.Exec(t, conn, `NOTIFY outbox_events, 'what?'`)
	testdb.Exec(t, conn, `NOTIFY other, '1'`)
	testdb.Exec(t, conn, `NOTIFY outbox_events, '42'`)
	heard.expect(t, "rescan", "42")

	for range 3 {
		d.terminate(t, conn)
		// Committed while no session listens, or just then: the look finds the event.
		testdb.Exec(t, conn, insert, 65)
		heard.expect(t, "rescan")
		testdb.Exec(t, conn, `NOTIFY outbox_events, '43'`)
		for got := range heard { // 65 may have been heard as well
			if got == "43" {
				break
			}
		}
	}
	stop()
	if listens != 4 {
		t.Errorf("listened %d times, want 4", listens)
	}
	log.expect(t, "WARN not listening")
	if s := l.State(); s.Lost != 3 {
		t.Errorf("%d connections lost, want 3", s.Lost)
	}
}

// TestListensBeforeItLooks: events committed during the look are heard. The look of this test
// commits one itself, on the first connection as on every later one.
func TestListensBeforeItLooks(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	d, heard := &dialer{url: url}, make(hintLog, 1000)
	l := newListener(d.connect, "outbox_events", rescanHook{heard, func() { testdb.Exec(t, conn, `NOTIFY outbox_events, '7'`) }}, slog.New(&logbook{}), nil)
	stop := start(t, l.Run)
	admin := testdb.Connect(t, url)
	for range 3 {
		heard.expect(t, "rescan", "7")
		d.terminate(t, admin)
	}
	heard.expect(t, "rescan", "7")
	stop()
}

// rescanHook runs a function at every rescan.
type rescanHook struct {
	hintLog
	look func()
}

func (l rescanHook) Rescan() {
	l.hintLog.Rescan()
	l.look()
}

// TestChannelOfAnotherSchema: names are quoted, and no other channel is heard.
func TestChannelOfAnotherSchema(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	heard := make(hintLog, 1000)
	channel := `Odd "name".outbox_events`
	start(t, newListener((&dialer{url: url}).connect, channel, heard, slog.New(&logbook{}), nil).Run)
	heard.expect(t, "rescan")
	testdb.Exec(t, conn, `SELECT pg_notify('outbox_events', '1'), pg_notify($1, '2')`, channel)
	heard.expect(t, "2")
}

// TestReportsOnce: an incident is reported once, however many attempts fail, also before the first
// connection. The end is reported when notifications have been heard for a while.
func TestReportsOnce(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	d, heard, log := &dialer{url: url}, make(hintLog, 1000), &logbook{}
	refusals := 5
	l := newListener(func(ctx context.Context) (*pgx.Conn, error) {
		if refusals > 0 {
			refusals--
			return nil, errors.New("connection refused")
		}
		return d.connect(ctx)
	}, "outbox_events", heard, slog.New(log), nil)
	changes := make(chan error, 10)
	l.conn.subscribers[0].OnChange = func(err error) { changes <- err }
	stop := start(t, l.Run)
	heard.expect(t, "rescan")
	testdb.Exec(t, conn, insert, 1)
	heard.expect(t, "1")
	for range 3 { // none of which is an incident of its own
		d.terminate(t, conn)
		heard.expect(t, "rescan")
	}
	if err := <-changes; err == nil {
		t.Error("the first report is not the loss")
	}
	if err := <-changes; err != nil {
		t.Errorf("reported %v, want the end", err)
	}
	stop()
	log.expect(t, "WARN not listening", "INFO listening again")
}

// TestPauses: attempts become rarer while a database is down, also before the first connection.
// After a connection that has lasted, the first attempts are quick.
func TestPauses(t *testing.T) {
	t.Parallel()
	for _, before := range []time.Duration{-1, 0, time.Hour} {
		t.Run(before.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var tries []time.Time
				l := newListener(func(context.Context) (*pgx.Conn, error) {
					tries = append(tries, time.Now())
					return nil, errors.New("connection refused")
				}, "c", make(hintLog, 1), slog.New(&logbook{}), nil)
				if before >= 0 { // as if it had been connected then, after trouble
					for range 20 {
						l.pauses.Next()
					}
					l.connected = time.Now()
					<-time.After(before)
				}
				begin := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				if err := l.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Run returned %v", err)
				}
				if n := len(tries); n < 40 || n > 200 {
					t.Errorf("%d tries in 5 minutes", n)
				}
				// A connection that lasted is replaced quickly, a connection that broke at once is not.
				if quick := tries[0].Sub(begin) <= 2*backoff.FirstReconnect; quick != (before != 0) {
					t.Errorf("first try after %v", tries[0].Sub(begin))
				}
			})
		})
	}
}

func TestRunEndsWhileItWaits(t *testing.T) {
	t.Parallel()
	connecting := make(chan struct{})
	once := sync.OnceFunc(func() { close(connecting) })
	stop := start(t, newListener(func(ctx context.Context) (*pgx.Conn, error) {
		once()
		<-ctx.Done()
		return nil, ctx.Err()
	}, "c", make(hintLog, 1), slog.New(&logbook{}), nil).Run)
	<-connecting
	stop()
}

func TestParsePayload(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]int64{
		"0": 0, "1": 1, "1042": 1042, "-1": -1, "9223372036854775807": math.MaxInt64, "-9223372036854775808": math.MinInt64,
	} {
		if id, ok := ParsePayload(payload); !ok || id != want {
			t.Errorf("%q is %d, %t", payload, id, ok)
		}
	}
	for _, payload := range []string{
		"", " ", "+1", "01", "-0", "00", " 1", "1 ", "1\n", "1_000", "0x10", "1.0", "1e3", "NaN", "٣", "1\x00", "-", "--1", "1-2/3",
		"9223372036854775808", "-9223372036854775809", "99999999999999999999999",
	} {
		if id, ok := ParsePayload(payload); ok {
			t.Errorf("%q is an id: %d", payload, id)
		}
	}
}

// FuzzPayload: a payload is an id exactly if it is the canonical form of one.
func FuzzPayload(f *testing.F) {
	for _, seed := range []string{"", "0", "-1", "+1", "01", " 1", "9223372036854775807", "9223372036854775808"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		id, ok := ParsePayload(payload)
		if ok != (fmt.Sprint(id) == payload) && (ok || payload != "0") {
			t.Errorf("%q: %d, %t", payload, id, ok)
		}
		n, err := strconv.Atoi(payload)
		if canonical := err == nil && strconv.Itoa(n) == payload; canonical != ok || ok && int64(n) != id {
			t.Errorf("%q: %d, %t; want %d, %t", payload, id, ok, n, canonical)
		}
	})
}

// TestSubscribers: subscribers share a connection, and each hears its own channel. One that comes while the listener runs
// hears its channel from then on, and one that has gone hears nothing.
func TestSubscribers(t *testing.T) {
	t.Parallel()
	url, conn := database(t)
	d := &dialer{url: url}
	one, two, late := make(hintLog, 1000), make(hintLog, 1000), make(hintLog, 1000)
	first := &Subscriber{Channel: "one", Hints: one}
	l := New(d.connect, slog.New(&logbook{}), first, &Subscriber{Channel: "two", Hints: two})
	start(t, l.Run)
	one.expect(t, "rescan")
	two.expect(t, "rescan")
	testdb.Exec(t, conn, `SELECT pg_notify('one', '1'), pg_notify('two', '2')`)
	one.expect(t, "1")
	two.expect(t, "2")

	l.Subscribe(&Subscriber{Channel: "late", Hints: late})
	late.expect(t, "rescan")
	one.expect(t, "rescan") // the connection was replaced
	two.expect(t, "rescan")
	testdb.Exec(t, conn, `SELECT pg_notify('late', '3'), pg_notify('two', '4')`)
	late.expect(t, "3")
	two.expect(t, "4")
	for testdb.One[int](t, conn, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT CASE WHEN set_config%'`) != 1 {
		// The server takes a moment to end the old session.
	}

	l.Unsubscribe(first)
	testdb.Exec(t, conn, `SELECT pg_notify('one', '5'), pg_notify('two', '6')`)
	two.expect(t, "6")
	select {
	case got := <-one:
		t.Errorf("heard %s after the end", got)
	default:
	}
	const listened = `SELECT EXISTS (SELECT FROM pg_locks WHERE classid = 1853122163 AND objid = (hashtext('%s')::bigint & 4294967295)::oid
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`
	until(t, conn, fmt.Sprintf(listened, "two"), true)
	until(t, conn, fmt.Sprintf(listened, "one"), false) // its writers need not notify
}

// TestSubscribersOfIncident: all subscribers learn of an incident, also one that comes during it.
func TestSubscribersOfIncident(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	d, refuse := &dialer{url: url}, make(chan struct{})
	l := New(func(ctx context.Context) (*pgx.Conn, error) {
		select {
		case <-refuse:
			return d.connect(ctx)
		default:
			return nil, errors.New("connection refused")
		}
	}, slog.New(&logbook{}))
	subscribe := func(channel string) (chan error, chan bool) {
		changes, blind := make(chan error, 10), make(chan bool, 10)
		l.Subscribe(&Subscriber{Channel: channel, Hints: make(hintLog, 100), OnChange: func(err error) { changes <- err }, OnBlind: func(is bool) { blind <- is }})
		return changes, blind
	}
	oneChanges, oneBlind := subscribe("one")
	start(t, l.Run)
	if err, blind := <-oneChanges, <-oneBlind; err == nil || !blind {
		t.Errorf("the incident began with %v, %v", err, blind)
	}
	lateChanges, lateBlind := subscribe("late")
	if err, blind := <-lateChanges, <-lateBlind; err == nil || !blind {
		t.Errorf("a late subscriber got %v, %v", err, blind)
	}
	close(refuse)
	if <-oneBlind || <-lateBlind {
		t.Error("blind after LISTEN")
	}
	if err, late := <-oneChanges, <-lateChanges; err != nil || late != nil {
		t.Errorf("the incident ended with %v and %v", err, late)
	}
}
