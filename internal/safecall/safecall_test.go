package safecall

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// broken is an error whose methods fail on a nil pointer.
type broken struct{ text string }

func (b *broken) Error() string { return b.text }

// hostile panics with itself when its text is requested.
type hostile struct{}

func (h hostile) Error() string  { panic(h) }
func (h hostile) String() string { panic(h) }

func TestTextOfAnything(t *testing.T) {
	t.Parallel()
	var nilPointer *broken
	for name, c := range map[string]struct {
		v    any
		want string
	}{
		"text":         {"x", "x"},
		"error":        {errors.New("e"), "e"},
		"typed nil":    {nilPointer, "*safecall.broken"},
		"hostile":      {hostile{}, "safecall.hostile"},
		"nil":          {nil, "<nil>"},
		"binary":       {errors.New("a\x00\xff\xfeb"), "a\uFFFDb"},
		"a long rune":  {strings.Repeat("ü", MaxText), "üü"},
		"much of it":   {errors.New(strings.Repeat("x", 100<<20)), "xxx..."},
		"nil function": {(func())(nil), ""},
	} {
		got := Text(c.v)
		if !strings.Contains(got, c.want) || len(got) > MaxText+10 || !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
			t.Errorf("%s: %d bytes, %.100q", name, len(got), got)
		}
	}
}

func TestCallReturnsPanics(t *testing.T) {
	t.Parallel()
	if err := Call("it", func() {}); err != nil {
		t.Error(err)
	}
	var nilPointer *broken
	for _, p := range []any{"x", errors.New("x"), nilPointer, hostile{}} {
		err := Call("it", func() { panic(p) })
		if err == nil || !strings.HasPrefix(err.Error(), "it panicked: ") || !strings.Contains(err.Error(), "safecall_test.go") {
			t.Errorf("a panic with a %T: %v", p, err)
		}
	}
}
