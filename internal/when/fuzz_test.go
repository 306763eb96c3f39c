package when

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
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

// FuzzCost: no expression reads more than a few times the payload, whatever two values it compares, and the memory is linear in it.
// The same holds for the other parts of an event.
func FuzzCost(f *testing.F) {
	for _, seed := range [][2]string{
		{`1`, `2`},
		{`{"a":{"a":{"a":1}}}`, `{"a":{"a":{"a":2}}}`},
		{`[[[[]]]]`, `[[[1]]]`},
		{`{"a":1,"a":2,"\u0061":3}`, `{"b":1,"a":[]}`},
		{`"x\ud800"`, `"\u0000"`},
		{`[1,1.0,1e0,true,null]`, `[]`},
		{strings.Repeat("[", 500) + strings.Repeat("]", 500), strings.Repeat("[", 500) + "1" + strings.Repeat("]", 500)},
		{`{` + strings.Repeat(`"k":{},`, 300) + `"k":1}`, `{` + strings.Repeat(`"\u006b":{},`, 300) + `"k":2}`},
		{`[` + strings.Repeat("[],", 2_000) + `1]`, `[` + strings.Repeat("[],", 2_000) + `2]`},
	} {
		f.Add(seed[0], seed[1], "order", "A-7")
	}
	// A smaller payload is read without an index of its parts: at worst up to the bound of every expression, 2 MiB.
	pad := strings.Repeat("x", smallText)
	l := language(f)
	var all []*Expression
	for _, text := range append(costly(), `event.aggregate_id + headers["h"] == event.type`, `headers.exists(k, headers[k] == event.aggregate_id)`, `headers == {"h": event.aggregate_id}`,
		`event.type.matches("^(a|b)*$")`, `event.type in [event.aggregate_id, headers["h"]]`) {
		x, err := l.Compile(text)
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, x)
	}
	f.Fuzz(func(t *testing.T, before, after, eventType, aggregateID string) {
		if !json.Valid([]byte(before)) || !json.Valid([]byte(after)) {
			return
		}
		text, err := json.Marshal(after)
		if err != nil {
			t.Fatal(err)
		}
		e := event(`{"before": ` + before + `, "after": ` + after + `, "same": ` + before + `, "list": [` + before + `, ` + after + `], "text": ` + string(text) + `, "pad": "` + pad + `"}`)
		e.Type, e.AggregateID, e.Headers = eventType, aggregateID, map[string]string{"h": aggregateID}
		size := len(e.Payload) - len(pad) + len(eventType) + 2*len(aggregateID)
		for i, x := range all {
			var c delivery.Candidate
			const perByte, once = 128, 8 * smallText
			allocated := testenv.Allocated(func() {
				c = delivery.Candidate{Event: e}
				_, _ = x.Match(&c)
			})
			if allocated > uint64(perByte*size+once) {
				t.Errorf("%s: %d bytes are allocated for %d", x.text, allocated, size)
			}
			if found, ok := c.Memo.(*facts); ok && found.document != nil && i < len(costly()) {
				if read := multiple*len(e.Payload) + spare - found.document.left; read > most*size+8*len(pad) {
					t.Errorf("%s: %d bytes are read of %d", x.text, read, len(e.Payload))
				}
			}
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
