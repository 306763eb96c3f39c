package when

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

func language(tb testing.TB) *Language {
	tb.Helper()
	l, err := New()
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func compile(tb testing.TB, text string) *Expression {
	tb.Helper()
	x, err := language(tb).Compile(text)
	if err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	return x
}

func event(payload string) *delivery.Event {
	return &delivery.Event{
		ID: 7, Type: "order.placed", AggregateType: "order", AggregateID: "A-1", Payload: []byte(payload),
		Headers: map[string]string{"tenant": "acme"}, CreatedAt: time.Date(2026, 11, 25, 10, 0, 0, 0, time.UTC),
	}
}

const sample = ` {"total": 120.5, "qty": 3, "id": 9007199254740993, "vip": true, "note": null, "name": "A\u00e4\"x", "customer": {"country": "DE"},
	"items": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}], "a": {"x": [1, 2]}, "b": {"x": [1, 2]}, "\u0074wice": 1, "twice": 2, "big": 1e300} `

func TestMatch(t *testing.T) {
	t.Parallel()
	l := language(t)
	for text, want := range map[string]string{
		`payload.total > 100`:                                            "true",
		`payload.total > 100.5 && payload.qty == 3`:                      "true",
		`payload.total < 100`:                                            "false",
		`payload.qty + 1 == 4`:                                           "true",
		`payload.qty == 3.0`:                                             "true",
		`payload.id == 9007199254740993`:                                 "true",
		`payload.id == 9007199254740992`:                                 "false",
		`payload.vip`:                                                    "true",
		`!payload.vip`:                                                   "false",
		`payload.note == null`:                                           "true",
		`payload.name == 'Aä"x'`:                                         "true",
		`payload.customer.country in ["DE", "AT"]`:                       "true",
		`payload["customer"]["country"] == "FR"`:                         "false",
		`has(payload.customer.vat)`:                                      "false",
		`has(payload.nobody) && payload.nobody > 1`:                      "false",
		`has(payload.note.x)`:                                            "false",
		`payload.items.exists(i, i.sku == "b" && i.n == 2)`:              "true",
		`payload.items.all(i, i.n > 1)`:                                  "false",
		`size(payload.items) == 2 && payload.items[1].sku == "b"`:        "true",
		`payload.a == payload.b`:                                         "true",
		`payload.a == payload.customer`:                                  "false",
		`"customer" in payload && !("nobody" in payload)`:                "true",
		`payload.customer.exists(k, k == "country")`:                     "true",
		`payload.twice == 2`:                                             "true",
		`payload.big > 1`:                                                "true",
		`payload.name.startsWith("A") && payload.name.matches("^A.*x$")`: "true",
		`event.type == "order.placed" && event.id == 7`:                  "true",
		`event.aggregate_type + "/" + event.aggregate_id == "order/A-1"`: "true",
		`event.created_at > timestamp("2026-01-01T00:00:00Z")`:           "true",
		`headers.tenant == "acme" && !("x" in headers)`:                  "true",
		`headers["tenant"] == "umbrella"`:                                "false",
		`payload.total == "120.5"`:                                       "false",
		// They fail.
		`payload.nobody > 1`:                   `payload.nobody > 1: column 8, at payload.nobody: the event has no such member: where it may be absent, write has(payload.nobody)`,
		`payload.customer.vat == ""`:           `at payload.customer.vat: the event has no such member`,
		`payload.name > 100`:                   `column 14, at payload.name > 100: a value has another type`,
		`payload.note > 100`:                   `a value has another type than this needs, or is null`,
		`payload.total`:                        `it yields a double here, and must be true or false`,
		`payload.note`:                         `it yields null here`,
		`headers["x"] == "1"`:                  `at headers["x"]: the event has no such member`,
		`payload.items[7].sku == ""`:           `the list has no such element`,
		`int(payload.name) == 1`:               `a value cannot be converted`,
		`payload[payload.name] == 1`:           `no such member`,
		`payload.qty / (payload.qty - 3) == 1`: `it divides by zero`,
		`payload.id * payload.id > 1`:          `out of range`,
		"payload.vip &&\n  payload.nobody":     `line 2, column 10, at payload.nobody: the event has no such member`,
	} {
		x, err := l.Compile(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for range 2 {
			got, err := x.Match(&delivery.Candidate{Event: event(sample)})
			said := fmt.Sprint(got)
			if err != nil {
				said = err.Error()
				if _, ok := errors.AsType[*EvalError](err); !ok {
					t.Errorf("%s: %T", text, err)
				}
			}
			if (want == "true" || want == "false") != (err == nil) || !strings.Contains(said, want) {
				t.Errorf("%s\n got %s\nwant %s", text, said, want)
			}
			if err != nil && strings.Contains(said, "Aä") {
				t.Errorf("%s: %s repeats a value", text, said)
			}
		}
	}
}

// TestBytes: a condition that asks for a payload that is not JSON fails, also where the bytes look like JSON.
func TestBytes(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{"7", `{"total": 200}`, "\x00\xff", "", "true"} {
		e := event(payload)
		e.ContentType = "application/x-protobuf"
		for text, want := range map[string]bool{
			`event.type != ""`: true, `headers.size() > 100`: false, `event.type != "" || payload.total > 100`: true,
		} {
			if got, err := compile(t, text).Match(&delivery.Candidate{Event: e}); err != nil || got != want {
				t.Errorf("%q, %s: %t, %v", payload, text, got, err)
			}
		}
		for _, text := range []string{`payload > 5`, `payload.total > 100`, `has(payload.total)`, `payload == null`, `payload`} {
			_, err := compile(t, text).Match(&delivery.Candidate{Event: e})
			if failed, ok := errors.AsType[*EvalError](err); !ok || !strings.Contains(failed.Text, "by its content type") {
				t.Errorf("%q, %s: %v", payload, text, err)
			}
		}
	}
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	l := language(t)
	for text, want := range map[string]string{
		``:                                     `column 1: the expression is empty`,
		`payload.total >`:                      `column 16: it is not an expression: it ends where something has to follow`,
		`payload.total = 100`:                  `column 15: it is not an expression: "=" is no operator: write == for equal`,
		`payload.total > 3)`:                   `column 18: it is not an expression: ")" is too much here`,
		`payload.name == "a`:                   `column 17: it is not an expression: a quote is not closed`,
		`payload.a and payload.b`:              `column 11: it is not an expression: "and" cannot stand here: write &&, || and ! for and, or and not`,
		`payload.a == 1 and payload.b == 2`:    `write &&, || and ! for and, or and not`,
		`{{ .Payload.total }}`:                 `it is no template`,
		`event.type == 5`:                      `column 12: == does not go with (string, int)`,
		`headers.tenant > 5`:                   `does not go with (string, int)`,
		`total > 5`:                            `column 1: there is no total: an expression has payload, headers, event.type`,
		`event.typ == "x"`:                     `there is no event`,
		`event.type`:                           `column 1: it yields a string, and must be true or false`,
		`1 + 1`:                                `it yields an int`,
		`event.type.matches("(")`:              `column 20: `,
		`event.created_at > timestamp("2026")`: `column 30: `,
		`payload.a.all(a, a.all(b, b.all(c, c == 1)))`:               `nesting`,
		"true &&\n  total > 5":                                       `line 2, column 3: there is no total`,
		strings.Repeat("(", 500) + "true" + strings.Repeat(")", 500): `column`,
		`"` + strings.Repeat("x", MaxText) + `" == ""`:               `column 1: `,
	} {
		_, err := l.Compile(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s\n got %v\nwant %s", text, err, want)
		}
	}
}

// TestPayloadIsReadOnceAndOnlyIfAsked: expressions about one candidate share the decoded payload, and an expression that
// does not use the payload does not read it.
func TestPayloadIsReadOnceAndOnlyIfAsked(t *testing.T) {
	t.Parallel()
	a, b, c := compile(t, `payload.total > 1`), compile(t, `payload.qty > 1`), compile(t, `event.type != ""`)
	candidate := &delivery.Candidate{Event: event(sample)}
	ask := func(x *Expression) *facts {
		t.Helper()
		if yes, err := x.Match(candidate); !yes || err != nil {
			t.Fatal(yes, err)
		}
		f, ok := candidate.Memo.(*facts)
		if !ok {
			t.Fatalf("%T", candidate.Memo)
		}
		return f
	}
	if f := ask(c); f.payload != nil {
		t.Error("the payload was read, and nobody has asked for it")
	}
	first := ask(a).payload
	if first == nil || ask(b).payload != first {
		t.Error("the payload was read again")
	}
}

// TestStepsAreBounded: no expression takes long, however long a list is.
func TestStepsAreBounded(t *testing.T) {
	t.Parallel()
	x := compile(t, `payload.all(a, payload.all(b, a <= b || b <= a))`)
	_, err := x.Match(&delivery.Candidate{Event: event("[" + strings.Repeat("1,", 10_000) + "1]")})
	if err == nil || !strings.Contains(err.Error(), "too many steps") {
		t.Errorf("%v", err)
	}
}

// TestNestedListsAreReadOnce: the time to read lists within lists does not grow with the size of the innermost one
// times the depth.
func TestNestedListsAreReadOnce(t *testing.T) {
	t.Parallel()
	const depth = 100_000 // PostgreSQL takes some thousands
	x := compile(t, `payload.size() == 1`)
	e := event(strings.Repeat("[", depth) + `"` + strings.Repeat("x", 8<<20) + `"` + strings.Repeat("]", depth))
	if yes, err := x.Match(&delivery.Candidate{Event: e}); err != nil || !yes {
		t.Errorf("%t, %v", yes, err)
	}
}
