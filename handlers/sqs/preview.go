package sqs

import (
	"fmt"

	"github.com/notifyd/notifyd/delivery"
)

// Preview returns the message for e: group and deduplication id where there are
// any, attributes and body.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	m, err := h.encoder.Encode(e)
	if err != nil {
		return "", delivery.Permanent(fmt.Errorf("sqs: %w", err))
	}
	return m.Preview(), nil
}

var _ delivery.Previewer = (*Handler)(nil)
