package relaytest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// TestExactlyOnceRateLimited: a destination that keeps its position gets each event once and in order under a rate limit,
// no sooner than that allows, also where transactions fail and relays follow one another.
func TestExactlyOnceRateLimited(t *testing.T) {
	t.Parallel()
	l := newExactLife(t)
	const rate, burst, n = 200, 10, 150
	l.breaks = true
	l.lane = delivery.Lane{RateLimit: delivery.Rate{Events: rate, Per: time.Second}, RateBurst: burst}
	began := time.Now()
	written := make(map[string][]int64)
	for id := range int64(2 * n) {
		written[fmt.Sprint(id%n+1)] = append(written[fmt.Sprint(id%n+1)], id+1)
	}
	for i := range 2 {
		l.write(n)
		if err := l.run((i + 1) * n); err != nil {
			t.Fatal(err)
		}
	}
	if soonest := (2*n - burst) * time.Second / rate; time.Since(began) < soonest {
		t.Errorf("all came within %v, want at least %v", time.Since(began), soonest)
	}
	l.cluster.verdict(t, written)
}

// TestExactlyOnceExpires: expired events stay behind the position, and all others arrive once. That holds even if
// transactions fail, and if the position in the database is older than the destination's.
func TestExactlyOnceExpires(t *testing.T) {
	t.Parallel()
	l := newExactLife(t)
	l.breaks = true
	l.lane = delivery.Lane{ExpiresAfter: 10 * time.Minute}
	l.exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, created_at)
		SELECT 'one', 'a', (i % 7)::text, '{}', now() - CASE WHEN i % 3 = 0 THEN interval '1 hour' ELSE interval '0' END FROM generate_series(1, 200) i`)
	var want []int64
	for id := range int64(200) {
		if (id+1)%3 != 0 {
			want = append(want, id+1)
		}
	}
	if err := l.run(len(want)); err != nil {
		t.Fatal(err)
	}
	l.exec(`UPDATE outbox_positions SET head = 3, open = '{}' WHERE destination = 'exactly'`) // as a crash may leave it
	l.write(1)
	if err := l.run(len(want) + 1); err != nil {
		t.Fatal(err)
	}
	if got := l.ids(0); !slices.Equal(got, append(want, 201)) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	var rows int
	if err := l.pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox_deliveries`).Scan(&rows); err != nil || rows > 0 {
		t.Error(rows, "rows are left", err)
	}
}
