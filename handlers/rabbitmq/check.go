package rabbitmq

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// Check connects and authenticates up to the vhost, on a separate connection, and
// declares nothing. It implements delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	ctx, cancel := outcome.Within(ctx, "connect_timeout", h.cfg.ConnectTimeout)
	defer cancel()
	raw, err := h.open(ctx)
	if err != nil {
		return h.target.connectFailure(ctx, stageConnect, err)
	}

	// The library ignores contexts. Closing the socket ends its work.
	sock := &socket{Conn: raw, timeout: h.cfg.WriteTimeout}
	defer sock.Close() //nolint:errcheck // nothing was sent
	stop := context.AfterFunc(ctx, func() { _ = sock.Close() })
	defer stop()

	conn, err := amqp.Open(sock, h.amqpConfig())
	if err != nil {
		return h.target.connectFailure(ctx, stageConnect, err)
	}

	_ = conn.Close() // a courtesy
	return nil
}

// DescribeCheck implements delivery.CheckDescriber.
func (*Handler) DescribeCheck() (tested, untested string) {
	return "the connection, the credentials and the vhost", "the exchange, the queue, and the right to publish"
}

// MaxBytes is the largest body that is sent. It implements delivery.Sizer.
func (h *Handler) MaxBytes() int {
	if h.enc.body.Renders() {
		return 0 // the size of the payload says nothing about the body
	}
	return h.cfg.MaxMessageBytes
}

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
	_ delivery.Sizer          = (*Handler)(nil)
)
