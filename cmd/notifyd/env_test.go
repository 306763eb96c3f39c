package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
	"github.com/notifyd/notifyd/internal/status"
)

// envSelf makes this test binary notifyd itself, for the tests that need a
// process: to signal it, or to feed its standard input.
const envSelf = "NOTIFYD_TEST_IS_NOTIFYD"

func TestMain(m *testing.M) {
	if os.Getenv(envSelf) != "" {
		main()
		return
	}
	// Under nohup the daemons that are started would inherit that this signal is ignored.
	if signal.Ignored(syscall.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	testenv.Main(m)
}

// patience bounds waiting for something that is to happen; no test expects it
// to run out.
const patience = 4 * time.Minute

// vars is the environment of a command.
type vars map[string]string

func (v vars) lookup(name string) (string, bool) {
	value, ok := v[name]
	return value, ok
}

// commandIn runs a command line with these variables alone.
func commandIn(t *testing.T, env vars, args ...string) result {
	t.Helper()
	var r result
	r.code, r.stdout, r.stderr = testenv.Command(t, run, env.lookup, args...)
	return r
}

// ended returns why a command has ended: the error of its last line, which is JSON where its log is, or all of its text.
func (r *result) ended() string {
	text := strings.TrimSuffix(r.stderr, "\n")
	var last struct{ Err string }
	if json.Unmarshal([]byte(text[strings.LastIndexByte(text, '\n')+1:]), &last) == nil && last.Err != "" {
		return last.Err
	}
	return text
}

// database makes a database with the tables and returns its URL.
func database(t *testing.T) string {
	t.Helper()
	url := testenv.Database(t)
	if got := invoke(t, "migrate", "--database-url", url); got.code != 0 {
		t.Fatalf("migrate: %+v", got)
	}
	return url
}

// modes are those that a table may have.
func modes() []string { return []string{"queue", "stream"} }

// databaseOf makes a database with tables of the mode and returns its URL.
func databaseOf(t *testing.T, mode string) string {
	t.Helper()
	url := testenv.Database(t)
	if got := invoke(t, "migrate", "--database-url", url, "--mode", mode); got.code != 0 {
		t.Fatalf("migrate: %+v", got)
	}
	return url
}

// untilDone waits until everything that was written has been delivered to all
// destinations of the table, or is a dead letter.
func untilDone(t *testing.T, url string) {
	t.Helper()
	until(t, url, `SELECT CASE (SELECT mode FROM outbox_mode)
		WHEN 'queue' THEN NOT EXISTS (SELECT FROM outbox_events WHERE state <> 'done')
		ELSE EXISTS (SELECT FROM outbox_positions WHERE destination <> '')
			AND NOT EXISTS (SELECT FROM outbox_events e, outbox_positions p WHERE p.destination <> '' AND (e.id > p.head OR p.open @> e.id))
			AND NOT EXISTS (SELECT FROM outbox_deliveries WHERE state <> 'dead') END`)
}

// publishTo inserts an event, and returns the id as it is printed.
func publishTo(t *testing.T, url string, args ...string) string {
	t.Helper()
	got := invoke(t, append([]string{"publish", "--database-url", url}, args...)...)
	if got.code != 0 {
		t.Fatalf("publish: %+v", got)
	}
	return strings.TrimSpace(got.stdout)
}

// query returns the one value of a query.
func query[T any](t *testing.T, url, sql string, args ...any) (value T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// execute runs statements.
func execute(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// until waits for a query to return true. The database has no signal for what
// other sessions do to it, so this asks again and again.
func until(t *testing.T, url, sql string, args ...any) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !query[bool](t, url, sql, args...) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never true: %s; deliveries: %s", sql, query[string](t, url,
				`SELECT coalesce(string_agg(concat_ws(' ', event_id, destination, state, attempts, last_error), '; '), 'none') FROM outbox_deliveries`))
		}
	}
}

// commandUntil runs a command again until its result is as wanted. "status" gives a
// relay two seconds to answer, and a busy machine may need more.
func commandUntil(t *testing.T, what string, wanted func(result) bool, args ...string) result {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		r := invoke(t, args...)
		if wanted(r) {
			return r
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: %q is never as wanted: %+v", what, args, r)
		}
	}
}

// hasRelay reports whether "status -o json" has heard of the relay.
func hasRelay(r result) bool {
	var s status.Status
	return json.Unmarshal([]byte(r.stdout), &s) == nil && s.Relay != nil && s.Relay.DatabaseUp
}

// deadLetter waits for the event to be given up, and returns its last error.
func deadLetter(t *testing.T, url, id string) string {
	t.Helper()
	until(t, url, "SELECT EXISTS (SELECT FROM outbox_deliveries WHERE event_id = $1::text::bigint AND state = 'dead')", id)
	return query[string](t, url, "SELECT last_error FROM outbox_deliveries WHERE event_id = $1::text::bigint AND state = 'dead'", id)
}

// mails waits until the sink has n mails.
func mails(t *testing.T, sink *smtpsink.Sink, n int) []smtpsink.Mail {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all, err := sink.Wait(ctx, n)
	if err != nil {
		t.Fatalf("%d mails of %d: %v", len(all), n, err)
	}
	return all
}

// shopConfig sends orders to a mail server on the given port and to stdout.
func shopConfig(url string, port int) string {
	return fmt.Sprintf(`version: 1
database: {url: "%s"}
log: {level: debug, format: json}
destinations:
  mail:
    type: email
    host: 127.0.0.1
    port: %d
    tls: none
    from: Shop <shop@example.com>
    to: "{{ .Payload.email }}"
    subject: "Order {{ .Payload.order }}, attempt {{ .Event.Attempt }}"
    text: "Thank you for order {{ .Payload.order }}."
  audit: {type: log}
routes:
  - {match: order.placed, to: [mail, audit]}
`, url, port)
}

const order = `{"order": 7, "email": "ann@example.com"}`

// output collects what is printed, and tells when there is more.
type output struct {
	mu   sync.Mutex
	b    bytes.Buffer
	more chan struct{} // closed by the next write
}

func newOutput() *output { return &output{more: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.more)
	o.more = make(chan struct{})
	return o.b.Write(p)
}

func (o *output) read() (text string, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String(), o.more
}

func (o *output) text() string {
	text, _ := o.read()
	return text
}

// await waits until the text is there.
func (o *output) await(t *testing.T, want string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		text, more := o.read()
		if strings.Contains(text, want) {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("%q was not printed; what was:\n%s", want, text)
		}
	}
}

// runningDaemon is a command that goes on until it is stopped.
type runningDaemon struct {
	stdout, stderr *output
	stop           context.CancelFunc
	code           chan int
}

// startDaemon runs a command line in this process. The end of the test ends it.
func startDaemon(t *testing.T, env vars, args ...string) *runningDaemon {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	d := &runningDaemon{stdout: newOutput(), stderr: newOutput(), stop: stop, code: make(chan int, 1)}
	go func() { d.code <- run(ctx, args, d.stdout, d.stderr, env.lookup) }()
	t.Cleanup(func() { d.end(t) })
	return d
}

// end stops the command and returns its exit code; it may be called again.
func (d *runningDaemon) end(t *testing.T) int {
	t.Helper()
	d.stop()
	return d.wait(t)
}

func (d *runningDaemon) wait(t *testing.T) int {
	t.Helper()
	select {
	case code := <-d.code:
		d.code <- code
		return code
	case <-time.After(patience):
		t.Errorf("notifyd does not end; it said:\n%s", d.stderr.text())
		return -1
	}
}

// process is notifyd as a process of its own.
type process struct {
	runningDaemon
	cmd *exec.Cmd
}

// startProcess starts one, with these variables on top of the test's own.
func startProcess(t *testing.T, stdin string, args ...string) *process {
	t.Helper()
	return startProcessOn(t, strings.NewReader(stdin), args...)
}

// startProcessOn is startProcess with an input that may be a terminal.
func startProcessOn(t *testing.T, stdin io.Reader, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startProgram(t, stdin, self, args...)
}

// startWith starts one by a program that becomes it, such as nohup.
func startWith(t *testing.T, program string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startProgram(t, strings.NewReader(""), program, append([]string{self}, args...)...)
}

func startProgram(t *testing.T, stdin io.Reader, program string, args ...string) *process {
	t.Helper()
	return startProgramTo(t, nil, stdin, program, args...)
}

// startProgramTo is startProgram with a standard output of its own, unless that is nil.
func startProgramTo(t *testing.T, stdout *os.File, stdin io.Reader, program string, args ...string) *process {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context())) // stop kills it
	p := &process{
		runningDaemon: runningDaemon{stdout: newOutput(), stderr: newOutput(), stop: stop, code: make(chan int, 1)},
		cmd:           exec.CommandContext(ctx, program, args...),
	}
	p.cmd.Env = append(os.Environ(), envSelf+"=1")
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stdin, p.stdout, p.stderr
	if stdout != nil {
		p.cmd.Stdout = stdout
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // the exit code says all
		p.code <- p.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() { p.end(t) })
	return p
}

// signal sends a signal.
func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	testenv.Signal(t, p.cmd.Process, s)
}
