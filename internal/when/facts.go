package when

import (
	"cel.dev/cel-go/common/operators"
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

// CallCost implements cost.ActualCostEstimator: it counts the bytes of texts that a function has read or written. The
// steps are counted by CEL.
func (f *facts) CallCost(function, _ string, args []ref.Val, result ref.Val) *uint64 {
	if function == boundedMatches || f.document == nil { // maxMatch bounds matches
		return nil
	}

	n := length(result)
	for i, arg := range args {
		switch function {
		case operators.Equals, operators.NotEquals,
			operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
			if i > 0 { // a comparison ends with the shorter text
				n = min(n, length(arg))
				continue
			}
		}
		n += length(arg)
	}

	f.document.spend(n)
	return nil
}
