package nats

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// Preview returns the message for e: subject, headers and body.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	m, err := h.encoder.msg(e)
	if err != nil {
		return "", delivery.Permanent(fmt.Errorf("nats: %w", err))
	}
	fields := []message.Header{{Name: "subject", Value: m.Subject}}
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		fields = append(fields, message.Header{Name: "header " + name, Value: strings.Join(m.Header[name], ", ")})
	}
	return message.Preview(fields, m.Data), nil
}

var _ delivery.Previewer = (*Handler)(nil)
