package when

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"testing"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/notifyd/notifyd/delivery"
)

// FuzzCompile: whatever is written, the compiler says no with a place in the text, or the expression can
// be evaluated, and says yes, no, or why not.
func FuzzCompile(f *testing.F) {
	for _, text := range []string{
		`payload.total > 100`, `has(payload.a.b) && payload.a.b in [1, "x", null]`, `headers["x"].matches("^a+$")`, `payload.items.exists(i, i.n > 1)`,
		`payload.map(x, x * 2) == {"a": 1}`, `type(payload.a) == int ? true : payload`, `"\xff"`, `payload.(`, `((((`, `event.type`, `a = b`, "1\n\n+", `payload[payload]`,
		`timestamp(payload.t) - event.created_at > duration("1h")`, `dyn(1) == payload.filter(a, a)[0]`, `b"x" == bytes(payload.s)`, `-9223372036854775808 / payload.m`,
	} {
		f.Add(text, `{"a": {"b": 1}, "items": [{"n": 2}], "t": "2026-01-01T00:00:00Z", "s": "x", "m": -1}`)
	}
	l := language(f)
	f.Fuzz(func(t *testing.T, text, payload string) {
		x, err := l.Compile(text)
		if err != nil {
			m, ok := errors.AsType[*CompileError](err)
			if !ok || m.Line < 1 || m.Column < 1 || m.Text == "" {
				t.Fatalf("%q: %#v", text, err)
			}
			return
		}
		_, err = x.Match(&delivery.Candidate{Event: event(payload)})
		if why, ok := errors.AsType[*EvalError](err); err != nil && (!ok || why.Line < 1 || why.Column < 1 || why.Text == "") {
			t.Fatalf("%q: %#v", text, err)
		}
	})
}

// FuzzPayload: a payload is read as encoding/json reads it, and text that is no JSON does no harm.
func FuzzPayload(f *testing.F) {
	for _, text := range []string{
		`{"a": 1, "b": [true, false, null, "x"], "c": {"d": 1.5e3}}`, `[]`, ` {} `, `"A\u00e4\n"`, `-0`, `1e999`, `{"\u0061": 1, "a": 2}`, `{"a":}`, `[1,`, `{"a" 1}`, `"`, `{"a":"\`,
		`[[[[[]]]]]`, `9223372036854775808`, `tru`, `{"a":1,}`, `[1 2]`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		f := &facts{event: &delivery.Event{Payload: text}}
		got, _ := f.ResolveName(namePayload)
		if !json.Valid(text) || !utf8.Valid(text) {
			return
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		var want any
		if err := d.Decode(&want); err != nil {
			t.Fatal(err)
		}
		if v, ok := got.(ref.Val); !ok || !same(v, want) {
			t.Fatalf("%q is %v, want %v", text, got, want)
		}
	})
}

// same reports whether a value is what encoding/json has made of the same text.
func same(got ref.Val, want any) bool {
	switch want := want.(type) {
	case nil:
		return got == types.NullValue
	case bool:
		return got == types.Bool(want)
	case string:
		return got == types.String(want)
	case json.Number:
		if n, err := want.Int64(); err == nil {
			return got == types.Int(n)
		}
		d, err := want.Float64()
		if err != nil {
			return types.IsError(got)
		}
		v, ok := got.(types.Double)
		return ok && math.Float64bits(float64(v)) == math.Float64bits(d)
	case []any:
		list, ok := got.(traits.Lister)
		if !ok || list.Size() != types.Int(len(want)) {
			return false
		}
		for i := range want {
			if !same(list.Get(types.Int(i)), want[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		o, ok := got.(*object)
		if !ok || o.Size() != types.Int(len(want)) {
			return false
		}
		for name, value := range want {
			if v, _ := o.Find(types.String(name)); !same(v, value) {
				return false
			}
		}
		return true
	}
	return false
}
