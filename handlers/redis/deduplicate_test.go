package redis

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func once(c *Config) { c.Deduplicate = minDeduplicate }

// TestDeduplicate delivers events that a stream has already, and similar ones.
func TestDeduplicate(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	h := open(t, place.URL, to(place.Name), once)
	deliverytest.Deliver(t, h, events(1, 2))
	deliverytest.Deliver(t, h, events(2, 5, 5))
	deliverytest.Deliver(t, h, events(4, 3, 2)) // committed later than 5
	// The same id, of another database.
	other := events(3)
	other[0].CreatedAt = other[0].CreatedAt.Add(time.Microsecond)
	deliverytest.Deliver(t, h, other)
	// To another destination.
	other = events(1)
	other[0].Destination = "backup"
	deliverytest.Deliver(t, h, other)
	if got := written(t, client(t, place.URL), place.Name); !slices.Equal(got, []int64{1, 2, 5, 4, 3, 3, 1}) {
		t.Errorf("written: %d", got)
	}
	// A person has asked for it, in another process.
	again := open(t, place.URL, to(place.Name), once)
	replay := events(1)
	replay[0].Replay = 1
	deliverytest.Deliver(t, again, replay)
	deliverytest.Deliver(t, again, replay)
	if n := do(t, client(t, place.URL), "xlen", place.Name); n != int64(8) {
		t.Errorf("%v entries after the replay of a dead letter", n)
	}
}

// TestDeduplicateDeleted deletes the stream: its events may be wanted again.
func TestDeduplicateDeleted(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	cl := client(t, place.URL)
	h := open(t, place.URL, to(place.Name), once)
	deliverytest.Deliver(t, h, events(1, 2, 3))
	do(t, cl, "xtrim", place.Name, "maxlen", 0)
	deliverytest.Deliver(t, h, events(1, 2, 3)) // consumers have had them
	if n := do(t, cl, "xlen", place.Name); n != int64(0) {
		t.Errorf("%v entries are added again to a stream that was trimmed", n)
	}
	do(t, cl, "del", place.Name)
	deliverytest.Deliver(t, h, events(2, 3, 3))
	if got := written(t, cl, place.Name); !slices.Equal(got, []int64{2, 3}) {
		t.Errorf("written: %d", got)
	}
}

// TestDeduplicateWindow holds the handler to what Config.Deduplicate says: until so many other
// events have been added a copy is dropped, and after more than twice as many, and twice a batch, it
// is added.
func TestDeduplicateWindow(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	cl := client(t, place.URL)
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		stream := fmt.Sprint(place.Name, n)
		h := open(t, place.URL, to(stream), once)
		const window, batch = 5, 4
		h.encoder.script.window = window
		for range rapid.IntRange(1, 30).Draw(r, "batches") {
			all := rapid.SliceOfN(rapid.Int64Range(1, 30), 1, batch).Draw(r, "batch")
			entries := written(t, cl, stream)
			deliverytest.Deliver(t, h, events(all...))
			got := written(t, cl, stream)
			for _, id := range all {
				since := others(entries, id)
				added := len(entries) < len(got) && got[len(entries)] == id
				if added && since < window {
					r.Fatalf("a copy of %d is added behind %d others: %d", id, since, entries)
				}
				if !added && since > 2*(window+batch) {
					r.Fatalf("%d is not added behind %d others: %d", id, since, entries)
				}
				if added {
					entries = append(entries, id)
				}
			}
			if !slices.Equal(entries, got) {
				r.Fatalf("the stream has %d after %d", got, entries)
			}
		}
	})
}

// others returns how many entries are behind that of an event; many for one that has none.
func others(entries []int64, id int64) int {
	for i, other := range slices.Backward(entries) {
		if other == id {
			return len(entries) - 1 - i
		}
	}
	return math.MaxInt
}

// TestDeduplicateCut loses the answers to a batch, and the connection; several scripts have
// run for it, or one.
func TestDeduplicateCut(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t)
	proxy := handlertest.StartProxy(t, s.Addr())
	cl := client(t, s.Addr())
	h := open(t, "redis://"+proxy.Addr(), once, func(c *Config) { c.ReadTimeout = patience })
	deliverytest.Deliver(t, h, events(1)) // the server has the script
	all := events(deliverytest.UpTo(perScript * 5 / 2)...)
	proxy.Mute()
	answer := make(chan []error, 1)
	go func() { answer <- h.DeliverBatch(t.Context(), all) }()
	testenv.Await(t, "the entries are there", func() bool { return len(written(t, cl, "s")) == perScript })
	proxy.Cut()
	proxy.Heal()
	for _, err := range <-answer {
		deliverytest.WantClass(t, err, "unavailable")
	}
	deliverytest.Deliver(t, h, all)
	if got := written(t, cl, "s"); !slices.Equal(got, deliverytest.UpTo(perScript*5/2)) {
		t.Errorf("%d entries for %d events", len(got), len(all))
	}
}

// TestDeduplicateGivenUp has a batch run only after its copy was sent: the frozen server takes
// both when it wakes up.
func TestDeduplicateGivenUp(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t)
	cl := client(t, s.Addr())
	h := open(t, "redis://"+s.Addr(), once, func(c *Config) { c.ReadTimeout = patience })
	deliverytest.Deliver(t, h, events(1))
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for _, err := range h.DeliverBatch(ctx, events(2, 3)) {
		deliverytest.WantClass(t, err, "relay")
	}
	answer := make(chan []error, 1)
	go func() { answer <- h.DeliverBatch(t.Context(), events(2, 3, 4)) }()
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, err := range <-answer {
		deliverytest.WantClass(t, err, "delivered")
	}
	if got := written(t, cl, "s"); !slices.Equal(got, deliverytest.UpTo(4)) {
		t.Errorf("written: %d", got)
	}
}

// TestDeduplicateTwoRelays delivers the same from two processes at a time.
func TestDeduplicateTwoRelays(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	handlers := []*Handler{open(t, place.URL, to(place.Name), once), open(t, place.URL, to(place.Name), once)}
	var wg sync.WaitGroup
	for _, h := range handlers {
		wg.Go(func() {
			for i := range int64(20) {
				for _, err := range h.DeliverBatch(t.Context(), events(10*i+1, 10*i+2, 10*i+3)) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := do(t, client(t, place.URL), "xlen", place.Name); n != int64(60) {
		t.Errorf("%v entries of 60 events", n)
	}
}

// TestDeduplicateNoScript has the server forget the script, as a restart does. In one of the streams
// the batch has events for several scripts.
func TestDeduplicateNoScript(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t)
	cl := client(t, s.Addr())
	h := open(t, "redis://"+s.Addr(), to(`{{ if eq .Event.AggregateID "k0" }}a{{ else }}b{{ end }}`), func(c *Config) { c.Deduplicate = 5000 })
	for range 3 {
		deliverytest.Deliver(t, h, events(deliverytest.UpTo(2000)...))
		do(t, cl, "script", "flush")
	}
	a, b := written(t, cl, "a"), written(t, cl, "b")
	if !slices.IsSorted(a) || !slices.IsSorted(b) {
		t.Error("a stream is out of order")
	}
	if all := slices.Sorted(slices.Values(slices.Concat(a, b))); !slices.Equal(all, deliverytest.UpTo(2000)) {
		t.Errorf("%d entries of 2000 events", len(all))
	}
}

// TestDeduplicateFailure has the second of three scripts for a stream fail: what comes behind it
// must not overtake, and another stream is not affected.
func TestDeduplicateFailure(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t)
	cl := client(t, s.Addr())
	h := open(t, "redis://"+s.Addr(), once, to(`{{ if eq .Event.AggregateID "k0" }}a{{ else }}b{{ end }}`))
	do(t, cl, "xadd", "b", "18446744073709551615-18446744073709550015", "id", "0") // room for 1600
	all := events(deliverytest.UpTo(3500)...)
	failed := 0
	for i, err := range h.DeliverBatch(t.Context(), all) {
		if all[i].AggregateID == "k0" {
			deliverytest.WantClass(t, err, "delivered")
		} else if err != nil {
			failed++
			deliverytest.WantClass(t, err, "unclear-retry")
			deliverytest.WantText(t, err, "exhausted")
		}
	}
	if failed != 2000 {
		t.Errorf("%d events have failed", failed)
	}
	if got := written(t, cl, "a"); len(got) != 500 {
		t.Errorf("%d entries in the other stream", len(got))
	}
	// Those of the second script that have room are there, in their order, and noted.
	if got := written(t, cl, "b"); len(got) != 1601 || !slices.IsSorted(got) {
		t.Errorf("%d entries in the stream", len(got))
	}
}

// TestDeduplicateRights: without the right to write ids nothing is added, or each attempt would add
// another copy.
func TestDeduplicateRights(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t)
	cl := client(t, s.Addr())
	rights := strings.Fields(strings.ReplaceAll(scriptRights, "key", "s"))
	for _, missing := range rights[2:] {
		args := []any{"acl", "setuser", "ann", "reset", "on", ">pw"}
		for _, r := range rights {
			if r != missing {
				args = append(args, r)
			}
		}
		do(t, cl, args...)
		h := open(t, "redis://ann:pw@"+s.Addr(), once)
		h.encoder.script.window = 20
		var err error
		for id := range int64(20) {
			if err = h.Deliver(t.Context(), events(id + 1)[0]); err != nil {
				break
			}
		}
		if missing != "+srem" && missing != "+eval" { // of copies, and of a new server
			deliverytest.WantClass(t, err, "unavailable")
			deliverytest.WantText(t, err, "ACL SETUSER")
		}
		for range 3 {
			_ = h.DeliverBatch(t.Context(), events(deliverytest.UpTo(20)...))
		}
		got := written(t, cl, "s")
		if len(got) != len(slices.Compact(slices.Sorted(slices.Values(got)))) {
			t.Errorf("without %s the stream has %d", missing, got)
		}
		do(t, cl, "del", "s", companion("s"), companion("s")+":older")
	}
}

// TestDeduplicateReplicas: a copy is delivered only once the replicas have the entry, on another
// connection too.
func TestDeduplicateReplicas(t *testing.T) {
	t.Parallel()
	primary, replica := testenv.OwnRedis(t), testenv.OwnRedis(t)
	cl, other := client(t, primary.Addr()), client(t, replica.Addr())
	host, port, _ := net.SplitHostPort(primary.Addr())
	do(t, other, "replicaof", host, port)
	testenv.Await(t, "the replica is there", func() bool {
		return strings.Contains(fmt.Sprint(do(t, cl, "info", "replication")), "state=online")
	})
	wait := func(d time.Duration) *Handler {
		return open(t, "redis://"+primary.Addr(), once, func(c *Config) { c.WaitReplicas, c.WaitTimeout = 1, d })
	}
	deliverytest.Deliver(t, wait(patience), events(1))
	if err := replica.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for _, err := range wait(100*time.Millisecond).DeliverBatch(t.Context(), events(1, 2)) {
			deliverytest.WantClass(t, err, "unavailable")
			deliverytest.WantText(t, err, "0 of 1")
		}
	}
	if err := replica.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	deliverytest.Deliver(t, wait(patience), events(1, 2))
	if got := written(t, other, "s"); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("the replica has %d", got)
	}
}

// TestDeduplicateCluster has several slots, one of which moves.
func TestDeduplicateCluster(t *testing.T) {
	t.Parallel()
	addrs, clients := cluster(t, 2)
	h := open(t, "", once, func(c *Config) {
		c.Addresses, c.Cluster, c.Stream = addrs[:1], true, "s{{ .Event.AggregateID }}"
	})
	deliverytest.Deliver(t, h, events(deliverytest.UpTo(50)...))
	slot := do(t, clients[0], "cluster", "keyslot", "sk1")
	from, dest := do(t, clients[0], "cluster", "myid"), do(t, clients[1], "cluster", "myid")
	host, port, _ := net.SplitHostPort(addrs[1])
	do(t, clients[1], "cluster", "setslot", slot, "importing", from)
	do(t, clients[0], "cluster", "setslot", slot, "migrating", dest)
	do(t, clients[0], "migrate", host, port, "", 0, 5000, "keys", "sk1", companion("sk1"))
	_ = h.DeliverBatch(t.Context(), events(57)) // may have to wait: some of the keys are neither here nor there
	do(t, clients[1], "cluster", "setslot", slot, "node", dest)
	do(t, clients[0], "cluster", "setslot", slot, "node", dest)
	deliverytest.Deliver(t, h, events(append(deliverytest.UpTo(50), 57, 64)...))
	if got := written(t, clients[1], "sk1"); !slices.Equal(got, []int64{1, 8, 15, 22, 29, 36, 43, 50, 57, 64}) {
		t.Errorf("sk1 has %d", got)
	}
	if got := written(t, clients[0], "sk2"); !slices.Equal(got, []int64{2, 9, 16, 23, 30, 37, 44}) {
		t.Errorf("sk2 has %d", got)
	}
	for name, want := range map[string]string{"x{a}y": "delivered", "{": "delivered", "x}y": "unavailable", "x{}y": "unavailable"} {
		err := open(t, "", once, func(c *Config) { c.Addresses, c.Cluster, c.Stream = addrs[:1], true, name }).Deliver(t.Context(), events(1)[0])
		deliverytest.WantClass(t, err, want)
		if err != nil {
			deliverytest.WantText(t, err, "CROSSSLOT", "without braces")
		}
	}
}

// TestDeduplicateFields has an event with more headers than a script can add, and one with as
// many as it can.
func TestDeduplicateFields(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	h := open(t, place.URL, to(place.Name), once)
	all := events(1, 2, 3)
	for i, n := range []int{3490, 3500} {
		for j := range n {
			all[i].Headers[fmt.Sprint("h", j)] = "x"
		}
	}
	for i, err := range h.DeliverBatch(t.Context(), all) {
		deliverytest.WantClass(t, err, []string{"delivered", "permanent", "delivered"}[i])
	}
}

// TestDeduplicateMemory holds what docs/destinations/redis.md says about it.
func TestDeduplicateMemory(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	h := open(t, place.URL, to(place.Name), func(c *Config) { c.Deduplicate = 20_000 })
	ids := deliverytest.UpTo(19_000)
	for i := range ids {
		ids[i] += 1_000_000_000_000
	}
	for batch := range slices.Chunk(ids, 1000) {
		deliverytest.Deliver(t, h, events(batch...))
	}
	n, ok := do(t, client(t, place.URL), "memory", "usage", companion(place.Name), "samples", 0).(int64)
	if t.Logf("%d bytes for an id", n/19_000); !ok || n/19_000 > 100 {
		t.Errorf("%d bytes for an id", n/19_000)
	}
}
