package when

import (
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"

	"github.com/notifyd/notifyd/delivery"
)

// The names that an expression may use.
const (
	nameID            = "event.id"
	nameType          = "event.type"
	nameAggregateType = "event.aggregate_type"
	nameAggregateID   = "event.aggregate_id"
	nameCreatedAt     = "event.created_at"
	namePayload       = "payload"
	nameHeaders       = "headers"
)

// names returns all names that an expression may use.
func names() []string {
	return []string{namePayload, nameHeaders, nameType, nameAggregateType, nameAggregateID, nameID, nameCreatedAt}
}

// facts holds the values that expressions ask for about one event. Only one goroutine may use it.
type facts struct {
	event    *delivery.Event
	document *document // nil until an expression reads the payload
	payload  ref.Val
}

// begin begins one evaluation.
func (f *facts) begin() {
	if f.document != nil {
		f.document.refill()
	}
}

// ResolveName implements interpreter.Activation.
func (f *facts) ResolveName(name string) (any, bool) {
	switch name {
	case namePayload:
		if f.payload == nil {
			f.document = &document{text: f.event.Payload}
			f.document.refill()
			f.payload = f.document.payloadOf(f.event)
		}
		return f.payload, true
	case nameHeaders:
		return types.NewStringStringMap(types.DefaultTypeAdapter, f.event.Headers), true
	case nameType:
		return types.String(f.event.Type), true
	case nameAggregateType:
		return types.String(f.event.AggregateType), true
	case nameAggregateID:
		return types.String(f.event.AggregateID), true
	case nameID:
		return types.Int(f.event.ID), true
	case nameCreatedAt:
		return types.Timestamp{Time: f.event.CreatedAt}, true
	}
	return nil, false
}

// Parent implements interpreter.Activation.
func (*facts) Parent() interpreter.Activation { return nil }
