package nats

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/notifyd/notifyd/delivery"
)

// Check connects, authenticates, waits for an answer of the server, and asks for the
// stream, where it is the same for every event and this user may ask. It implements
// delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, h.cfg.Within())
	defer cancel()

	l, err := h.connect(within)
	if err != nil {
		return h.answer(ctx, err)
	}

	defer l.users.Done()
	if err := l.conn.FlushWithContext(within); err != nil {
		return h.answer(ctx, err)
	}

	if h.cfg.Mode == ModeCore {
		return nil
	}

	found, err := h.findStream(ctx, l)
	if apiCode(err) != 0 {
		return h.answer(ctx, err) // for any other error the stream is not known
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	h.found = found
	return nil
}

// findStream returns the configuration of the stream that takes the events; nil if it
// depends on the event.
func (h *Handler) findStream(ctx context.Context, l *link) (*jetstream.StreamConfig, error) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.AckTimeout)
	defer cancel()

	name := h.cfg.Stream
	if name == "" {
		if h.encoder.fixed == "" {
			return nil, nil //nolint:nilnil // there is no one stream
		}
		err := l.ask(ctx, "$JS.API.STREAM.NAMES", func(ctx context.Context) (err error) {
			name, err = l.stream.StreamNameBySubject(ctx, h.encoder.fixed)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("find the stream that takes it: %w", err)
		}
	}

	var found *jetstream.StreamConfig
	err := l.ask(ctx, "$JS.API.STREAM.INFO."+name, func(ctx context.Context) error {
		s, err := l.stream.Stream(ctx, name)
		if err == nil {
			found = &s.CachedInfo().Config
		}
		return err
	})

	return found, err
}

// DescribeCheck implements delivery.CheckDescriber. Its description of the stream comes
// from the last Check.
func (h *Handler) DescribeCheck() (tested, untested string) {
	const link = "the connection and the credentials if there are any"
	h.mu.Lock()
	defer h.mu.Unlock()

	switch {
	case h.cfg.Mode == ModeCore:
		return link, "the right to publish; no copy is dropped with mode: " + ModeCore
	case h.found != nil:
		dropped := fmt.Sprintf("the stream %s, which drops a copy of an event within %v of it (duplicate_window), "+
			"and adds one that comes later", h.found.Name, h.found.Duplicates)
		return link + "; " + dropped, "the right to publish"
	default:
		return link, "the stream and its duplicate_window, and the right to publish"
	}
}

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
)
