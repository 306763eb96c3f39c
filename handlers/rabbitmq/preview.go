package rabbitmq

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// Preview returns the message for e: exchange and routing key, properties, headers
// and body.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	m, err := h.enc.encode(e)
	if err != nil {
		return "", classify(&failure{at: stageMessage, text: err.Error()})
	}

	p := &m.publishing
	fields := []message.Header{
		{Name: "exchange", Value: m.exchange},
		{Name: "routing key", Value: m.key},
		{Name: "message_id", Value: p.MessageId},
		{Name: "type", Value: p.Type},
		{Name: "content_type", Value: p.ContentType},
		{Name: "delivery_mode", Value: strconv.Itoa(int(p.DeliveryMode))},
		{Name: "priority", Value: strconv.Itoa(int(p.Priority))},
	}

	if p.Expiration != "" {
		fields = append(fields, message.Header{Name: "expiration", Value: p.Expiration})
	}

	for _, name := range slices.Sorted(maps.Keys(p.Headers)) {
		fields = append(fields, message.Header{Name: "header " + name, Value: fmt.Sprint(p.Headers[name])})
	}

	return message.Preview(fields, p.Body), nil
}

var _ delivery.Previewer = (*Handler)(nil)
