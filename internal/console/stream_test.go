package console

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// router sends orders to mail, and everything else to hook.
type router struct{}

func (router) DestinationsOf(eventType string) []string {
	if strings.HasPrefix(eventType, "order.") {
		return []string{"mail"}
	}
	return []string{"hook"}
}

// serveStream is serve with a stream of six events. Its destination hook has reached the first. A session owns the shards
// of mail and audit; audit is a destination of another relay.
func serveStream(t *testing.T, partitioned bool) *site {
	t.Helper()
	s := serve(t, func(c *setup) { c.Router = router{} })
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if partitioned {
		err = outboxsql.Partition(t.Context(), conn.Conn(), outboxsql.DefaultSchema, outboxsql.PartitionOptions{})
	}
	if err == nil {
		err = outboxsql.SetMode(t.Context(), conn.Conn(), outboxsql.DefaultSchema, outboxsql.ModeStream, outboxsql.ModeOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	s.exec(`DELETE FROM outbox_positions`)
	s.exec(`INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '1'), ('order.paid', '1'), ('user.gone', '1'), ('order.placed', '1'), ('order.lost', '1'), ('order.late', '1')`)
	s.exec(`INSERT INTO outbox_positions (destination, head, open) VALUES ('', 6, '{}'), ('audit', 6, '{[1,2)}'), ('gone', 0, '{}'), ('hook', 1, '{}'), ('mail', 5, '{[4,5)}')`)
	s.exec(`INSERT INTO outbox_routes (destination, since, patterns, others, head) VALUES ('audit', 1, '{*}', '{}', 0), ('gone', 1, '{bill.*}', '{*}', 0),
		('hook', 1, '{*}', '{order.*}', 0), ('mail', 1, '{order.*}', '{*}', 0)`)
	s.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, ordering_key) VALUES (2, 'mail', 'order.paid', 'retry', 1, 'k'), (5, 'mail', 'order.lost', 'dead', 20, NULL)`)
	owner, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = owner.Conn().Close(context.WithoutCancel(t.Context()))
		owner.Release()
	})
	testdb.Member(t, owner.Conn(), 7, "mail", "audit")
	return s
}

// TestStreamPages: the pages of a stream follow from its positions.
func TestStreamPages(t *testing.T) {
	t.Parallel()
	for name, partitioned := range map[string]bool{"plain": false, "partitioned": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serveStream(t, partitioned)
			s.awaitReading()
			// By the routes gone and hook receive no orders, and audit is another relay's.
			want := []string{"1 waiting", "2 waiting", "3 waiting", "4 waiting", "5 dead", "6 waiting"}
			if got := s.states("?"); !slices.Equal(got, want) {
				t.Errorf("events: %q, want %q", got, want)
			}
			s.exec(`UPDATE outbox_positions SET open = '{}' WHERE destination = 'audit'`)
			for q, want := range map[string][]string{
				"?state=waiting": {"2 waiting", "3 waiting", "4 waiting", "6 waiting"}, "?state=done": {"1 done"}, "?state=dead": {"5 dead"},
				"?state=waiting&type=order.*": {"2 waiting", "4 waiting", "6 waiting"},
			} {
				if got := s.states(q); !slices.Equal(got, want) {
					t.Errorf("%s: %q, want %q", q, got, want)
				}
			}
			for page, want := range map[string][]string{
				"events/1":              {`<span class="badge good">done</span>`, `<h3>mail</h3> <span class="badge good">delivered</span>`, `<h3>hook</h3> <span class="badge calm">not routed</span>`},
				"events/4":              {`<span class="badge warn">waiting</span>`, `<h3>mail</h3> <span class="badge calm">not acknowledged</span>`},
				"events/5":              {`<dd><span class="badge bad">dead</span>`, `<h3>mail</h3> <span class="badge bad">dead</span>`},
				"destinations":          {`id="d-gone"`, `href="/console/destination?name=gone"`},
				"destination?name=mail": {`data-label="Ids behind">2</td><td class="n" data-label="Under way">1</td>`, `data-label="Relay">a relay that does not describe itself</td>`, `<dt>Blocked aggregates</dt><dd>1</dd>`},
				"destination?name=gone": {`data-label="Relay"><span class="badge bad">none</span>`, "the purge of events above 0"},
				"relays":                {"Who delivers what", "(unrouted scanner)", `<span class="badge bad">none</span>`, ">a relay that does not describe itself</td>", "No relay delivers hook: its shard has no owner.", "notifyd run, with a configuration that has it"},
				"":                      {"No relay delivers hook: its shard has no owner.", "No relay delivers (unrouted scanner)"},
			} {
				text := s.get(Path + page)
				for _, w := range want {
					if !strings.Contains(text, w) {
						t.Errorf("page %q lacks %q:\n%s", page, w, text)
					}
				}
			}
			if text := s.get(Path + "relays"); strings.Contains(text, "Owner") || strings.Contains(text, "Claims") {
				t.Errorf("the relays of a stream:\n%s", text)
			}
		})
	}
}

// awaitReading waits until the console has read the current tables.
func (s *site) awaitReading() {
	s.Helper()
	deadline, now := time.After(patience), time.Now()
	for {
		if last := s.outbox.sampler.now(s.Context()).reading; last.at.Add(-last.took).After(now) {
			return
		}
		_, changed := s.outbox.sampler.next()
		select {
		case <-changed:
		case <-deadline:
			s.Fatal("the database is not queried")
		}
	}
}

// states returns the events of a page, oldest first, with their states.
func (s *site) states(query string) (all []string) {
	s.Helper()
	row := regexp.MustCompile(`(?s)/console/events/(\d+)">\d+</a></th>.*?<td data-label="State"><span class="badge \w+">(\w+)</span>`)
	for _, m := range row.FindAllStringSubmatch(s.get(Path+"events"+query), -1) {
		all = append(all, fmt.Sprint(m[1], " ", m[2]))
	}
	slices.Sort(all)
	return all
}

// TestWaitingInStream: a position without an owner makes no event wait.
func TestWaitingInStream(t *testing.T) {
	t.Parallel()
	b := observe.Backlog{Mode: string(outboxsql.ModeStream), Fresh: observe.Count{N: 100}, Destinations: []observe.DestinationBacklog{
		{Name: "gone", Fresh: observe.Count{N: 100}}, {Name: "a", Fresh: observe.Count{N: 7}, Retry: observe.Count{N: 1}}, {Name: "b", Fresh: observe.Count{N: 3}},
	}}
	if got := waiting(b, []observe.DestinationStats{{Name: "a"}, {Name: "b"}}); got.N != 8 {
		t.Errorf("%v wait", got)
	}
}

// TestLatencyOfStream: the latency comes from the relay, not from rows.
func TestLatencyOfStream(t *testing.T) {
	t.Parallel()
	var before, now observe.Histogram
	before.Count, before.Buckets[0] = 5, 5
	now.Count, now.Buckets[0], now.Buckets[2], now.Buckets[5] = 105, 5, 98, 2
	of := func(h observe.Histogram) []observe.DestinationStats {
		return []observe.DestinationStats{{Name: "a", Acked: h}}
	}
	if got := latencyBetween(of(before), of(now)); got.median != 0.001 || got.p99 != 0.01 {
		t.Errorf("%+v", got)
	}
	for _, none := range []latency{latencyBetween(nil, of(now)), latencyBetween(of(now), of(now)), latencyBetween(of(now), of(before))} {
		if !math.IsNaN(none.median) || !math.IsNaN(none.p99) {
			t.Errorf("of nothing: %+v", none)
		}
	}
}
