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

var _ delivery.Checker = (*Handler)(nil)
