package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/message"
)

// Preview returns the record for e: topic, key, headers and value.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	var r kgo.Record
	if err := h.encoder.record(&r, e, &scratch{}); err != nil {
		return "", delivery.Permanent(fmt.Errorf("kafka: %w", err))
	}
	fields := []message.Header{{Name: "topic", Value: r.Topic}, {Name: "key", Value: string(r.Key)}}
	for _, header := range r.Headers {
		fields = append(fields, message.Header{Name: "header " + header.Key, Value: string(header.Value)})
	}
	return message.Preview(fields, r.Value), nil
}

var _ delivery.Previewer = (*Handler)(nil)
