package redis

import (
	"context"

	"github.com/notifyd/notifyd/delivery"
)

// Check connects, authenticates and sends PING, on a connection of its own. A user without
// the right to PING proves as much. It implements delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	l := newLane(ctx, h)
	defer l.close()
	stop := context.AfterFunc(ctx, l.abort)
	defer stop()
	err := l.client.Ping(ctx).Err()
	if err == nil || code(err) == "NOPERM" {
		return nil
	}
	return h.answer(ctx, err, 0)
}

// DescribeCheck implements delivery.CheckDescriber.
func (*Handler) DescribeCheck() (tested, untested string) {
	return "the connection, the credentials if there are any, and the answer to PING", "the right to write"
}

// MaxBytes is the largest event that is sent. It implements delivery.Sizer.
func (h *Handler) MaxBytes() int {
	if h.encoder.message.Renders() {
		return 0 // the size of the payload says nothing about the body
	}
	return h.cfg.MaxMessageBytes
}

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
	_ delivery.Sizer          = (*Handler)(nil)
)
