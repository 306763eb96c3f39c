package field_test

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/field"
)

type settings struct {
	Number int           `yaml:"number" default:"8" jsonschema:"minimum=1,maximum=10"`
	Ratio  float64       `yaml:"ratio" default:"1.5" jsonschema:"minimum=1"`
	Pause  time.Duration `yaml:"pause" default:"5s" zero:"never" jsonschema:"minimum=100ms,maximum=1m"`
	Age    time.Duration `yaml:"age" zero:"never" jsonschema:"minimum=1ms"`
	Word   string        `yaml:"word" default:"a" enum:"a,b"`
	Free   string        `yaml:"free"`
	Code   int           `yaml:"-" jsonschema:"minimum=1"`
}

func TestFill(t *testing.T) {
	t.Parallel()
	var s settings
	field.Fill(&s)
	if want := (settings{Number: 8, Ratio: 1.5, Pause: 5 * time.Second, Word: "a"}); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
	set := settings{Number: 3, Ratio: 2, Pause: time.Minute, Word: "b", Free: "x", Code: -1}
	same := set
	if field.Fill(&same); same != set {
		t.Errorf("%+v, want %+v", same, set)
	}
	never := settings{Pause: -1, Age: -1}
	if field.Fill(&never); never.Pause != 0 || never.Age != -1 {
		t.Errorf("%v and %v, want 0 and -1ns", never.Pause, never.Age)
	}
	mistake := settings{Pause: -2}
	if field.Fill(&mistake); mistake.Pause != -2 {
		t.Errorf("%v, want -2ns", mistake.Pause)
	}
}

// TestLiteral: a zero from a file stays zero if 0 has a special meaning.
func TestLiteral(t *testing.T) {
	t.Parallel()
	s := settings{Number: 2}
	field.Literal(&s)
	field.Fill(&s)
	if want := (settings{Number: 2, Ratio: 1.5, Word: "a"}); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s    settings
		want string // "" for none
	}{
		{settings{}, ""},
		{settings{Number: 1, Ratio: 1, Pause: 100 * time.Millisecond, Word: "b", Free: "x", Code: -1}, ""},
		{settings{Number: 10, Pause: time.Minute}, ""},
		{settings{Number: -1}, "number: -1 is too small: the least is 1"},
		{settings{Number: 11}, "number: 11 is too large: the most is 10"},
		{settings{Ratio: 0.5}, "ratio: 0.5 is too small: the least is 1"},
		{settings{Pause: time.Millisecond}, "pause: 1ms is too small: the least is 100ms"},
		{settings{Pause: -2}, "pause: -2ns is too small: the least is 100ms"},
		{settings{Age: -1}, "age: -1ns is too small: the least is 1ms"},
		{settings{Pause: time.Hour}, "pause: 1h0m0s is too large: the most is 1m0s"},
		{settings{Word: "c"}, `word: unknown word "c": use a, b`},
		{settings{Number: 11, Word: "c"}, "number: 11 is too large: the most is 10\nword: unknown word \"c\": use a, b"},
	} {
		got := ""
		if err := field.Check(c.s); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.s, got, c.want)
		}
	}
}

// TestWrongDefault: a default that its field cannot have is a bug that no run hides.
func TestWrongDefault(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("a default that is no number was taken")
		}
	}()
	field.Fill(&struct {
		N int `default:"many"`
	}{})
}
