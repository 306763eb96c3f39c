package email

import (
	"context"

	"github.com/notifyd/notifyd/delivery"
)

// Check connects, authenticates and says goodbye. It implements delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	c, f := h.pool.dial(ctx)
	if f != nil {
		return h.verdict(ctx, f)
	}
	c.quit()
	return nil
}

var _ delivery.Checker = (*Handler)(nil)
