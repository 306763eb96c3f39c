package main

import (
	"encoding/json"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestRun is the whole way: an order becomes a mail and a line on standard
// output.
func TestRun(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			checkRun(t, databaseOf(t, mode))
		})
	}
}

func checkRun(t *testing.T, url string) {
	t.Helper()
	sink := testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	d := startDaemon(t, nil, "run", "-c", file(t, shopConfig(url, sink.Port())))
	d.stderr.await(t, `"relay started"`)
	for _, want := range []string{
		`"msg":"notifyd starting","version":`, `"msg":"database","host":`,
		`"msg":"destination","name":"mail","type":"email","concurrency":4,"max_attempts":20}`,
		`"msg":"destination","name":"audit","type":"log"`, `"msg":"route","match":"order.placed","to":["mail","audit"]}`,
	} {
		if !strings.Contains(d.stderr.text(), want) {
			t.Errorf("%s is not said at the start", want)
		}
	}
	publishTo(t, url, "order.placed", order, "--aggregate", "order/7")
	m, err := mails(t, sink, 1)[0].Parse()
	if err != nil {
		t.Fatal(err)
	}
	if m.Subject != "Order 7, attempt 1" || m.To != "<ann@example.com>" || m.Text != "Thank you for order 7." {
		t.Errorf("got the mail %+v", m)
	}
	d.stdout.await(t, "\n")
	var line struct {
		EventID     int64  `json:"event_id"`
		EventType   string `json:"event_type"`
		Destination string
		Payload     json.RawMessage
	}
	if err := json.Unmarshal([]byte(d.stdout.text()), &line); err != nil {
		t.Fatal(err)
	}
	if line.EventID != 1 || line.EventType != "order.placed" || line.Destination != "audit" || string(line.Payload) != `{"order":7,"email":"ann@example.com"}` {
		t.Errorf("got the line %s", d.stdout.text())
	}
	untilDone(t, url)
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
	}
}

// TestSignalFinishesDelivery stops a process while the server takes its time
// to answer the mail.
func TestSignalFinishesDelivery(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode    string
		signals []os.Signal
	}{{"queue", []os.Signal{syscall.SIGTERM}}, {"queue", []os.Signal{syscall.SIGINT}}, {"stream", []os.Signal{syscall.SIGTERM}}} {
		signals := c.signals
		t.Run(c.mode+" "+signals[0].String(), func(t *testing.T) {
			t.Parallel()
			if signal.Ignored(signals[0]) {
				t.Skip("this process ignores the signal, and so do its children")
			}
			url, sink := databaseOf(t, c.mode), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
			slow := startGate(t, sink.Addr())
			p := startProcess(t, "", "run", "-c", file(t, shopConfig(url, slow.port)))
			publishTo(t, url, "order.placed", order)
			mails(t, sink, 1)
			for _, s := range signals {
				p.signal(t, s)
				p.stderr.await(t, `"stopping: a second signal exits at once"`)
			}
			close(slow.open)
			if code := p.wait(t); code != 0 {
				t.Errorf("exit code %d:\n%s", code, p.stderr.text())
			}
			done := "SELECT state = 'done' FROM outbox_events"
			if c.mode == "stream" { // where the other destination goes its own way
				done = "SELECT head = 1 AND isempty(open) FROM outbox_positions WHERE destination = 'mail'"
			}
			if !query[bool](t, url, done) || len(sink.Mails()) != 1 {
				t.Errorf("%d mails; the delivery was not finished:\n%s", len(sink.Mails()), p.stderr.text())
			}
		})
	}
}

func TestSecondSignalExitsAtOnce(t *testing.T) {
	t.Parallel()
	for _, second := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(second.String(), func(t *testing.T) {
			t.Parallel()
			url, sink := database(t), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
			slow := startGate(t, sink.Addr()) // never opens
			p := startProcess(t, "", "run", "-c", file(t, shopConfig(url, slow.port)))
			publishTo(t, url, "order.placed", order)
			mails(t, sink, 1)
			p.signal(t, syscall.SIGTERM)
			p.stderr.await(t, `"stopping: a second signal exits at once"`)
			if code := p.insist(t, second); code != 1 || !strings.Contains(p.stderr.text(), `"second signal, exiting at once"`) {
				t.Errorf("exit code %d:\n%s", code, p.stderr.text())
			}
			if query[bool](t, url, "SELECT state = 'done' FROM outbox_events") {
				t.Error("what was not answered is done")
			}
		})
	}
}

// insist sends the signal until the process ends, because one within [oneStop] of the first
// does not count, and returns the exit code.
func (p *process) insist(t *testing.T, s os.Signal) int {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		select {
		case code := <-p.code:
			p.code <- code // for the end of the test
			return code
		case <-tick.C:
			_ = p.cmd.Process.Signal(s) // the process may have ended meanwhile
		case <-deadline:
			t.Fatalf("the process goes on:\n%s", p.stderr.text())
		}
	}
}

// TestTwoSignalsAtOnceAreOne: a shell and a supervisor may both send the first.
func TestTwoSignalsAtOnceAreOne(t *testing.T) {
	t.Parallel()
	var s stopping
	now := time.Now()
	for _, c := range []struct {
		after        time.Duration
		first, again bool
	}{{0, true, false}, {0, false, false}, {oneStop, false, false}, {oneStop + 1, false, true}, {time.Hour, false, true}} {
		if first, again := s.another(now.Add(c.after)); first != c.first || again != c.again {
			t.Errorf("after %v: first %t, again %t", c.after, first, again)
		}
	}
}

// TestRunWaitsForDatabase starts before PostgreSQL does.
func TestRunWaitsForDatabase(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	server := testenv.OwnPostgres(t, nil)
	url := server.URL("")
	if got := invoke(t, "migrate", "--database-url", url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if err := server.Halt(t.Context(), pgserver.Fast); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, "", "run", "-c", file(t, shopConfig(url, testenv.FreePort(t))))
	const waits = `"database does not answer"`
	p.stderr.await(t, waits)
	if text := p.stderr.text(); !strings.Contains(text, `"cure":"start the server, or fix the connection string"`) {
		t.Errorf("the first warning of a start has no cure:\n%s", text)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.stderr.await(t, `"database answers again"`)
	publishTo(t, url, "order.placed", order)
	p.stdout.await(t, `"destination":"audit"`)
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != 0 || strings.Count(p.stderr.text(), waits) != 1 {
		t.Errorf("exit code %d:\n%s", code, p.stderr.text())
	}
}

// TestRunWaitsForMailServer starts before the mail server does.
func TestRunWaitsForMailServer(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	url, sink := database(t), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, nil, "run", "-c", file(t, shopConfig(url, sink.Port())))
	publishTo(t, url, "order.placed", order)
	publishTo(t, url, "order.placed", order)
	d.stderr.await(t, `"destination still down"`) // in the debug log: the probe failed too
	if err := sink.Restart(); err != nil {
		t.Fatal(err)
	}
	for _, mail := range mails(t, sink, 2) {
		if m, err := mail.Parse(); err != nil || m.Subject != "Order 7, attempt 1" {
			t.Errorf("an attempt was counted: %+v, %v", m, err)
		}
	}
	until(t, url, "SELECT bool_and(state = 'done') FROM outbox_events")
	d.stderr.await(t, `"destination up"`) // some seconds later: nothing more comes that could show it
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, once := range []string{`"destination down"`, `"destination up"`} {
		if n := strings.Count(d.stderr.text(), once); n != 1 {
			t.Errorf("%s was said %d times:\n%s", once, n, d.stderr.text())
		}
	}
}
