package mqtt

import (
	"fmt"
	"strconv"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// Preview returns the message for e: topic, content type, user properties, which are its headers, and body.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	p, err := h.encoder.packet(e)
	if err != nil {
		return "", delivery.Permanent(fmt.Errorf("mqtt: %w", err))
	}

	fields := []message.Header{
		{Name: "topic", Value: p.Topic},
		{Name: "retain", Value: strconv.FormatBool(p.Retain)},
		{Name: "content type", Value: p.Properties.ContentType},
	}
	for _, user := range p.Properties.User {
		fields = append(fields, message.Header{Name: "header " + user.Key, Value: user.Value})
	}
	return message.Preview(fields, p.Payload), nil
}

var _ delivery.Previewer = (*Handler)(nil)
