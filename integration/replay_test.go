package integration

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

const (
	// envReplayVictim makes this test binary a relay on the given database, which sends all events to
	// the URL of envReplayTo.
	envReplayVictim = "NOTIFYD_TEST_REPLAY_VICTIM_URL"
	envReplayTo     = "NOTIFYD_TEST_REPLAY_TO"
)

// replayVictim runs a relay until it is killed.
func replayVictim(url string) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		panic(err)
	}
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		panic(err)
	}
	h, err := webhook.New(webhook.Config{URL: os.Getenv(envReplayTo)})
	if err != nil {
		panic(err)
	}
	if err := relay.Handle("*", notifyd.Destination{Name: "all", Handler: h}); err != nil {
		panic(err)
	}
	panic(relay.Run(ctx))
}

// replayReceiver records requests by the ids that consumers drop duplicates by. The payload of an event
// is its aggregate.
type replayReceiver struct {
	mu      sync.Mutex
	live    map[int64]int
	replays map[string][]int64 // per aggregate, in the order of arrival
	copies  map[int64]int
	n       int
	from    string        // the relay of the last request of the replay
	half    chan struct{} // closed when half of them have come
}

func (r *replayReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	name, number, again := strings.Cut(req.Header.Get("notifyd-id"), "r")
	id, err := strconv.ParseInt(name, 10, 64)
	if err != nil || again && number != "1000" {
		http.Error(w, "no such id", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !again {
		r.live[id]++
		return
	}
	r.copies[id]++
	aggregate := string(body)
	r.replays[aggregate] = append(r.replays[aggregate], id)
	r.from = req.URL.Path
	if r.n++; r.n == replayEvents/2 {
		close(r.half)
	}
}

const (
	replayEvents     = 3000
	replayAggregates = 40
)

// TestReplayTakenOver: the relay that replays is killed in the middle. Another one continues: every event of the range is
// delivered with the replay's number, in the order of its aggregate. Live events are delivered as usual.
func TestReplayTakenOver(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, outboxsql.ModeStream)
	r := &replayReceiver{live: make(map[int64]int), replays: make(map[string][]int64), copies: make(map[int64]int), half: make(chan struct{})}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	const insert = `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
		SELECT 'a', 'order', n % $2::int, to_json(n % $2::int) FROM generate_series(1, $1::int) AS n`
	e.exec(insert, replayEvents, replayAggregates)
	relays := e.replayVictims(server.URL, "/one", "/two")
	e.untilDone()
	s, err := ops.New(e.pool, ops.Config{Schema: outboxsql.DefaultSchema})
	if err != nil {
		t.Fatal(err)
	}
	replay, err := s.StartReplay(e.ctx, ops.ReplayRange{Destination: "all"}, ops.Action{})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.half:
	case <-time.After(patience):
		r.mu.Lock()
		defer r.mu.Unlock()
		t.Fatalf("%d events of the replay came, and %d others\n%s", r.n, len(r.live), e.dump())
	}
	r.mu.Lock()
	owner := r.from
	r.mu.Unlock()
	if err := relays[owner].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	e.exec(insert, 100, replayAggregates)
	limited, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	replay, outcome, err := s.AwaitReplay(limited, replay.ID, nil)
	if err != nil || replay.State != observe.ReplayDone || outcome != (ops.ReplayOutcome{Delivered: replayEvents}) || replay.Skipped != 0 {
		t.Fatalf("%+v, %+v, %v", replay, outcome, err)
	}
	e.untilDone()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.from == owner {
		t.Error("nobody took over")
	}
	if len(r.copies) != replayEvents || len(r.live) != replayEvents+100 {
		t.Errorf("%d of %d events came again; %d live ones", len(r.copies), replayEvents, len(r.live))
	}
	t.Logf("%d copies", r.n-replayEvents)
	r.inOrder(t)
}

// inOrder fails unless the events of each aggregate came in order; some came twice.
func (r *replayReceiver) inOrder(t *testing.T) {
	t.Helper()
	for aggregate, ids := range r.replays {
		seen := make(map[int64]bool)
		var highest int64
		for _, id := range ids {
			if !seen[id] && id < highest {
				t.Errorf("aggregate %s: %d came after %d", aggregate, id, highest)
			}
			seen[id], highest = true, max(highest, id)
		}
	}
}

// replayVictims starts relays. Each sends to its path.
func (e *env) replayVictims(to string, paths ...string) map[string]*exec.Cmd {
	e.t.Helper()
	relays := make(map[string]*exec.Cmd)
	self, err := os.Executable()
	if err != nil {
		e.t.Fatal(err)
	}
	for _, path := range paths {
		cmd := exec.CommandContext(e.ctx, self)
		cmd.Env = append(os.Environ(), envReplayVictim+"="+e.url, envReplayTo+"="+to+path)
		cmd.Stderr = os.Stderr
		e.run(cmd)
		relays[path] = cmd
	}
	return relays
}
