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

// DescribeCheck implements delivery.CheckDescriber.
func (*Handler) DescribeCheck() (tested, untested string) {
	return "the connection, its encryption, and the login if there is one", "whether the server accepts the sender and the recipients"
}

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
)
