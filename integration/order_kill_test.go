package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
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

const (
	// envOrderVictim makes this test binary a relay on the given database, whose
	// destinations are all at the URL of envOrderObserver.
	envOrderVictim   = "NOTIFYD_TEST_ORDER_VICTIM_URL"
	envOrderObserver = "NOTIFYD_TEST_ORDER_OBSERVER_URL"
	envOrderRelay    = "NOTIFYD_TEST_ORDER_RELAY"

	orderRelays = 3
)

// fatal is the failer of a process without a test.
type fatal struct{}

func (fatal) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// orderVictim runs a relay until it is killed, or asked to stop.
func orderVictim(url string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println("ready to be stopped")
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		panic(err)
	}
	seed, err := strconv.ParseUint(os.Getenv(envOrderSeed), 10, 64)
	if err != nil {
		panic(err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	cfg := orderConfig(rand.New(rand.NewPCG(seed, 2000)))
	cfg.Logger = log
	relay, err := notifyd.New(pool, cfg)
	if err != nil {
		panic(err)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	base := os.Getenv(envOrderObserver) + "/" + os.Getenv(envOrderRelay)
	handleInOrder(fatal{}, relay, func(ctx context.Context, dest string, e *delivery.Event) error {
		return askObserver(ctx, client, fmt.Sprintf("%s/%s/%d/%d", base, dest, e.ID, e.Attempt))
	})
	if err := relay.Run(ctx); err != nil {
		panic(err)
	}
}

// askObserver is a delivery by a relay in a separate process.
func askObserver(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
	if err != nil {
		return delivery.Permanent(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return delivery.Unavailable(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return delivery.Unavailable(err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusGone:
		return delivery.Permanent(errors.New(resp.Status))
	case http.StatusServiceUnavailable:
		return delivery.Unavailable(errors.New(resp.Status))
	default:
		return errors.New(resp.Status)
	}
}

// serve answers askObserver.
func (o *orderObserver) serve(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	attempt, err2 := strconv.Atoi(r.PathValue("attempt"))
	if err != nil || err2 != nil {
		http.Error(w, "not a delivery", http.StatusBadRequest)
		return
	}
	err = o.deliver(r.Context(), r.PathValue("relay"), r.PathValue("dest"), id, attempt)
	switch {
	case err == nil:
		w.WriteHeader(http.StatusOK)
	case o.dests[r.PathValue("dest")].fate(o.seed, id).permanent && !delivery.IsUnavailable(err):
		w.WriteHeader(http.StatusGone)
	case delivery.IsUnavailable(err):
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// chaos is a number of relays under faults.
type chaos struct {
	*env
	r        *rand.Rand
	seed     uint64
	observer string

	lives  int
	relays [orderRelays]*exec.Cmd
	took   []time.Duration // from a death until other relays owned its positions
}

// launch starts a relay.
func (c *chaos) launch(n int) {
	c.t.Helper()
	c.lives++
	c.relays[n] = c.startRelay(envOrderVictim+"="+c.url, envOrderObserver+"="+c.observer,
		envOrderRelay+"="+fmt.Sprintf("%d.%d", n, c.lives), envOrderSeed+"="+strconv.FormatUint(c.seed+uint64(c.lives), 10))
}

// startRelay starts a relay, a process of this test binary that environ selects. It returns when SIGTERM would stop the
// relay in order, and no longer kill it: the relay says so by a line. Its input ends with this process.
func (e *env) startRelay(environ ...string) *exec.Cmd {
	e.t.Helper()
	self, err := os.Executable()
	if err != nil {
		e.t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(e.ctx), self)
	out, in, err := os.Pipe()
	if err != nil {
		e.t.Fatal(err)
	}
	defer out.Close() //nolint:errcheck // it is read
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), environ...), in, os.Stderr
	_, err = cmd.StdinPipe() // Wait closes it
	if err == nil {
		err = cmd.Start()
	}
	_ = in.Close() // the relay has its own
	if err != nil {
		e.t.Fatal(err)
	}
	err = out.SetReadDeadline(time.Now().Add(patience))
	if err == nil {
		_, err = out.Read(make([]byte, 1))
	}
	if err != nil {
		_ = cmd.Process.Kill()
		e.t.Fatalf("the relay does not say that it has begun: %v", errors.Join(err, cmd.Wait()))
	}
	return cmd
}

// bury ends a relay by a signal and waits for its end.
func (c *chaos) bury(n int, sig os.Signal) {
	c.t.Helper()
	if c.relays[n] == nil {
		return
	}
	if err := c.relays[n].Process.Signal(sig); err != nil {
		c.t.Error(err)
	}
	err := c.relays[n].Wait()
	if err != nil && sig == syscall.SIGTERM {
		c.t.Errorf("relay %d ended with: %v", n, err)
	}
	c.relays[n] = nil
}

// unitsHeld is the number of positions that a relay owns.
const unitsHeld = `SELECT count(*) FROM outbox_positions AS p JOIN outbox_members AS m ON m.owner = p.owner`

// members is the number of relays that share them.
const members = `SELECT count(*) FROM outbox_members WHERE wants <> '{}'`

// allHeld holds if each position has a relay: those of the destinations, and that
// of the search for routes.
const allHeld = `(` + unitsHeld + `) = (SELECT count(*) FROM outbox_positions)`

// untilShared waits until each position has a relay.
func (c *chaos) untilShared() {
	c.t.Helper()
	c.until("a relay for each position", `SELECT `+allHeld+` AND EXISTS (SELECT FROM outbox_positions)`)
}

// untilTakenOver waits until the other relays own the positions of a dead one.
func (c *chaos) untilTakenOver() {
	c.t.Helper()
	begin := time.Now()
	c.until("a relay for each position of the dead one", `SELECT (`+members+`) < $1 AND `+allHeld, orderRelays)
	c.took = append(c.took, time.Since(begin))
}

// cut ends some of the relays' connections.
func (c *chaos) cut(condition string, args ...any) {
	c.t.Helper()
	c.exec(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()
		AND application_name LIKE 'notifyd/%' AND `+condition, args...)
}

// freeze stops a relay for a while, and runs an action on the others meanwhile.
func (c *chaos) freeze(n int, d time.Duration, meanwhile func()) {
	c.t.Helper()
	for _, sig := range []os.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := c.relays[n].Process.Signal(sig); err != nil {
			c.t.Fatal(err)
		}
		if sig == syscall.SIGSTOP {
			meanwhile()
			time.Sleep(d) //nolint:forbidigo // the length of the fault itself
		}
	}
}

const (
	killsOnly = 3 // kinds of strikes that kill a relay
	allFaults = 8
)

// strike produces a fault of one of the first n kinds, and repairs it.
func (c *chaos) strike(kinds int) {
	c.t.Helper()
	n := c.r.IntN(orderRelays)
	some := time.Duration(c.r.IntN(3000)) * time.Millisecond
	switch c.r.IntN(kinds) {
	case 0, 1:
		c.bury(n, syscall.SIGKILL)
		c.untilTakenOver()
		time.Sleep(some) //nolint:forbidigo // the length of the fault itself
		c.launch(n)
	case 2:
		c.bury(n, syscall.SIGKILL)
		c.launch(n)
		c.untilShared()
	case 3:
		c.bury(n, syscall.SIGTERM)
		c.launch(n)
	case 4:
		c.freeze(n, some, func() {})
	case 5: // it has lost everything without noticing
		c.freeze(n, some, func() { c.cut(`application_name = 'notifyd/leases'`) })
	case 6:
		c.cut(`application_name = 'notifyd/leases'`)
		c.untilShared()
	case 7:
		c.cut(`random() < $1`, c.r.Float64())
		c.untilShared()
	}
}

// TestOrderUnderKills: relays are killed while events are written. Only a suffix
// of each aggregate's deliveries repeats, and nothing comes before its turn.
func TestOrderUnderKills(t *testing.T) {
	t.Parallel()
	c, o := underFaults(t, killsOnly, (*env).writeInOrder)
	o.check(t, c.env)
	o.checkCopies(t, c.env)
}

// TestOrderUnderFaults: relays are killed, frozen, stopped and cut off while
// events are written. Deliveries may repeat, but no event comes for the first
// time before its turn.
func TestOrderUnderFaults(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	c, o := underFaults(t, allFaults, (*env).writeInOrder)
	o.check(t, c.env)
}

// leastStrikes is the least number of faults, however slow the machine is.
const leastStrikes = 2

// underFaults lets relays deliver under faults of the given number of kinds.
func underFaults(t *testing.T, kinds int, write func(e *env, ctx context.Context, seed uint64)) (*chaos, *orderObserver) {
	t.Helper()
	seed := orderSeed(t)
	e, o := newEnvIn(t, outboxsql.ModeStream), newOrderObserver(seed)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{relay}/{dest}/{id}/{attempt}", o.serve)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c := &chaos{env: e, r: rand.New(rand.NewPCG(seed, 3000)), seed: seed, observer: server.URL}
	t.Cleanup(func() {
		for n := range c.relays {
			c.bury(n, syscall.SIGKILL)
		}
	})
	for n := range c.relays {
		c.launch(n)
	}
	c.untilShared()
	ctx, cancel := context.WithTimeout(t.Context(), orderFor(t, 10*time.Second))
	defer cancel()
	stop := o.operate(t, e)
	var writing sync.WaitGroup
	writing.Go(func() { write(e, ctx, seed) })
	for strikes := 0; (strikes < leastStrikes || ctx.Err() == nil) && !t.Failed(); strikes++ {
		c.strike(kinds)
		time.Sleep(time.Duration(c.r.IntN(1000)) * time.Millisecond) //nolint:forbidigo // a while without a fault
	}
	writing.Wait()
	o.untilOrdered(e, stop)
	for n := range c.relays {
		c.bury(n, syscall.SIGTERM)
	}
	slices.Sort(c.took)
	t.Logf("%d relays lived; all positions were held again after %v", c.lives, c.took)
	return c, o
}
