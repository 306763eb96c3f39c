package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// killer is a webhook's server that kills the process of notifyd when events of the type killer arrive. The first kill waits for
// several large events.
type killer struct {
	*httptest.Server

	mu        sync.Mutex
	round     string // the path of the running process
	process   *process
	large     map[string]bool // ids of its large events in flight
	together  int             // how many large events the first kill waits for
	arrived   chan struct{}   // closed when they are in flight
	besides   []string        // large events in flight together after the first kill
	delivered map[string]bool
	isTame    bool // it kills no longer
}

func newKiller(t *testing.T, together int) *killer {
	t.Helper()
	k := &killer{together: together, arrived: make(chan struct{}), delivered: make(map[string]bool)}
	k.Server = httptest.NewServer(k)
	t.Cleanup(k.Close)
	return k
}

// ServeHTTP implements http.Handler.
func (k *killer) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.ReadAll(r.Body) // fails at the end of the process
	id, kind := r.Header.Get("notifyd-id"), k.kind(r.Header.Get("notifyd-type"))
	isFirst := r.URL.Path == "/1"
	p := k.begins(r.URL.Path, id, kind)
	if isFirst && kind != "small" {
		<-k.arrived
	}
	if kind == "killer" && p != nil {
		_ = p.cmd.Process.Kill() // it may have ended
	}
	isLost := kind == "killer" || isFirst && kind == "large"
	if isLost {
		<-r.Context().Done()
	}
	k.ends(r.URL.Path, id, !isLost)
}

// begins records a call, and returns the process that makes it, if it is a large one of the running process.
func (k *killer) begins(round, id, kind string) *process {
	k.mu.Lock()
	defer k.mu.Unlock()
	if kind == "small" || round != k.round {
		return nil
	}
	k.large[id] = true
	switch {
	case round == "/1" && len(k.large) == k.together:
		close(k.arrived)
	case round != "/1" && len(k.large) > 1:
		k.besides = append(k.besides, fmt.Sprint(k.large))
	}
	return k.process
}

func (k *killer) ends(round, id string, delivered bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if round == k.round {
		delete(k.large, id)
	}
	k.delivered[id] = k.delivered[id] || delivered
}

// tame ends the kills.
func (k *killer) tame() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.isTame = true
}

// kind returns what an event of a type is.
func (k *killer) kind(eventType string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isTame && eventType == "killer" {
		return "large"
	}
	return eventType
}

// got returns the events that were delivered.
func (k *killer) got() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return fmt.Sprint(k.delivered)
}

// start runs notifyd for the n-th time.
func (k *killer) start(t *testing.T, n int, config string) *process {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.round, k.large = fmt.Sprintf("/%d", n), make(map[string]bool)
	k.process = startProcess(t, "", "run", "-c", file(t, strings.ReplaceAll(config, "URL", k.URL+k.round)))
	return k.process
}

// TestKilledByAnEvent: a large event during whose calls the process is killed becomes a dead letter after its attempts, with the
// reason. Other events are delivered, also those that were in flight when it was killed. A replay has all attempts again.
func TestKilledByAnEvent(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, mode)
			k := newKiller(t, 4)
			execute(t, url, `INSERT INTO outbox_events (event_type, payload) SELECT kind, to_json(repeat('x', size)) FROM (VALUES
				('large', 1100000), ('killer', 1100000), ('small', 10), ('large', 1100000), ('killer', 1100000)) AS e (kind, size)`)
			config := "version: 1\ndatabase: {url: '" + url + "'}\nrelay: {poll_interval: 20ms}\n" +
				"destinations: {hook: {type: webhook, url: 'URL', max_attempts: 3}}\nroutes: [{match: '*', to: hook}]\n"

			// The first one kills both, and each of the others one.
			for n := range 5 {
				p := k.start(t, n+1, config)
				if code := p.wait(t); code != -1 {
					t.Fatalf("exit code %d:\n%s", code, p.stderr.text())
				}
			}
			p := k.start(t, 6, config)
			until(t, url, `SELECT count(*) = 2 AND bool_and(state = 'dead' AND attempts = 3 AND error_class = 'event') FROM outbox_deliveries`)
			if mode == "stream" {
				untilPast(t, url, 5, "hook")
			} else {
				until(t, url, `SELECT NOT EXISTS (SELECT FROM outbox_events WHERE state <> 'done')`)
			}
			for _, id := range []string{"2", "5"} {
				if text := invoke(t, "events", "show", "--database-url", url, id).stdout; !strings.Contains(text, "the process ended during each of the last 3 calls with the event") {
					t.Error(text)
				}
			}
			if r := invoke(t, "status", "--database-url", url); !strings.Contains(r.stdout, "the process ended during each of the last") {
				t.Error(r.stdout)
			}
			if left := query[string](t, url, `SELECT string_agg(event_id || ' ' || calls, ', ' ORDER BY event_id) FROM outbox_calls`); left != "2 3, 5 3" {
				t.Errorf("calls that have not ended: %s", left)
			}
			if got := k.got(); got != "map[1:true 2:false 3:true 4:true 5:false]" {
				t.Errorf("delivered are %s", got)
			}

			k.tame()
			if r := invoke(t, "dlq", "replay", "2", "5", "--database-url", url, "--yes"); r.code != 0 {
				t.Fatal(r)
			}
			until(t, url, `SELECT NOT EXISTS (SELECT FROM outbox_deliveries) AND NOT EXISTS (SELECT FROM outbox_calls)`)
			p.signal(t, syscall.SIGTERM)
			if code := p.wait(t); code != 0 {
				t.Errorf("exit code %d:\n%s", code, p.stderr.text())
			}
			if got := k.got(); got != "map[1:true 2:false 2r1:true 3:true 4:true 5:false 5r1:true]" {
				t.Errorf("delivered are %s", got)
			}
			if len(k.besides) > 0 {
				t.Errorf("large events in flight together after the first kill: %v", k.besides)
			}
		})
	}
}
