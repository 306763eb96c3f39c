package mqtt

import (
	"context"

	"github.com/notifyd/notifyd/delivery"
)

// Check makes a separate connection, and closes it: the broker has then taken the credentials, and supports a
// delivery. It implements delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, h.cfg.Within())
	defer cancel()

	l, err := h.dial(within)
	if err != nil {
		return h.answer(ctx, err)
	}
	l.end(errReplaced)
	return nil
}

// DescribeCheck implements delivery.CheckDescriber.
func (*Handler) DescribeCheck() (tested, untested string) {
	return "the connection, the credentials if there are any, and that the broker takes QoS 1 and, with retain, retained messages",
		"the right to publish, and whether anyone has subscribed"
}

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
)
