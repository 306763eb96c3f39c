package relaytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/pgschema"
)

// TestStreamShardsSimulation: relays that come and go, are cut off, and are started with other numbers of shards lose nothing, and
// keep the order of each aggregate.
func TestStreamShardsSimulation(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	p := newSimulation(t, 3)
	p.shards = 4
	p.also = func() {
		if rand.IntN(4) == 0 {
			p.shards = 1 + rand.IntN(4)
		}
	}
	p.run(3000)
}

// TestStreamShardsExactly: a destination that keeps its positions gets each event once, whatever becomes of its transactions, of the relays,
// and of the number of its shards.
func TestStreamShardsExactly(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	p := newSimulation(t, 3)
	p.shards, p.exact = 3, newCluster()
	p.also = func() {
		if rand.IntN(4) == 0 {
			p.shards = 1 + rand.IntN(4)
		}
	}
	p.run(3000)
	p.exact.verdict(t, p.checker.written)
}

// TestStreamShardsChange: the number of shards changes while events wait, some of them stored, and so do the routes.
func TestStreamShardsChange(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	p := newSimulation(t, 2)
	p.types = []string{"one"}
	for _, n := range []int{1, 4, 2, 64, 3, 1} {
		p.shards = n
		p.start(0)
		p.start(1)
		p.insert("one", "", 300)
		p.insert("one", "50 milliseconds", 50)
		p.eventually("the shards are there", fmt.Sprintf(`SELECT count(*) = 3 * %[1]d AND count(owner) = 3 * %[1]d FROM outbox_positions
			WHERE destination IN ('goes', 'blocks', 'none') AND shards = %[1]d AND layout <> 'moving'`, n))
		p.end(1, true)
		p.insert("one", "", 100)
		p.end(0, n != 2)
	}
	p.types = append(p.types, "late")
	p.shards = 4
	p.insert("late", "", 100)
	p.start(0)
	p.start(1)
	p.insert("late", "", 100)
	p.settle()
	p.end(0, true)
	p.end(1, true)
	p.verdict()
}

// TestStreamShardsBehind: shards and routes change while one of them is far behind the others. The new shards continue at
// the position of the former shard of an event: none repeats, none is lost, and no event arrives before an earlier one of
// its aggregate.
func TestStreamShardsBehind(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, lives := range map[string][]shardsLife{
		"number and routes together": {{2, "one", false}, {3, "one late", false}, {1, "one late", false}},
		"routes later":               {{2, "one", false}, {3, "one", true}, {3, "one late", false}, {2, "one late", false}},
		"routes with one shard":      {{2, "one", false}, {1, "one", true}, {1, "one late", false}},
		"routes again and again":     {{3, "one late", false}, {2, "one", false}, {4, "one late", true}, {2, "one", true}, {1, "late one", false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			followShards(t, lives)
		})
	}
}

// shardsLife is a relay with so many shards, and the types that it has routes for.
type shardsLife struct {
	shards int
	types  string
	still  bool // the destination does not answer
}

func followShards(t *testing.T, lives []shardsLife) {
	t.Helper()
	pool := streamPool(t)
	const events, aggregates = 1500, 20 // for each life; every third event is late
	eventType := func(id int64) string {
		if id%3 == 0 {
			return "late"
		}
		return "one"
	}
	var mu sync.Mutex
	got, down, types, begun := make(map[int64]int), 0, "", int64(0)
	handler := delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if hash, _ := strconv.Atoi(e.Headers["hash"]); down > 0 && hash%down == 0 {
			return delivery.Unavailable(errors.New("down for one shard"))
		}
		for id := e.ID - aggregates; id > 0; id -= aggregates {
			if got[id] == 0 && strings.Contains(types, eventType(id)) {
				t.Errorf("%d (%s) came before %d (%s), with %d shards after event %d", e.ID, e.Type, id, eventType(id), down, begun)
				break
			}
		}
		got[e.ID]++
		return nil
	})
	for i, life := range lives {
		_, err := pool.Exec(t.Context(), `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, headers)
			SELECT CASE WHEN g % 3 = 0 THEN 'late' ELSE 'one' END, aggregate_type, aggregate_id, '{}', jsonb_build_object('hash', `+pgschema.Hash("")+`::text)
			FROM (SELECT g, 'a' AS aggregate_type, (g % $2::int)::text AS aggregate_id, 0::bigint AS id FROM generate_series(1, $1::int) AS g) AS e`, events, aggregates)
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		down, types, begun = life.shards, life.types, testdb.One[int64](t, pool, `SELECT coalesce(min(head), 0) FROM outbox_positions WHERE destination = 'x'`)
		behind, left := 1, "shard <> 1" // the first shard does not get on
		switch {
		case i == len(lives)-1:
			down, behind, left = 0, 0, "true"
		case life.still:
			down, behind, left = 1, life.shards, "false"
		}
		mu.Unlock()
		relay, err := notifyd.New(pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), PollInterval: 50 * time.Millisecond, Batch: 20})
		if err == nil {
			err = relay.Add(notifyd.Destination{Name: "x", Handler: handler, Lane: delivery.Lane{Shards: life.shards, LongestPause: 10 * time.Millisecond}})
		}
		for eventType := range strings.FieldsSeq(life.types) {
			err = errors.Join(err, relay.Route(eventType, "x"))
		}
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- relay.Run(ctx) }()
		(&simulation{t: t, pool: pool}).eventually("the others have come to the end", fmt.Sprintf(`SELECT count(*) = %[1]d AND count(*) FILTER (WHERE head = %[2]d AND open = '{}') >= %[1]d - %[3]d
			AND NOT EXISTS (SELECT FROM outbox_deliveries WHERE destination = 'x' AND %[4]s) FROM outbox_positions WHERE destination = 'x' AND shards = %[1]d`,
			life.shards, events*(i+1), behind, left))
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for id := int64(1); id <= int64(events*len(lives)); id++ {
		if got[id] != 1 {
			t.Errorf("%d (%s) came %d times", id, eventType(id), got[id])
		}
	}
}
