package kafka

import (
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// Preview returns the record for e: topic, key, headers and value. Of a schema it has the name, as only
// the registry knows the id.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	var r kgo.Record
	var schema schemaRef
	var header headerFunc
	if h.registry != nil {
		header = func(ref schemaRef) ([]byte, error) {
			schema = ref
			return nil, nil
		}
	}

	if err := h.encoder.record(&r, e, &scratch{}, header); err != nil {
		return "", delivery.Permanent(fmt.Errorf("kafka: %w", err))
	}

	fields := []message.Header{{Name: "topic", Value: r.Topic}, {Name: "key", Value: string(r.Key)}}
	if r.Partition >= 0 {
		fields = append(fields, message.Header{Name: "partition", Value: strconv.Itoa(int(r.Partition))})
	}
	if r.Value == nil {
		fields = append(fields, message.Header{Name: "value", Value: "none: a tombstone"})
	}
	if header != nil && r.Value != nil {
		value := "its id goes before the value: version " + schema.version + " of subject " + schema.subject
		fields = append(fields, message.Header{Name: "schema", Value: value})
	}
	for _, header := range r.Headers {
		fields = append(fields, message.Header{Name: "header " + header.Key, Value: string(header.Value)})
	}

	return message.Preview(fields, r.Value), nil
}

var _ delivery.Previewer = (*Handler)(nil)
