package kafka

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// forget makes a cluster one that does not know some requests, as Event Hubs does not know those of transactions in some
// tiers.
func forget(t *testing.T, c *kfake.Cluster, keys ...kmsg.Key) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	known, err := kmsg.NewPtrApiVersionsRequest().RequestWith(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	known.ApiKeys = slices.DeleteFunc(known.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool {
		return slices.Contains(keys, kmsg.Key(k.ApiKey))
	})
	c.ControlKey(int16(kmsg.ApiVersions), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		answer := req.ResponseKind().(*kmsg.ApiVersionsResponse) //nolint:forcetypeassert // by its key
		answer.ApiKeys = known.ApiKeys
		return answer, nil, true
	})
}

// TestClusterWithoutTransactions: a cluster with a part of the protocol is a fault of the destination, with the cure, when it is
// checked and when an event is delivered.
func TestClusterWithoutTransactions(t *testing.T) {
	t.Parallel()
	const cure = "use a cluster, or a tier of Event Hubs, that has the feature, or take transactional and exactly_once out"
	for name, change := range map[string]func(*Config){
		"transactional": func(c *Config) { c.Transactional = true },
		"exactly once":  func(c *Config) { c.ExactlyOnce, c.TransactionalID = true, "unit" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := fake(t, 1)
			forget(t, c, kmsg.InitProducerID, kmsg.AddPartitionsToTxn, kmsg.EndTxn)
			h := open(t, c.ListenAddrs(), change)
			deliverytest.WantText(t, h.Check(t.Context()), "the cluster has no transactions: a broker does not know the request InitProducerID", cure)
			var err error
			if h.cfg.ExactlyOnce {
				_, err = h.OpenPosition(t.Context(), "unit/0", &counter{})
			} else {
				err = h.Deliver(t.Context(), events(1)[0])
			}
			deliverytest.WantClass(t, err, "unavailable")
			deliverytest.WantText(t, err, cure)
		})
	}
	t.Run("neither", func(t *testing.T) {
		t.Parallel()
		c := fake(t, 1)
		forget(t, c, kmsg.InitProducerID, kmsg.AddPartitionsToTxn, kmsg.EndTxn)
		h := open(t, c.ListenAddrs())
		if err := h.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if err := h.Deliver(t.Context(), events(1)[0]); err != nil {
			t.Error(err)
		}
	})
}

// TestClusterWithoutCompression: the code of Event Hubs for a compression other than gzip, and that of Apache Kafka, have
// the cure, and no event is at fault.
func TestClusterWithoutCompression(t *testing.T) {
	t.Parallel()
	for _, code := range []*kerr.Error{kerr.UnsupportedForMessageFormat, kerr.UnsupportedCompressionType} {
		t.Run(code.Message, func(t *testing.T) {
			t.Parallel()
			c := fake(t, 1)
			onProduce(c, func(req *kmsg.ProduceRequest) (kmsg.Response, error, bool) {
				return produceError(req, code.Code), nil, true
			})
			h := open(t, c.ListenAddrs(), func(c *Config) { c.Compression = CompressionZstd })
			for _, err := range h.DeliverBatch(t.Context(), events(1, 2)) {
				deliverytest.WantClass(t, err, "unavailable")
				deliverytest.WantText(t, err, code.Message, "the cluster does not take this compression: set compression: gzip or none")
			}
		})
	}
}
