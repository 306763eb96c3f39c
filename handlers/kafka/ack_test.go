package kafka

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestAck: the handler reports the partition and the offset of each record that was written, and nothing of the others.
func TestAck(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	brokers := testenv.Kafka(t)
	for name, change := range map[string]func(*Config){
		"at least once": func(*Config) {},
		"transactional": func(c *Config) { c.Transactional, c.TransactionalID = true, "ack" },
		"exactly once":  nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := newTopic(t, brokers, 3, nil)
			var h *Handler
			if change == nil {
				h = exactlyOr(t, true, brokers, topic)
			} else {
				h = open(t, brokers, to(topic), change)
			}
			acks := make(map[int64]string)
			asked := func(ids ...int64) []*delivery.Event {
				all := events(ids...)
				for _, e := range all {
					e.OnAck(func(a delivery.Ack) { acks[e.ID] += fmt.Sprint(a.Partition, ":", a.Offset, " ") })
				}
				return all
			}
			deliverytest.Deliver(t, h, asked(deliverytest.UpTo(20)...))
			mixed := asked(21, 22, 23)
			mixed[1].AggregateID = strings.Repeat("k", 2<<20) // more than a request
			if errs := h.DeliverBatch(t.Context(), mixed); errs[0] != nil || !delivery.IsPermanent(errs[1]) || errs[2] != nil {
				t.Fatalf("%v", errs)
			}
			want := make(map[int64]string)
			for _, r := range records(t, brokers, topic, 22, readCommitted()) {
				want[idOf(t, r)] = fmt.Sprint(r.Partition, ":", r.Offset, " ")
			}
			if !maps.Equal(acks, want) {
				t.Errorf("reported %v, want %v", acks, want)
			}
		})
	}
}
