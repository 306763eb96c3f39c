package nats

import (
	"context"

	"github.com/notifyd/notifyd/delivery"
)

// Check connects, authenticates, and waits for an answer of the server. It
// implements delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	l, err := h.connect(ctx)
	if err == nil {
		err = l.conn.FlushWithContext(ctx)
	}
	if err != nil {
		return h.answer(ctx, err)
	}
	return nil
}

// DescribeCheck implements delivery.CheckDescriber.
func (*Handler) DescribeCheck() (tested, untested string) {
	return "the connection and the credentials if there are any", "the stream, and the right to publish"
}

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
)
