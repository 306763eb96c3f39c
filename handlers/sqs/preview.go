package sqs

import (
	"fmt"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/message"
)

// Preview returns the message for e: group and deduplication id where there are
// any, attributes and body.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	entry, err := h.encoder.encode(e)
	if err != nil {
		return "", delivery.Permanent(fmt.Errorf("sqs: %w", err))
	}
	var fields []message.Header
	if entry.group != "" {
		fields = append(fields, message.Header{Name: "group id", Value: entry.group})
	}
	if entry.dedupID != "" {
		fields = append(fields, message.Header{Name: "deduplication id", Value: entry.dedupID})
	}
	for _, a := range entry.attributes {
		fields = append(fields, message.Header{Name: "attribute " + a.Name, Value: a.Value})
	}
	return message.Preview(fields, []byte(entry.body)), nil
}

var _ delivery.Previewer = (*Handler)(nil)
