package redis

import (
	"encoding/json"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func TestEntry(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	cl := client(t, place.URL)
	for name, c := range map[string]struct {
		change func(*Config)
		want   []string // fields and values, in order
	}{
		"payload": {func(*Config) {}, []string{
			"id", "5", "type", "order.created", "aggregate_type", "order", "aggregate_id", "k5",
			"time", "2026-11-21T10:00:00.123456Z", "tenant", "a", "traceparent", "00-1-2-03", "payload", `{"n": 5}`,
		}},
		"cloudevents_binary": {func(c *Config) { c.Format = handlers.FormatCloudEventsBinary; c.PayloadField = "data" }, []string{
			"specversion", "1.0", "id", "5", "source", "/notifyd", "type", "order.created", "subject", "k5",
			"time", "2026-11-21T10:00:00.123456Z", "partitionkey", "k5", "aggregatetype", "order",
			"traceparent", "00-1-2-03", "tenant", "a", "data", `{"n": 5}`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stream := place.Name + name
			e := events(5)
			// Names that are taken give way.
			e[0].Headers["id"], e[0].Headers["payload"], e[0].Headers["data"] = "x", "x", "x"
			want := c.want
			if name == "payload" {
				want = slices.Insert(slices.Clone(want), 10, "data", "x")
			} else {
				want = slices.Insert(slices.Clone(want), 18, "payload", "x")
			}
			deliverytest.Deliver(t, open(t, place.URL, to(stream), c.change), e)
			// The whole is [[id [field value ...]]].
			got := fmt.Sprint(do(t, cl, "xrange", stream, "-", "+"))
			if _, fields, _ := strings.Cut(got, " "); fields != fmt.Sprint(want)+"]]" {
				t.Errorf("the entry is\n%s, want\n%s", got, want)
			}
		})
	}
}

// TestBytes: an entry with a payload that is not JSON has its content type, which no header of the event can say.
func TestBytes(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	cl := client(t, place.URL)
	for format, name := range map[handlers.Format]string{handlers.FormatPayload: "content_type", handlers.FormatCloudEventsBinary: "datacontenttype"} {
		e := events(1, 2, 3)
		for _, ev := range e {
			ev.Headers["Content_Type"], ev.Headers["datacontenttype"], ev.Headers["content-type"] = "x", "x", "x"
		}
		e[0].Payload, e[0].ContentType = []byte{0, 255}, "avro/binary"
		e[1].ContentType = "application/vnd.acme+json"
		stream := place.Name + string(format)
		deliverytest.Deliver(t, open(t, place.URL, to(stream), func(c *Config) { c.Format = format }), e)
		entries, err := cl.XRange(t.Context(), stream, "-", "+").Result()
		if err != nil || len(entries) != 3 {
			t.Fatal(entries, err)
		}
		if got := entries[0].Values; got["payload"] != "\x00\xff" || got[name] != "avro/binary" || got["Content_Type"] != nil || got["content-type"] != nil {
			t.Errorf("%s: %q", format, got)
		}
		for _, entry := range entries[1:] {
			if _, has := entry.Values["content_type"]; has || format == handlers.FormatCloudEventsBinary && entry.Values["datacontenttype"] != nil {
				t.Errorf("%s: JSON as %q", format, entry.Values)
			}
		}
	}
}

func TestStructured(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	deliverytest.Deliver(t, open(t, place.URL, to(place.Name), func(c *Config) { c.Format = handlers.FormatCloudEventsStructured }), events(5))
	entries, err := client(t, place.URL).XRange(t.Context(), place.Name, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	var event struct {
		ID   string
		Data map[string]int
	}
	if err := json.Unmarshal([]byte(fmt.Sprint(entries[0].Values["payload"])), &event); err != nil || event.ID != "5" || event.Data["n"] != 5 {
		t.Errorf("the body is %v, %v", entries[0].Values, err)
	}
}

// TestBatches has batches that go to one stream and to many.
func TestBatches(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	cl := client(t, place.URL)
	h := open(t, place.URL, to(place.Name))
	many := open(t, place.URL, to(place.Name+"{{ .Event.AggregateID }}"))
	for i := range int64(5) {
		ids := deliverytest.UpTo(100)
		for j := range ids {
			ids[j] += i * 100
		}
		deliverytest.Deliver(t, h, events(ids...))
		deliverytest.Deliver(t, many, events(ids...))
	}
	if got := written(t, cl, place.Name); !slices.Equal(got, deliverytest.UpTo(500)) {
		t.Errorf("the stream has %d entries: %d", len(got), got)
	}
	var all []int64
	for i := range 7 {
		got := written(t, cl, fmt.Sprint(place.Name, "k", i))
		if !slices.IsSorted(got) {
			t.Errorf("the stream of k%d is out of order: %d", i, got)
		}
		all = append(all, got...)
	}
	slices.Sort(all)
	if !slices.Equal(all, deliverytest.UpTo(500)) {
		t.Errorf("the streams have %d entries", len(all))
	}
	if lanes := idleLanes(h); len(lanes) != 1 || lanes[0].broken {
		t.Errorf("%d lanes", len(lanes))
	}
}

func TestMaxLen(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	h := open(t, place.URL, to(place.Name), func(c *Config) { c.MaxLen = 100 })
	for range 10 {
		deliverytest.Deliver(t, h, events(deliverytest.UpTo(100)...))
	}
	// Whole nodes of 100 entries are dropped.
	if n, ok := do(t, client(t, place.URL), "xlen", place.Name).(int64); !ok || n < 100 || n > 300 {
		t.Errorf("the stream has %d entries", n)
	}
}

func TestPublish(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	sub := client(t, place.URL).Subscribe(t.Context(), place.Name)
	defer sub.Close() //nolint:errcheck // of the test
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	channel := func(name string) func(*Config) { return func(c *Config) { c.Stream, c.Channel = "", name } }
	required := func(c *Config) { c.RequireSubscribers = true }
	deliverytest.Deliver(t, open(t, place.URL, channel(place.Name)), events(1, 2, 3))
	deliverytest.Deliver(t, open(t, place.URL, channel(place.Name), required), events(4))
	for i := range 4 {
		m, err := sub.ReceiveMessage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf(`{"n": %d}`, i+1); m.Payload != want {
			t.Errorf("message %d is %s", i+1, m.Payload)
		}
	}
	// Nobody listens here.
	deliverytest.Deliver(t, open(t, place.URL, channel(place.Name+"x")), events(1, 2))
	for name, want := range map[string]string{"x": "unavailable", "{{ .Event.ID }}": "unclear-retry"} {
		for _, err := range open(t, place.URL, channel(place.Name+name), required).DeliverBatch(t.Context(), events(1, 2)) {
			deliverytest.WantClass(t, err, want)
			deliverytest.WantText(t, err, "no subscriber")
		}
	}
}

func TestDatabase(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t)
	deliverytest.Deliver(t, open(t, "redis://"+s.Addr()+"/3"), events(1))
	deliverytest.Deliver(t, open(t, "redis://"+s.Addr(), func(c *Config) { c.Database = 4 }), events(1))
	got := fmt.Sprint(do(t, client(t, s.Addr()), "info", "keyspace"))
	if !strings.Contains(got, "db3:keys=1") || !strings.Contains(got, "db4:keys=1") || strings.Contains(got, "db0") {
		t.Errorf("databases: %s", got)
	}
}

// TestBadEventFailsAlone has events of which no entry can be made among others
// of the same stream.
func TestBadEventFailsAlone(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	h := open(t, place.URL, to(`{{ get .Payload "to" | default "`+place.Name+`" }}`), func(c *Config) { c.MaxMessageBytes = 2000 })
	all := events(1, 2, 3, 4)
	all[1].Payload = json.RawMessage(`{"n":2,"x":"` + strings.Repeat("x", 3000) + `"}`)
	all[2].Payload = json.RawMessage(`no JSON`)
	for i, err := range h.DeliverBatch(t.Context(), all) {
		deliverytest.WantClass(t, err, []string{"delivered", "permanent", "permanent", "delivered"}[i])
	}
	if got := written(t, client(t, place.URL), place.Name); !slices.Equal(got, []int64{1, 4}) {
		t.Errorf("written: %d", got)
	}
}

// TestOrderAfterARefusal has the server refuse one command in the middle of a
// batch: nothing of the batch may be there then, and all of it later, in order.
// Without a transaction the events behind the refused one would overtake it.
func TestOrderAfterARefusal(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t)
	cl := client(t, s.Addr())
	h := open(t, "redis://"+s.Addr())
	all := events(deliverytest.UpTo(50)...)
	all[25].Payload = json.RawMessage(`"` + strings.Repeat("x", 2<<20) + `"`)
	do(t, cl, "config", "set", "proto-max-bulk-len", "1mb")
	for _, err := range h.DeliverBatch(t.Context(), all) {
		deliverytest.WantClass(t, err, "unavailable") // the event at fault is unknown
	}
	if got := written(t, cl, "s"); len(got) != 0 {
		t.Errorf("%d events of a batch that was refused are there: %d", len(got), got)
	}
	do(t, cl, "config", "set", "proto-max-bulk-len", "8mb")
	deliverytest.Deliver(t, h, all)
	if got := written(t, cl, "s"); !slices.Equal(got, deliverytest.UpTo(50)) {
		t.Errorf("written: %d", got)
	}
}

// TestIdleConnectionClosed has the server close a connection that waits for its
// next use, as some do after a while.
func TestIdleConnectionClosed(t *testing.T) {
	t.Parallel()
	s := testenv.OwnRedis(t)
	cl := client(t, s.Addr())
	h := open(t, "redis://"+s.Addr())
	deliverytest.Deliver(t, h, events(1))
	do(t, cl, "client", "kill", "type", "normal", "skipme", "yes")
	deliverytest.Deliver(t, h, events(2))
	if got := written(t, cl, "s"); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("written: %d", got)
	}
}

func TestReplicas(t *testing.T) {
	t.Parallel()
	primary, replica := testenv.OwnRedis(t), testenv.OwnRedis(t)
	cl, other := client(t, primary.Addr()), client(t, replica.Addr())
	h := open(t, "redis://"+primary.Addr(), func(c *Config) {
		c.WaitReplicas = 1
		c.WaitTimeout = 100 * time.Millisecond
	})
	for _, err := range h.DeliverBatch(t.Context(), events(1, 2)) {
		deliverytest.WantClass(t, err, "unavailable")
		deliverytest.WantText(t, err, "0 of 1", "wait_timeout", "come again")
	}
	host, port, _ := net.SplitHostPort(primary.Addr())
	do(t, other, "replicaof", host, port)
	testenv.Await(t, "the replica is there", func() bool {
		return strings.Contains(fmt.Sprint(do(t, cl, "info", "replication")), "state=online")
	})
	patient := open(t, "redis://"+primary.Addr(), func(c *Config) { c.WaitReplicas, c.WaitTimeout = 1, patience })
	deliverytest.Deliver(t, patient, events(1, 2))
	if got := written(t, other, "s"); !slices.Equal(got, []int64{1, 2, 1, 2}) {
		t.Errorf("the replica has %d", got)
	}
}

// TestLosers: neither a channel of a replica, which its primary's subscribers do not hear, nor a stream that
// the server evicts counts as fit.
func TestLosers(t *testing.T) {
	t.Parallel()
	server, replica := testenv.OwnRedis(t, "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"), testenv.OwnRedis(t)
	channel := func(c *Config) { c.Stream, c.Channel = "", "news" }
	h := open(t, "redis://"+replica.Addr(), channel)
	deliverytest.Deliver(t, h, events(1)) // a primary, as yet
	host, port, _ := net.SplitHostPort(server.Addr())
	do(t, client(t, replica.Addr()), "replicaof", host, port)
	for _, err := range h.DeliverBatch(t.Context(), events(2, 3)) {
		deliverytest.WantClass(t, err, "unavailable")
		deliverytest.WantText(t, err, "is a replica", "sentinel_master")
	}
	for _, c := range []struct {
		addr   string
		change func(*Config)
		says   string
	}{
		{replica.Addr(), channel, "is a replica"},
		{replica.Addr(), to("s"), "is a replica"},
		{server.Addr(), to("s"), "maxmemory-policy is allkeys-lru (set maxmemory-policy noeviction"},
		{server.Addr(), channel, ""},
	} {
		err := open(t, "redis://"+c.addr, c.change).Check(t.Context())
		if c.says == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		deliverytest.WantText(t, err, c.says)
	}
}

// TestSentinel has the sentinels name the primary, and name another one after a
// failover.
func TestSentinel(t *testing.T) {
	t.Parallel()
	primary, replica := testenv.OwnRedis(t), testenv.OwnRedis(t)
	host, port, _ := net.SplitHostPort(primary.Addr())
	do(t, client(t, replica.Addr()), "replicaof", host, port)
	sentinel := testenv.OwnSentinel(t, primary.Addr())
	watcher := client(t, sentinel.Addr())
	testenv.Await(t, "the sentinel knows the replica", func() bool {
		reply, err := watcher.Do(t.Context(), "sentinel", "replicas", "mymaster").Slice()
		return err == nil && len(reply) == 1 && strings.Contains(fmt.Sprint(reply), "master-link-status ok")
	})
	h := open(t, "", func(c *Config) { c.Addresses, c.SentinelMaster = []string{sentinel.Addr()}, "mymaster" })
	deliverytest.Deliver(t, h, events(1, 2))
	if got := written(t, client(t, primary.Addr()), "s"); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("written: %d", got)
	}
	cl := client(t, replica.Addr())
	testenv.Await(t, "the replica has it", func() bool { return len(written(t, cl, "s")) == 2 })
	if err := primary.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	// No event may be blamed for it.
	testenv.Await(t, "the new primary takes events", func() bool {
		errs := h.DeliverBatch(t.Context(), events(3, 4))
		for _, err := range errs {
			deliverytest.WantClass(t, err, "unavailable")
		}
		return errs == nil || t.Failed()
	})
	got, firsts := written(t, cl, "s"), []int64(nil)
	for _, id := range got { // a batch whose answer came too late is written again
		if !slices.Contains(firsts, id) {
			firsts = append(firsts, id)
		}
	}
	if !slices.Equal(firsts, []int64{1, 2, 3, 4}) {
		t.Errorf("the new primary has %d", got)
	}
}

// cluster starts nodes and gives them slots: all to the first one.
func cluster(t *testing.T, n int) (addrs []string, clients []*goredis.Client) {
	t.Helper()
	for range n {
		s := testenv.OwnRedis(t, "--cluster-enabled", "yes", "--cluster-port", fmt.Sprint(testenv.FreePort(t)))
		addrs, clients = append(addrs, s.Addr()), append(clients, client(t, s.Addr()))
	}
	do(t, clients[0], "cluster", "addslotsrange", 0, 16383)
	for _, cl := range clients[1:] {
		host, port, _ := net.SplitHostPort(addrs[0])
		bus := strings.Fields(strings.Trim(fmt.Sprint(do(t, clients[0], "config", "get", "cluster-port")), "[]"))[1]
		do(t, cl, "cluster", "meet", host, port, bus)
	}
	for _, cl := range clients {
		testenv.Await(t, "the cluster is up", func() bool {
			info := fmt.Sprint(do(t, cl, "cluster", "info"))
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", n))
		})
	}
	return addrs, clients
}

// TestCluster sends to several slots, and has one of them move.
func TestCluster(t *testing.T) {
	t.Parallel()
	addrs, clients := cluster(t, 2)
	h := open(t, "", func(c *Config) {
		c.Addresses, c.Cluster, c.Stream = addrs[:1], true, "s{{ .Event.AggregateID }}"
	})
	deliverytest.Deliver(t, h, events(deliverytest.UpTo(50)...))
	deliverytest.Deliver(t, h, events(51))

	// The slot of sk1 goes to the other node.
	slot := do(t, clients[0], "cluster", "keyslot", "sk1")
	from, dest := do(t, clients[0], "cluster", "myid"), do(t, clients[1], "cluster", "myid")
	host, port, _ := net.SplitHostPort(addrs[1])
	do(t, clients[1], "cluster", "setslot", slot, "importing", from)
	do(t, clients[0], "cluster", "setslot", slot, "migrating", dest)
	deliverytest.Deliver(t, h, events(57)) // 57%7 == 1: still where it was
	do(t, clients[0], "migrate", host, port, "sk1", 0, 5000)
	deliverytest.Deliver(t, h, events(64, 71)) // asks the other one
	do(t, clients[1], "cluster", "setslot", slot, "node", dest)
	do(t, clients[0], "cluster", "setslot", slot, "node", dest)
	deliverytest.Deliver(t, h, events(78)) // has moved
	if got := written(t, clients[1], "sk1"); !slices.Equal(got, []int64{1, 8, 15, 22, 29, 36, 43, 50, 57, 64, 71, 78}) {
		t.Errorf("sk1 has %d", got)
	}
	if got := written(t, clients[0], "sk2"); !slices.Equal(got, []int64{2, 9, 16, 23, 30, 37, 44, 51}) {
		t.Errorf("sk2 has %d", got)
	}
	// Without cluster: true the error says that it is a cluster.
	err := open(t, "redis://"+addrs[0], func(c *Config) { c.Stream = "sk1" }).Deliver(t.Context(), events(1)[0])
	deliverytest.WantClass(t, err, "unavailable")
	deliverytest.WantText(t, err, "MOVED", "cluster: true")
}

// TestLeavesEventsAlone: another handler may look at the event at the same time.
func TestLeavesEventsAlone(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	all := events(1, 2)
	deliverytest.Deliver(t, open(t, place.URL, to(place.Name)), all)
	if !reflect.DeepEqual(all, events(1, 2)) {
		t.Error("the events have changed")
	}
}
