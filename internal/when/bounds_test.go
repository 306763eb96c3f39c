package when

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/notifyd/notifyd/delivery"
)

// shapes are the forms of payloads whose cost may grow with more than their size: each returns a value of about so many
// bytes, whose innermost or last part is the text.
var shapes = map[string]func(bytes, depth int, text string) string{
	"text": func(bytes, _ int, text string) string { return `"` + strings.Repeat("x", bytes) + text + `"` },
	"objects within objects": func(bytes, depth int, text string) string {
		return strings.Repeat(`{"a":`, depth) + `"` + strings.Repeat("x", bytes) + text + `"` + strings.Repeat("}", depth)
	},
	"lists within lists": func(bytes, depth int, text string) string {
		return strings.Repeat(`[`, depth) + `"` + strings.Repeat("x", bytes) + text + `"` + strings.Repeat("]", depth)
	},
	"objects within lists": func(bytes, depth int, text string) string {
		return strings.Repeat(`[{"a":`, depth/2) + `"` + strings.Repeat("x", bytes) + text + `"` + strings.Repeat("}]", depth/2)
	},
	"members":         func(bytes, _ int, text string) string { return objectOf(bytes, `"k%d":1`, text) },
	"escaped members": func(bytes, _ int, text string) string { return objectOf(bytes, `"\u006b%d":1`, text) },
	"the same member": func(bytes, _ int, text string) string { return objectOf(bytes, `"k":%d`, text) },
	"numbers":         func(bytes, _ int, text string) string { return "[" + strings.Repeat("1,", bytes/2) + `"` + text + `"]` },
	"empty lists": func(bytes, _ int, text string) string {
		return "[" + strings.Repeat("[],", bytes/3) + `"` + text + `"]`
	},
	"short stacks": func(bytes, _ int, text string) string {
		return "[" + strings.Repeat("[[[[[[[[]]]]]]]],", bytes/17) + `"` + text + `"]`
	},
	"long stacks": func(bytes, depth int, text string) string {
		one := strings.Repeat("[", depth) + strings.Repeat("]", depth) + ","
		return "[" + strings.Repeat(one, 1+bytes/len(one)) + `"` + text + `"]`
	},
}

func objectOf(bytes int, member, text string) string {
	var b strings.Builder
	for b.WriteString("{"); b.Len() < bytes; b.WriteString(",") {
		fmt.Fprintf(&b, member, b.Len())
	}
	b.WriteString(`"last":"` + text + `"}`)
	return b.String()
}

// most is how many bytes an expression of costly reads per byte of payload.
const most = 12

// readOf returns how many bytes an expression reads of a payload.
func readOf(t *testing.T, x *Expression, payload string) (int, error) {
	t.Helper()
	c := delivery.Candidate{Event: event(payload)}
	_, err := x.Match(&c)
	f, ok := c.Memo.(*facts)
	if !ok {
		t.Fatalf("%T", c.Memo)
	}
	return multiple*len(payload) + spare - f.document.left, err
}

// costly returns expressions with each operator that reads a payload.
func costly() []string {
	return []string{
		`payload.before != payload.after`, `payload.before == payload.after`, `payload.before == payload.same`, `payload.before in [payload.after]`,
		`payload.before in payload.list`, `[payload.before] == [payload.after]`, `{"x": payload.before} == {"x": payload.after}`,
		`payload.list.exists(i, i == 7)`, `payload.list.all(i, i != 7)`, `payload.list.filter(i, i == 7).size() == 1`, `payload.list.map(i, i).size() == 1`,
		`payload.list.exists_one(i, i == payload.none)`, `payload.before.exists(k, false)`, `payload.before.all(k, true)`,
		`has(payload.before.a)`, `"x" in payload.before`, `payload.before["a"] == 1`, `payload.list[0] == 1`, `payload.list[0] == payload.after`,
		`size(payload.before) == 1`, `payload.list + payload.list == payload.list`, `payload == {"a": 1}`, `payload != payload`,
		`payload.text.size() == 1`, `payload.text.contains("yz")`, `payload.text.startsWith("x")`, `payload.text.endsWith("y")`, `payload.text < payload.text`,
		`payload.text + payload.text == "x"`, `payload.text in ["a", "b"]`, `int(payload.text) == 1`, `timestamp(payload.text) == event.created_at`,
		`string(bytes(payload.text)) == "x"`, `payload.text.matches("^(a|b|x)*$")`, `type(payload.before) == map`, `dyn(payload.before) == dyn(payload.after)`,
	}
}

// TestCostIsLinear: no operator reads more than a few times the payload, whatever its size, its form and its depth.
func TestCostIsLinear(t *testing.T) {
	t.Parallel()
	for _, text := range costly() {
		x := compile(t, text)
		for shape, of := range shapes {
			for _, bytes := range []int{2_000, 40_000} {
				for _, depth := range []int{2, 300, 4_000} {
					before, after := of(bytes, depth, "p"), of(bytes, depth, "q")
					payload := fmt.Sprintf(`{"before": %s, "after": %s, "same": %s, "list": [%s], "text": "%s"}`, before, after, before, before, strings.Repeat("x", bytes))
					read, err := readOf(t, x, payload)
					if bound := most*len(payload) + 10_000; read > bound {
						t.Errorf("%s\n%s of %d bytes, depth %d: %d bytes of %d were read (%v)", text, shape, bytes, depth, read, len(payload), err)
					}
				}
			}
		}
	}
}

// TestExpressionsAreCanceled: an expression that reads its payload again and again fails, also where || could hide it.
func TestExpressionsAreCanceled(t *testing.T) {
	t.Parallel()
	ten := strings.Repeat("1,", 100) + "1"
	nested := func(text string) string { return shapes["objects within objects"](100_000, 100, text) }
	long := strings.Repeat("x", 1<<20)
	for _, c := range []struct{ text, payload, want string }{
		{`payload.list.exists(i, payload.before == payload.after)`, `{"list": [` + ten + `], "before": ` + nested("p") + `, "after": ` + nested("q") + `}`, "16 times the payload"},
		{`true || payload.x || payload.list.exists(i, payload.text.size() == 1)`, `{"list": [` + ten + `], "x": true, "text": "` + long + `"}`, ""},
		{`payload.list.exists(i, payload.text.size() == 1) || true`, `{"list": [` + ten + `], "text": "` + long + `"}`, "16 times the payload"},
		{`payload.text.matches("^(a|b|x)*$")`, `{"text": "` + long + `"}`, "too long for matches"},
		{`payload.text.matches("^(a|b|x)*$")`, `{"text": "xxxx"}`, ""},
		{`payload.a == payload.b`, `{"a": ` + strings.Repeat("[", maxNesting+1) + strings.Repeat("]", maxNesting+1) + `, "b": 1}`, "within each other"},
		{`payload.b == 1`, `{"a": ` + strings.Repeat("[", maxNesting+1) + strings.Repeat("]", maxNesting+1) + `, "b": 1}`, ""},
		{`payload.list + payload.list == []`, `{"list": [` + strings.Repeat("[],", maxAdded) + `1]}`, "too many steps"},
		{strings.Repeat("payload.text + ", 60) + `"x" == "x"`, `{"text": "` + long + `"}`, "16 times the payload"},
	} {
		_, err := compile(t, c.text).Match(&delivery.Candidate{Event: event(c.payload)})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
}

// TestEqual: two values of a payload are equal if CEL says so of the same values, decoded.
func TestEqual(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var value func(depth int) string
	value = func(depth int) string {
		switch n := random.IntN(10); {
		case n < 3 && depth > 0:
			var all []string
			for range random.IntN(4) {
				all = append(all, value(depth-1))
			}
			return "[" + strings.Join(all, ", ") + "]"
		case n < 7 && depth > 0:
			var all []string
			for range random.IntN(12) { // some names twice, some escaped
				name := []string{`"a"`, `"\u0061"`, `"b"`, `"c"`, `""`, `"é"`}[random.IntN(6)]
				if random.IntN(3) == 0 {
					name = fmt.Sprintf(`"k%d"`, random.IntN(20))
				}
				all = append(all, name+":"+value(depth-1))
			}
			return "{" + strings.Join(all, ",") + "}"
		}
		return []string{`1`, `1.0`, `2`, `"x"`, `"\u0078"`, `true`, `null`, `""`, `[]`, `{}`}[random.IntN(10)]
	}
	x := compile(t, `payload.a == payload.b`)
	equals := 0
	for range 20_000 {
		a, b := value(3), value(3)
		switch random.IntN(4) {
		case 0:
			b = a
		case 1:
			b = strings.Replace(a, "true", "1.0", 1)
		}
		got, err := x.Match(&delivery.Candidate{Event: event(`{"a": ` + a + `, "b": ` + b + `}`)})
		want := types.Equal(native(t, a), native(t, b))
		if err != nil || types.Bool(got) != want {
			t.Fatalf("%s\n%s\n%t, %v; want %v", a, b, got, err, want)
		}
		if got {
			equals++
		}
	}
	if equals < 1000 {
		t.Errorf("%d pairs were equal", equals)
	}
	if _, err := x.Match(&delivery.Candidate{Event: event(`{"a": {"x": [1e999]}, "b": {"x": [2]}}`)}); err == nil || !strings.Contains(err.Error(), "out of range") {
		t.Errorf("%v", err)
	}
}

// native returns the value of a text as CEL has it of a value that encoding/json has decoded.
func native(t *testing.T, text string) ref.Val {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return types.DefaultTypeAdapter.NativeToValue(v)
}
