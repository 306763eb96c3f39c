package redis

import (
	"fmt"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// Preview returns the entry or message for e: the key, the fields of the
// entry, and the body.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	c, err := h.encoder.command(0, e)
	if err != nil {
		return "", delivery.Permanent(fmt.Errorf("redis: %w", err))
	}

	body, _ := c.args[len(c.args)-1].([]byte)
	fields := []message.Header{{Name: h.encoder.what, Value: c.key}}
	if h.encoder.what == "stream" {
		pairs := c.args[2+len(h.encoder.head) : len(c.args)-2]
		for i := 0; i+1 < len(pairs); i += 2 {
			name := "field " + fmt.Sprint(pairs[i])
			fields = append(fields, message.Header{Name: name, Value: fmt.Sprint(pairs[i+1])})
		}

		fields = append(fields, message.Header{Name: "field " + h.encoder.body, Value: "(below)"})
	}

	return message.Preview(fields, body), nil
}

var _ delivery.Previewer = (*Handler)(nil)
