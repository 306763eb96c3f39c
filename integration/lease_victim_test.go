package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// envLeaseVictim makes this test binary a relay on the given database, with short
// leases. It prints the events that its destinations begin. They hold events of
// the types "first", "both" and "held" until a line on the standard input
// releases each; "a" holds none.
const envLeaseVictim = "NOTIFYD_TEST_LEASE_VICTIM_URL"

// The commands of a lease victim.
const (
	sayAnswer = "answer" // print the backlog
	sayFenced = "fenced" // print the number of refused answers
)

// leaseVictim runs the relay until the standard input ends.
func leaseVictim(url string) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		panic(err)
	}
	relay, err := notifyd.New(pool, notifyd.Config{Lease: time.Second, Logger: slog.New(slog.NewTextHandler(os.Stdout, nil))})
	if err != nil {
		panic(err)
	}
	answer := make(chan struct{})
	begin := func(name string) delivery.HandlerFunc {
		return func(ctx context.Context, e *delivery.Event) error {
			if e.Type != "fast" {
				fmt.Println(begun(name, e.ID))
			}
			if name == "a" || e.Type == "fast" || e.Type == "tail" {
				return nil
			}
			select {
			case <-answer:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	err = errors.Join(relay.Add(notifyd.Destination{Name: "a", Handler: begin("a")}), relay.Add(notifyd.Destination{Name: "b", Handler: begin("b"), Lane: delivery.Lane{Concurrency: 1, Timeout: time.Hour}}),
		relay.Add(notifyd.Destination{Name: "c", Handler: begin("c"), Lane: delivery.Lane{Timeout: time.Hour}}), relay.Route("both", "a", "b"), relay.Route("held", "c"),
		relay.Route("fast", "b"), relay.Route("first", "b"), relay.Route("tail", "b"))
	if err != nil {
		panic(err)
	}
	go func() {
		panic(relay.Run(ctx))
	}()
	<-relay.Ready()
	fmt.Println(victimReady)
	for s := bufio.NewScanner(os.Stdin); s.Scan(); {
		switch s.Text() {
		case sayAnswer:
			answer <- struct{}{}
		case sayFenced:
			fmt.Println(sayFenced, relay.Stats().Fenced, "in all")
		}
	}
}

// begun is the output of a lease victim for an event.
func begun(name string, id int64) string { return fmt.Sprintf("%s begins with %d.", name, id) }

// leaseProcess is such a process, seen from the test.
type leaseProcess struct {
	*env

	process *os.Process
	said    *logBuffer
	ears    io.Writer
}

// startLeaseVictim starts such a process and waits until it is ready.
func (e *env) startLeaseVictim() *leaseProcess {
	e.t.Helper()
	self, err := os.Executable()
	if err != nil {
		e.t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(e.ctx), self)
	v := &leaseProcess{env: e, said: &logBuffer{}}
	cmd.Env = append(os.Environ(), envLeaseVictim+"="+e.url)
	cmd.Stdout, cmd.Stderr = v.said, v.said
	if v.ears, err = cmd.StdinPipe(); err != nil { // Wait closes it
		e.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	v.process = cmd.Process
	e.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be dead already
		_ = cmd.Wait()
		if e.t.Failed() {
			e.t.Logf("the other process said:\n%s", v.said.text())
		}
	})
	testenv.Await(e.t, "the start of the other process", func() bool { return v.has(victimReady) })
	return v
}

func (v *leaseProcess) has(line string) bool {
	return strings.Contains(v.said.text(), line+"\n")
}

// times returns how often the process has begun to deliver an event.
func (v *leaseProcess) times(name string, id int64) int {
	return strings.Count(v.said.text(), begun(name, id)+"\n")
}

func (v *leaseProcess) tell(line string) {
	v.t.Helper()
	if _, err := io.WriteString(v.ears, line+"\n"); err != nil {
		v.t.Fatal(err)
	}
}

func (v *leaseProcess) signal(sig os.Signal) {
	v.t.Helper()
	testenv.Signal(v.t, v.process, sig)
}

// tailed makes the process hold leases for an event that it has begun and for
// some behind it, which wait for their turn. It returns the first and the last id
// of those that were written together, and the number of leases.
func (v *leaseProcess) tailed() (first, last int64, leases int) {
	v.t.Helper()
	for range 20 {
		// A worker takes several events at once from a destination that takes microseconds.
		v.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'fast', '1' FROM generate_series(1, 500)`)
		v.untilDone()
		v.exec(`INSERT INTO outbox_events (event_type, payload) SELECT CASE n WHEN 1 THEN 'first' ELSE 'tail' END, '1' FROM generate_series(1, 40) AS n ORDER BY n`)
		last = scan[int64](v.env, `SELECT max(id) FROM outbox_events`)
		v.until("the first one under a lease", `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE event_type = 'first' AND state = 'running')`)
		leases = scan[int](v.env, `SELECT count(*) FROM outbox_deliveries WHERE state = 'running'`)
		first = scan[int64](v.env, `SELECT event_id FROM outbox_deliveries WHERE event_type = 'first'`)
		if leases > 1 {
			return first, last, leases
		}
		v.tell(sayAnswer) // the machine was busy, and so the destination was slow
		v.untilDone()
	}
	v.t.Fatal("nothing waits behind a slow delivery")
	return 0, 0, 0
}

// register gives a relay the destinations of a lease victim.
func (v *leaseProcess) register(a, b, c delivery.Handler) func(*notifyd.Relay) {
	v.t.Helper()
	return func(r *notifyd.Relay) {
		err := errors.Join(r.Add(notifyd.Destination{Name: "a", Handler: a}), r.Add(notifyd.Destination{Name: "b", Handler: b}), r.Add(notifyd.Destination{Name: "c", Handler: c}),
			r.Route("both", "a", "b"), r.Route("held", "c"), r.Route("*", "b"))
		if err != nil {
			v.t.Fatal(err)
		}
	}
}

// TestFrozenRelayIsFencedOff freezes a relay that is delivering. Another one
// takes over its leases when they end, although the lock that proves its life is held.
// The late answers are refused, for events that were delivered meanwhile and for
// those that the other relay is delivering; and events that waited behind them
// are not begun any longer.
func TestFrozenRelayIsFencedOff(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	frozen, h, holds := e.startLeaseVictim(), newRecorder(t), newRecorder(t)
	answer := make(chan struct{})
	release := sync.OnceFunc(func() { close(answer) })
	holds.answer = func(context.Context, *delivery.Event) error {
		<-answer
		return nil
	}
	first, last, leases := frozen.tailed()
	held := e.insert("held", "1")
	e.until("one more lease", `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE event_id = $1 AND state = 'running')`, held)
	frozen.signal(syscall.SIGSTOP)
	other := e.relay(frozen.register(newRecorder(t), h, holds), notifyd.Config{PollInterval: 100 * time.Millisecond})
	t.Cleanup(release)
	// All events are delivered or begun, and the frozen relay has not noticed.
	holds.next()
	e.until("the rest delivered", `SELECT count(*) = 1 FROM outbox_events WHERE state <> 'done'`)
	if !scan[bool](e, `SELECT count(*) = 2 FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = 1853122159
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) {
		t.Error("the frozen relay has lost the lock that proves life, so its leases prove nothing")
	}
	testenv.Await(t, "the take-over counted", func() bool { return other.Stats().Leases.TakenOver > 0 })
	frozen.tell(sayAnswer)
	frozen.tell(sayAnswer)
	frozen.signal(syscall.SIGCONT)
	// When all calls that it held are answered, it begins none of the rest.
	refused := fmt.Sprint(sayFenced, " ", leases+1, " in all")
	settled := false
	testenv.Await(t, "the answers refused", func() bool {
		frozen.tell(sayFenced)
		settled = scan[bool](e, `SELECT state = 'done' FROM outbox_events WHERE id = $1`, held)
		// They are counted before they are logged.
		return settled || frozen.has(refused) && strings.Contains(frozen.said.text(), "results refused")
	})
	if settled {
		t.Error("the late answer for an event that another relay is delivering was accepted")
	}
	release()
	e.untilDone()
	if here, there := holds.times(held), frozen.times("c", held); here != 1 || there != 1 {
		t.Errorf("the event that both were delivering began %d times here and %d times there, want 1 and 1", here, there)
	}
	for id := first; id <= last; id++ {
		here, there := h.times(id), frozen.times("b", id)
		if id == first && (here != 1 || there != 1) {
			t.Errorf("the event that was being delivered began %d times here and %d times there, want 1 and 1", here, there)
		}
		if id != first && here+there != 1 {
			t.Errorf("event %d, which waited behind it, began %d times here and %d times there, want 1 in all", id, here, there)
		}
	}
}

// TestFanOutSurvivesAKill: of an event with two destinations, only the delivery
// is repeated that the relay had not finished when it was killed.
func TestFanOutSurvivesAKill(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := newEnvIn(t, mode)
			killed, a, b := e.startLeaseVictim(), newRecorder(t), newRecorder(t)
			id := e.insert("both", "1")
			if mode == outboxsql.ModeStream {
				e.untilAll("one of two delivered", "a", `e.id = $1`, id)
			} else {
				e.until("one of two delivered", `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE event_id = $1 AND destination = 'b' AND state = 'running')`, id)
			}
			testenv.Await(t, "both begun", func() bool { return killed.times("a", id) > 0 && killed.times("b", id) > 0 })
			killed.signal(syscall.SIGKILL)
			e.relay(killed.register(a, b, newRecorder(t)), notifyd.Config{})
			if got := b.next(); got.ID != id || got.Attempt != 1 {
				t.Errorf("event %d is delivered again, attempt %d; want %d, attempt 1", got.ID, got.Attempt, id)
			}
			e.untilDone()
			if n := scan[int](e, `SELECT count(*) FROM outbox_deliveries`); n != 0 {
				t.Errorf("%d deliveries are left", n)
			}
			if n := killed.times("a", id) + a.times(id); n != 1 && !killed.said.lostClaim() {
				t.Errorf("the delivery before the kill was made %d times", n)
			}
			if n := killed.times("b", id) + b.times(id); n != 2 && !killed.said.lostClaim() {
				t.Errorf("the delivery during the kill began %d times, want 2", n)
			}
		})
	}
}
