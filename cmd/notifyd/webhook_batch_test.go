//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// ledgerDesk takes batches of CloudEvents as docs/destinations/webhook.md tells receivers to: it answers 207, and takes no
// event behind a failed one of its aggregate.
type ledgerDesk struct {
	mu       sync.Mutex
	requests [][]string          // the ids of each
	taken    map[string][]string // by aggregate, in the order of arrival
	again    bool                // the event that fails once has failed
}

func (d *ledgerDesk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var events []struct {
		ID      string
		Subject string
		Data    struct{ N int }
	}
	if err := json.NewDecoder(r.Body).Decode(&events); err != nil || r.Header.Get("Content-Type") != "application/cloudevents-batch+json" {
		http.Error(w, fmt.Sprint(err), http.StatusServiceUnavailable) // an outage: the test does not get on
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	type result struct {
		ID     string `json:"id"`
		Status int    `json:"status"`
		Error  string `json:"error,omitempty"`
	}
	var results []result
	var ids []string
	failed := make(map[string]bool)
	for _, e := range events {
		ids = append(ids, e.ID)
		one := result{ID: e.ID, Status: http.StatusOK}
		switch {
		case failed[e.Subject]:
			one.Status = http.StatusFailedDependency
		case e.Data.N == 13:
			one.Status, one.Error = http.StatusUnprocessableEntity, "thirteen"
		case e.Data.N == 22 && !d.again:
			d.again = true
			failed[e.Subject] = true
			one.Status = http.StatusConflict
		default:
			d.taken[e.Subject] = append(d.taken[e.Subject], e.ID)
		}
		results = append(results, one)
	}
	d.requests = append(d.requests, ids)
	w.WriteHeader(http.StatusMultiStatus)
	_ = json.NewEncoder(w).Encode(results)
}

// TestWebhookBatches: a configuration file is enough for batches. The answer 207 delivers, refuses and delays single events,
// and a stream keeps the order of each aggregate.
func TestWebhookBatches(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			desk := &ledgerDesk{taken: make(map[string][]string)}
			server := httptest.NewServer(desk)
			t.Cleanup(server.Close)
			url := databaseOf(t, mode)
			execute(t, url, `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload)
				SELECT 'order.placed', 'order', 'A-' || n % 3, jsonb_build_object('n', n) FROM generate_series(1, 60) n`)
			path := file(t, fmt.Sprintf(`version: 1
database: {url: '%s'}
destinations:
  ledger: {type: webhook, url: '%s', batch_format: cloudevents, batch: 20, start_from: %s, backoff: {initial: 1ms, max: 10ms}}
routes: [{match: '*', to: ledger}]
`, url, server.URL, map[string]string{"queue": "auto", "stream": "beginning"}[mode]))
			d := startDaemon(t, nil, "run", "-c", path)
			d.stderr.await(t, `relay started`)
			until(t, url, `SELECT count(*) = 1 FROM outbox_deliveries WHERE state = 'dead'`)
			untilDone(t, url)
			desk.mu.Lock()
			defer desk.mu.Unlock()
			if len(desk.requests) >= 60 || !slices.ContainsFunc(desk.requests, func(ids []string) bool { return len(ids) > 10 && len(ids) <= 20 }) {
				t.Errorf("requests %v", desk.requests)
			}
			count, disorder := 0, false
			for _, ids := range desk.taken {
				count += len(ids)
				disorder = disorder || !slices.IsSortedFunc(ids, func(a, b string) int { return len(a)*1000 + strings.Compare(a, b) - len(b)*1000 })
			}
			if count != 59 || mode == "stream" && disorder {
				t.Errorf("%d events taken: %v", count, desk.taken)
			}
			got := invoke(t, "dlq", "list", "--database-url", url)
			if !strings.Contains(got.stdout, "422 Unprocessable Entity: thirteen") {
				t.Errorf("dead letters: %s", got.stdout)
			}
		})
	}
}
