package webhook

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/internal/secret"
)

// Preview returns the request for e: its line, headers and body. Possible secrets
// are left out: the query of the URL, its user, and the values of headers
// that the configuration sets. Time and signature belong to an attempt.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	d, err := h.draft(e)
	if err != nil {
		return "", delivery.Permanent(fmt.Errorf("webhook: %w", err))
	}
	return h.preview(d), nil
}

func (h *Handler) preview(d *draft) string {
	place := *d.url
	place.User = nil
	if place.RawQuery != "" {
		place.RawQuery = secret.Redacted
	}

	fields := []message.Header{{Name: h.cfg.Method, Value: place.String()}}
	for _, name := range slices.Sorted(maps.Keys(d.header)) {
		value := strings.Join(d.header[name], ", ")
		if name == "Authorization" || h.configured(name) {
			value = secret.Redacted
		}

		fields = append(fields, message.Header{Name: strings.ToLower(name), Value: value})
	}

	return message.Preview(fields, d.body)
}

// configured reports whether the configuration sets a header.
func (h *Handler) configured(name string) bool {
	for own := range h.headers {
		if strings.EqualFold(own, name) {
			return true
		}
	}
	return false
}

var _ delivery.Previewer = (*Handler)(nil)
