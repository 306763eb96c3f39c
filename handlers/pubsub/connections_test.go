package pubsub

import (
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestRetryConnections: a retry does not go over the connection that has just failed.
func TestRetryConnections(t *testing.T) {
	t.Parallel()
	deliverytest.RetryConnections(t, func(tb testing.TB, url string) delivery.Handler {
		tb.Helper()
		return deliverytest.Open(tb, New, Config{Topic: "projects/shop/topics/orders", Endpoint: url})
	}, deliverytest.Event("orders", 1, `{}`))
}
