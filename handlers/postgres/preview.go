package postgres

import (
	"strconv"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// Preview returns the row for e: its columns, and the payload.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	return message.Preview([]message.Header{
		{Name: "table", Value: h.cfg.name()},
		{Name: "source", Value: h.cfg.Source},
		{Name: "dedupe_id", Value: e.DedupeID()},
		{Name: "event_id", Value: strconv.FormatInt(e.ID, 10)},
		{Name: "event_type", Value: e.Type},
		{Name: "aggregate_type", Value: e.AggregateType},
		{Name: "aggregate_id", Value: e.AggregateID},
		{Name: "content_type", Value: e.ContentType},
		{Name: "headers", Value: headersOf(e)},
		{Name: "created_at", Value: e.CreatedAt.UTC().Format(time.RFC3339Nano)},
	}, e.Payload), nil
}

var _ delivery.Previewer = (*Handler)(nil)
