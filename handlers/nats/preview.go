package nats

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/handlers/message"
)

// Preview returns the message for e: subject, headers and body.
func (h *Handler) Preview(e *dispatch.Event) (string, error) {
	m, err := h.encoder.msg(e)
	if err != nil {
		return "", dispatch.Permanent(fmt.Errorf("nats: %w", err))
	}
	fields := []message.Header{{Name: "subject", Value: m.Subject}}
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		fields = append(fields, message.Header{Name: "header " + name, Value: strings.Join(m.Header[name], ", ")})
	}
	return message.Preview(fields, m.Data), nil
}

var _ dispatch.Previewer = (*Handler)(nil)
