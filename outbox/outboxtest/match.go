package outboxtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"reflect"
)

// Match compares an event with the expected one: it returns nil if they agree, or an error that names the
// difference, "type is order.paid, want order.created". Write your own for comparisons that this package
// lacks.
type Match func(e *Event) error

// Type matches events of this type.
func Type(want string) Match {
	return func(e *Event) error { return same("type", e.Type, want) }
}

// Aggregate matches events about this aggregate.
func Aggregate(wantType, wantID string) Match {
	return func(e *Event) error { return same("aggregate", e.AggregateType+"/"+e.AggregateID, wantType+"/"+wantID) }
}

// Key matches events with this idempotency key.
func Key(want string) Match {
	return func(e *Event) error { return same("idempotency key", e.IdempotencyKey, want) }
}

// Header matches events with this header.
func Header(name, want string) Match {
	return func(e *Event) error {
		got, ok := e.Headers[name]
		if !ok {
			return fmt.Errorf("there is no header %s", name)
		}
		return same("header "+name, got, want)
	}
}

// Delayed matches events that are not delivered at once.
func Delayed() Match {
	return func(e *Event) error {
		if e.AvailableAt.IsZero() {
			return errors.New("it is delivered at once")
		}
		return nil
	}
}

// JSON matches events whose payload is the same JSON as want, whatever the order of its members and its
// white space. want is a JSON text (string, []byte, json.RawMessage), or a value to encode.
func JSON(want any) Match {
	return func(e *Event) error {
		got, expected, err := both(e, want)
		if err != nil {
			return err
		}
		return whole.differs("payload", got, expected)
	}
}

// Contains is [JSON] for a part of the payload: members of objects that want does not name may be there.
func Contains(want any) Match {
	return func(e *Event) error {
		got, expected, err := both(e, want)
		if err != nil {
			return err
		}
		return part.differs("payload", got, expected)
	}
}

// Payload matches events whose decoded payload passes check. check returns nil, or an
// error that describes the mistake.
func Payload[T any](check func(payload T) error) Match {
	return func(e *Event) error {
		var payload T
		if err := json.Unmarshal(e.Payload, &payload); err != nil {
			return fmt.Errorf("payload: %w", err)
		}
		if err := check(payload); err != nil {
			return fmt.Errorf("payload: %w", err)
		}
		return nil
	}
}

// ContentType matches events whose payload has this media type. JSON written without a content
// type has "application/json".
func ContentType(want string) Match {
	return func(e *Event) error { return same("content type", e.ContentType, want) }
}

// Bytes matches events whose payload is these bytes: JSON byte for byte, Avro, Protobuf. To look into a message,
// decode [Event.Payload] in a [Match] of your own.
func Bytes(want []byte) Match {
	return func(e *Event) error {
		if bytes.Equal(e.Payload, want) {
			return nil
		}
		at := 0
		for at < len(want) && at < len(e.Payload) && e.Payload[at] == want[at] {
			at++
		}
		return fmt.Errorf("payload has %d bytes, want %d: they differ from byte %d on", len(e.Payload), len(want), at)
	}
}

// All matches events that each of these matches. It makes one of several where one is wanted: see
// [InOrder].
func All(matches ...Match) Match {
	return func(e *Event) error {
		for _, m := range matches {
			if err := m(e); err != nil {
				return err
			}
		}
		return nil
	}
}

func same(what, got, want string) error {
	if got != want {
		return fmt.Errorf("%s is %q, want %q", what, got, want)
	}
	return nil
}

// both decodes the payload and the expected value in the same way.
func both(e *Event, want any) (got, expected any, err error) {
	var text []byte
	switch w := want.(type) {
	case string:
		text = []byte(w)
	case []byte:
		text = w
	case json.RawMessage:
		text = w
	default:
		text, err = json.Marshal(want)
		if err != nil {
			return nil, nil, fmt.Errorf("what is wanted cannot be encoded: %w", err)
		}
	}

	expected, err = decode(text)
	if err != nil {
		return nil, nil, fmt.Errorf("what is wanted is not JSON: %w", err)
	}

	got, err = decode(e.Payload)
	if err != nil {
		return nil, nil, fmt.Errorf("payload: %w", err)
	}

	return got, expected, nil
}

func decode(text []byte) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // a float64 would call large numbers equal that are not
	err = d.Decode(&value)
	if err == nil && d.More() {
		err = errors.New("there is something behind the first value")
	}
	return value, err
}

// extent is how much of a payload has to be wanted.
type extent bool

const (
	whole extent = false
	part  extent = true
)

// differs names the first place where got is not want.
func (x extent) differs(path string, got, want any) error {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			break
		}
		for name := range w {
			if _, ok := g[name]; !ok {
				return fmt.Errorf("%s.%s is missing", path, name)
			}
			if err := x.differs(path+"."+name, g[name], w[name]); err != nil {
				return err
			}
		}

		for name := range g {
			if _, ok := w[name]; !ok && x == whole {
				return fmt.Errorf("%s.%s is not wanted", path, name)
			}
		}
		return nil
	case []any:
		g, ok := got.([]any)
		if !ok {
			break
		}
		if len(g) != len(w) {
			return fmt.Errorf("%s has %d elements, want %d", path, len(g), len(w))
		}

		for i := range w {
			if err := x.differs(fmt.Sprintf("%s[%d]", path, i), g[i], w[i]); err != nil {
				return err
			}
		}
		return nil
	case json.Number:
		if g, ok := got.(json.Number); ok && sameNumber(g, w) {
			return nil
		}
	}

	if reflect.DeepEqual(got, want) {
		return nil
	}
	return fmt.Errorf("%s is %s, want %s", path, text(got), text(want))
}

// sameNumber takes 1 and 1.0 as the same.
func sameNumber(a, b json.Number) bool {
	if a == b {
		return true
	}
	x, ok := new(big.Rat).SetString(a.String())
	y, okToo := new(big.Rat).SetString(b.String())
	return ok && okToo && x.Cmp(y) == 0
}

func text(value any) string {
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return shortened(string(encoded))
}
