package pubsub

import (
	"fmt"
	"maps"
	"slices"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// Preview returns the message for e: the ordering key where there is one,
// attributes and data.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	entry, err := h.encoder.encode(e)
	if err != nil {
		return "", delivery.Permanent(fmt.Errorf("pubsub: %w", err))
	}
	var fields []message.Header
	if entry.Key != "" {
		fields = append(fields, message.Header{Name: "ordering key", Value: entry.Key})
	}
	for _, name := range slices.Sorted(maps.Keys(entry.Attributes)) {
		fields = append(fields, message.Header{Name: "attribute " + name, Value: entry.Attributes[name]})
	}
	return message.Preview(fields, entry.Data), nil
}

var _ delivery.Previewer = (*Handler)(nil)
