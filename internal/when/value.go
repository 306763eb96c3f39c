package when

import (
	"bytes"
	"reflect"
	"strconv"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/notifyd/notifyd/delivery"
)

// errText is the error for a value that cannot be read.
const errText = "the payload is not JSON, or has a number that is out of range"

// errBytes is the error for an event whose payload is not JSON.
const errBytes = "the payload is not JSON by its content type: a condition for such events can ask for event and headers alone"

// payloadOf returns the value of an event's payload. Only the content type decides whether it is JSON: a binary payload
// can look like JSON, such as one byte that is an ASCII digit.
func payloadOf(e *delivery.Event) ref.Val {
	if !e.IsJSON() {
		return types.NewErrFromString(errBytes)
	}
	return valueOf(e.Payload)
}

// valueOf returns the value of a JSON text. Numbers without a fraction and an exponent are ints if they fit an int64; all
// others are doubles.
func valueOf(b []byte) ref.Val {
	b = bytes.Trim(b, " \n\r\t")
	if len(b) == 0 {
		return types.NewErrFromString(errText)
	}
	switch b[0] {
	case '{':
		return &object{text: b}
	case '[':
		if all, n := list(b, 0); n > 0 {
			return all
		}
	case '"':
		if s, ok := unquote(b); ok {
			return types.String(s)
		}
	case 't', 'f', 'n':
		switch string(b) {
		case "true":
			return types.True
		case "false":
			return types.False
		case "null":
			return types.NullValue
		}
	default:
		if v, ok := number(string(b)); ok {
			return v
		}
	}
	return types.NewErrFromString(errText)
}

// list reads the list that begins at i, and returns the index after it, or -1 if no list begins there. It reads nested
// lists on the way: a search for their ends first would read the innermost list once per level.
func list(b []byte, i int) (ref.Val, int) {
	var all []ref.Val
	for i = space(b, i+1); i < len(b) && b[i] != ']'; {
		var v ref.Val
		var next int
		if b[i] == '[' {
			v, next = list(b, i)
		} else if next = end(b, i); next >= 0 {
			v = valueOf(b[i:next])
		}
		if next < 0 {
			return nil, -1
		}
		all = append(all, v)
		if i = space(b, next); i >= len(b) || b[i] != ',' {
			break
		}
		i = space(b, i+1)
	}
	if i >= len(b) || b[i] != ']' {
		return nil, -1
	}
	return types.NewRefValList(types.DefaultTypeAdapter, all), i + 1
}

func number(s string) (ref.Val, bool) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return types.Int(n), true
	}
	if c := s[0]; c != '-' && (c < '0' || c > '9') { // ParseFloat accepts Inf and NaN
		return nil, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return types.Double(f), err == nil
}

// object is a JSON object. A member is read when an expression asks for it.
type object struct {
	text    []byte
	scanned bool
	broken  bool // it is not JSON
	members []member
	all     traits.Mapper // nil until an expression needs all members
}

// member is a member of an object: the bounds of its key and its value in the text, and the value once it was read. A
// text is shorter than 2 GiB.
type member struct {
	key, keyEnd, text, textEnd int32
	value                      ref.Val
}

func (o *object) scan() {
	if o.scanned {
		return
	}
	o.members = make([]member, 0, min(8, 1+len(o.text)/16))
	o.scanned = true
	o.broken = !members(o.text, func(key, keyEnd, text, textEnd int) {
		o.members = append(o.members, member{key: int32(key), keyEnd: int32(keyEnd), text: int32(text), textEnd: int32(textEnd)}) //nolint:gosec // see member
	})
}

// Find implements traits.Mapper. If a name occurs twice, the last value counts, as for jsonb.
func (o *object) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key), false
	}
	if o.scan(); o.broken {
		return types.NewErrFromString(errText), false
	}
	for i := len(o.members) - 1; i >= 0; i-- {
		m := &o.members[i]
		if !isKey(o.text[m.key:m.keyEnd], string(name)) {
			continue
		}
		if m.value == nil {
			m.value = valueOf(o.text[m.text:m.textEnd])
		}
		return m.value, !types.IsError(m.value)
	}
	return nil, false
}

// Get implements traits.Indexer.
func (o *object) Get(key ref.Val) ref.Val {
	v, found := o.Find(key)
	if v == nil && !found {
		return types.NewErrFromString("no such key")
	}
	return v
}

// Contains implements traits.Container.
func (o *object) Contains(key ref.Val) ref.Val {
	v, found := o.Find(key)
	if v != nil && !found {
		return v
	}
	return types.Bool(found)
}

// whole reads all members.
func (o *object) whole() traits.Mapper {
	if o.all == nil {
		o.scan()
		all := make(map[ref.Val]ref.Val, len(o.members))
		for _, m := range o.members {
			if name, ok := unquote(o.text[m.key:m.keyEnd]); ok {
				all[types.String(name)] = valueOf(o.text[m.text:m.textEnd])
			}
		}
		o.all = types.NewRefValMap(types.DefaultTypeAdapter, all)
	}
	return o.all
}

// Iterator implements traits.Iterable.
func (o *object) Iterator() traits.Iterator { return o.whole().Iterator() }

// Size implements traits.Sizer.
func (o *object) Size() ref.Val { return o.whole().Size() }

// Equal implements ref.Val.
func (o *object) Equal(other ref.Val) ref.Val { return o.whole().Equal(other) }

// ConvertToNative implements ref.Val.
func (o *object) ConvertToNative(kind reflect.Type) (any, error) {
	return o.whole().ConvertToNative(kind)
}

// ConvertToType implements ref.Val.
func (o *object) ConvertToType(kind ref.Type) ref.Val { return o.whole().ConvertToType(kind) }

// Type implements ref.Val.
func (*object) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (o *object) Value() any { return o.whole().Value() }

var _ traits.Mapper = (*object)(nil)
