package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/privateserver/kafkaserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// admin returns a client that makes topics.
func admin(t *testing.T, brokers []string) *kadm.Client {
	t.Helper()
	cl, err := kadm.NewOptClient(kgo.SeedBrokers(brokers...), kgo.AlwaysRetryEOF())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// newTopic makes a topic that no other test has.
func newTopic(t *testing.T, brokers []string, partitions int32, configs map[string]string) string {
	t.Helper()
	name := strings.NewReplacer("/", "-", "=", "-", ".", "-").Replace(t.Name() + "/" + time.Now().Format("150405.000000")) // no dots: templates print it
	all := make(map[string]*string)
	for k, v := range configs {
		all[k] = &v
	}
	testenv.KafkaTopic(t, brokers, name, partitions, all)
	return name
}

func to(topic string) func(*Config) { return func(c *Config) { c.Topic = topic } }

// kcat runs librdkafka's program, which shares no code with this client.
func kcat(t *testing.T, in string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testenv.Program(t, "kcat"), args...)
	cmd.Stdin = strings.NewReader(in)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kcat: %v\n%s", err, &said)
	}
	return string(out)
}

// TestAnotherClientReads has kcat read what was written, and write the same keys
// by the hash of the Java client.
func TestAnotherClientReads(t *testing.T) {
	t.Parallel()
	brokers := testenv.Kafka(t)
	const partitions = 5
	topic := newTopic(t, brokers, partitions, nil)
	// From UtilsTest.testMurmur2 of Apache Kafka.
	vectors := map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	}
	all := events(deliverytest.UpTo(60)...)
	i := 0
	for key := range vectors {
		all[i].AggregateID = key
		i++
	}
	for j := range 40 {
		all[i+j].AggregateID = fmt.Sprint("kée ", j)
	}
	deliverytest.Deliver(t, open(t, brokers, to(topic)), all)

	var keys strings.Builder
	for _, ev := range all {
		fmt.Fprintf(&keys, "%s;x\n", ev.AggregateID)
	}
	other := newTopic(t, brokers, partitions, nil)
	kcat(t, keys.String(), "-P", "-b", brokers[0], "-t", other, "-K", ";", "-X", "topic.partitioner=murmur2_random")

	read := func(topic, format string) []string {
		out := kcat(t, "", "-C", "-q", "-e", "-b", brokers[0], "-t", topic, "-o", "beginning", "-f", format)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		slices.Sort(lines)
		return lines
	}
	if got, want := read(topic, "%k|%p\n"), read(other, "%k|%p\n"); !slices.Equal(got, want) {
		t.Errorf("partitions are %q\nof the other client %q", got, want)
	}
	for key, hash := range vectors {
		want := fmt.Sprintf("%s|%d", key, (hash&0x7fffffff)%partitions)
		if !slices.Contains(read(topic, "%k|%p\n"), want) {
			t.Errorf("no record %s", want)
		}
	}
	want := `content-type=application/json,notifyd-id=60,notifyd-type=order.created,notifyd-aggregate-type=order,notifyd-aggregate-id=k4,` +
		`notifyd-time=2026-11-21T10:00:00.123456Z,tenant=a,traceparent=00-1-2-03 {"n": 60}`
	if got := read(topic, "%h %s\n"); !slices.Contains(got, want) {
		t.Errorf("no record %s\namong %s", want, got)
	}
}

func TestCompressions(t *testing.T) {
	t.Parallel()
	brokers := testenv.Kafka(t)
	topic := newTopic(t, brokers, 1, nil)
	for i, word := range []string{CompressionNone, CompressionSnappy, CompressionLZ4, CompressionZstd, CompressionGzip} {
		all := events(deliverytest.UpTo(int64(20*i + 20))...)[20*i:]
		deliverytest.Deliver(t, open(t, brokers, to(topic), func(c *Config) { c.Compression = word }), all)
	}
	inOrderOnce(t, written(t, brokers, topic, 100), 100)
	if out := kcat(t, "", "-C", "-q", "-e", "-b", brokers[0], "-t", topic, "-o", "beginning", "-f", "%s\n"); strings.Count(out, "\n") != 100 {
		t.Errorf("kcat reads %d records", strings.Count(out, "\n"))
	}
}

// TestTooLargeForTheTopic has a limit that only the topic knows.
func TestTooLargeForTheTopic(t *testing.T) {
	t.Parallel()
	brokers := testenv.Kafka(t)
	topic := newTopic(t, brokers, 2, map[string]string{"max.message.bytes": "4000"})
	all := events(deliverytest.UpTo(50)...)
	all[20].Payload = json.RawMessage(`{"n": 21, "x": "` + strings.Repeat("x", 4000) + `"}`)
	for i, err := range open(t, brokers, to(topic)).DeliverBatch(t.Context(), all) {
		if i == 20 {
			deliverytest.WantClass(t, err, "permanent")
			deliverytest.WantText(t, err, "MESSAGE_TOO_LARGE", "max.message.bytes")
		} else if err != nil {
			t.Errorf("event %d: %v", i+1, err)
		}
	}
	inOrderOnce(t, written(t, brokers, topic, 49), 49)
}

func TestKeylessRecordForACompactedTopic(t *testing.T) {
	t.Parallel()
	brokers := testenv.Kafka(t)
	topic := newTopic(t, brokers, 1, map[string]string{"cleanup.policy": "compact"})
	all := events(1, 2, 3)
	all[1].AggregateID = ""
	errs := open(t, brokers, to(topic)).DeliverBatch(t.Context(), all)
	for i, want := range []string{"delivered", "unclear-permanent", "delivered"} {
		deliverytest.WantClass(t, errs[i], want)
	}
}

func TestTopicMadeLater(t *testing.T) {
	t.Parallel()
	brokers := testenv.Kafka(t)
	name := "later." + time.Now().Format("150405.000000")
	h := open(t, brokers, to(name))
	err := h.Deliver(t.Context(), events(1)[0])
	deliverytest.WantClass(t, err, "unavailable")
	deliverytest.WantText(t, err, name, "UNKNOWN_TOPIC_OR_PARTITION")
	testenv.KafkaTopic(t, brokers, name, 1, nil)
	deliverytest.Deliver(t, h, events(1))
}

func TestTransactions(t *testing.T) {
	t.Parallel()
	brokers := testenv.Kafka(t)
	topic := newTopic(t, brokers, 3, map[string]string{"max.message.bytes": "4000"})
	txn := func(c *Config) { c.Transactional, c.TransactionalID = true, "shop" }
	h, other := open(t, brokers, to(topic), txn), open(t, brokers, to(topic), txn)
	all := events(deliverytest.UpTo(90)...)
	all[10].Payload = json.RawMessage(`{"n": 11, "x": "` + strings.Repeat("x", 4000) + `"}`)
	for i, err := range h.DeliverBatch(t.Context(), all[:30]) {
		if want := map[bool]string{true: "permanent", false: "delivered"}[i == 10]; deliverytest.Class(err) != want {
			t.Errorf("event %d: %v, want %s", i+1, err, want)
		}
	}
	deliverytest.Deliver(t, other, all[30:60]) // does not fence the first one
	deliverytest.Deliver(t, h, all[60:])
	// Aborted records stay in the log, for consumers that read uncommitted.
	if n := len(flat(written(t, brokers, topic, 90))); n < 90 {
		t.Errorf("%d records in the log", n)
	}
	inOrderOnce(t, written(t, brokers, topic, 89, kgo.FetchIsolationLevel(kgo.ReadCommitted())), 89)
	ids, err := admin(t, brokers).ListTransactions(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(slices.DeleteFunc(ids.TransactionalIDs(), func(id string) bool { return !strings.HasPrefix(id, "shop-") })); n < 2 {
		t.Errorf("transactional ids: %v", ids.TransactionalIDs())
	}
}

// stream delivers batches one after the other, as a relay does: what could not be
// delivered is delivered again, in order, before anything else. It ends after the
// batch during which stop is closed.
func stream(t *testing.T, h *Handler, size int, stop <-chan struct{}, each func(batches int)) (sent int64) {
	t.Helper()
	var left []*delivery.Event
	deadline := time.Now().Add(6 * patience) // a broker is started again meanwhile
	for batches := 1; ; batches++ {
		select {
		case <-stop:
			if len(left) == 0 {
				return sent
			}
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("the stream does not end")
		}
		for len(left) < size {
			sent++
			left = append(left, events(sent)...)
		}
		errs := h.DeliverBatch(t.Context(), left)
		var again []*delivery.Event
		for i, err := range errs {
			if err != nil {
				deliverytest.WantClass(t, err, "unavailable")
				again = append(again, left[i])
			}
		}
		left = again
		each(batches)
	}
}

// wantOrder checks that nothing is lost, and that a consumer who keeps the last
// record, or the first one, sees the order of the events.
func wantOrder(t *testing.T, byPartition map[int32][]int64, n int64) (duplicates int) {
	t.Helper()
	all := flat(byPartition)
	if got := slices.Compact(slices.Clone(all)); int64(len(got)) != n {
		t.Errorf("%d different events are written, want %d", len(got), n)
	}
	for p, ids := range byPartition {
		first, last := firsts(ids), slices.Clone(ids)
		slices.Reverse(last)
		last = firsts(last)
		slices.Reverse(last)
		if !slices.IsSorted(first) || !slices.IsSorted(last) {
			t.Errorf("partition %d is out of order: %d", p, ids)
		}
	}
	return len(all) - int(n)
}

// firsts drops repeated records.
func firsts(ids []int64) (first []int64) {
	seen := make(map[int64]bool)
	for _, id := range ids {
		if !seen[id] {
			seen[id], first = true, append(first, id)
		}
	}
	return first
}

// TestBrokerEndsInTheMiddleOfAStream: a broker is killed, and then ended in order, while batches are delivered.
func TestBrokerEndsInTheMiddleOfAStream(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	s := testenv.OwnKafka(t, kafkaserver.Config{})
	endMidStream(t, s, s.Kill)
	endMidStream(t, s, s.Halt)
}

func endMidStream(t *testing.T, s *kafkaserver.Server, end func(context.Context) error) {
	t.Helper()
	brokers := []string{s.Addr()}
	topic := newTopic(t, brokers, 3, nil)
	h := open(t, brokers, to(topic), func(c *Config) { c.DeliveryTimeout = 2 * time.Second })
	stop, ended := make(chan struct{}), make(chan error, 1)
	sent := stream(t, h, 50, stop, func(batches int) {
		if batches != 20 {
			return
		}
		go func() {
			err := end(t.Context())
			if err == nil {
				err = s.Start(t.Context())
			}
			ended <- err
			close(stop)
		}()
	})
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	settle(t, h, events(sent + 1)[0], "unavailable")
	// With the duplicates: reading may end once so many are there.
	all := int(testenv.KafkaEnd(t, brokers, topic))
	t.Logf("%d duplicates among %d", wantOrder(t, written(t, brokers, topic, all), sent+1), sent+1)
}

// TestFrozenBroker gives up batches that a broker has received and has not looked at,
// and delivers newer ones: when it wakes up, nothing of the old ones may follow
// the newer ones.
func TestFrozenBroker(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, transactional := range []bool{false, true} {
		t.Run(fmt.Sprint("transactional=", transactional), func(t *testing.T) {
			t.Parallel()
			s := testenv.OwnKafka(t, kafkaserver.Config{})
			brokers := []string{s.Addr()}
			topic := newTopic(t, brokers, 1, nil)
			h := open(t, brokers, to(topic), func(c *Config) { c.Transactional = transactional })
			deliverytest.Deliver(t, h, events(1))
			next := int64(2)
			for range 3 {
				if err := s.Pause(t.Context()); err != nil {
					t.Fatal(err)
				}
				// Given up by the caller, several times: each may have reached the
				// broker's socket.
				for range 3 {
					ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
					for _, err := range h.DeliverBatch(ctx, events(next, next+1, next+2)) {
						if !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("error %v is not the context's", err)
						}
					}
					cancel()
				}
				done := make(chan []error)
				go func() { done <- h.DeliverBatch(t.Context(), events(next, next+1, next+2, next+3)) }()
				if err := s.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
				if errs := <-done; errs != nil {
					t.Fatal(errs)
				}
				next += 4
			}
			deliverytest.Deliver(t, h, events(next))
			got := written(t, brokers, topic, int(next), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
			t.Logf("written: %d", got)
			wantOrder(t, got, next)
		})
	}
}
