package webhook

import (
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestRetryConnections: a retry does not go over the connection that has just failed, also of a batch.
func TestRetryConnections(t *testing.T) {
	t.Parallel()
	deliverytest.RetryConnections(t, func(tb testing.TB, url string) delivery.Handler {
		tb.Helper()
		return deliverytest.Open(tb, New, Config{URL: url})
	}, deliverytest.Event("hook", 1, `{}`))
	deliverytest.RetryConnections(t, func(tb testing.TB, url string) delivery.Handler {
		tb.Helper()
		return deliverytest.Open(tb, NewBatch, Config{URL: url, BatchFormat: BatchNDJSON})
	}, deliverytest.Event("hook", 1, `{}`))
}
