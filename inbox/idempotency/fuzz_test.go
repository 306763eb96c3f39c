package idempotency

import (
	"net/http"
	"strings"
	"testing"
)

// FuzzKey: an accepted key is short, printable and not blank, and has the same
// meaning in quotes.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{"", "k", `"k"`, `"a\"b\\c"`, `"a`, `"a";b`, " k ", "é", "\x00", `\`, `"\`, strings.Repeat("x", 256)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, err := keyOf(http.Header{Header: {value}})
		if err != nil {
			if key != "" {
				t.Fatalf("refused, and %q", key)
			}
			return
		}
		if strings.TrimSpace(key) == "" || len(key) > maxKeyBytes {
			t.Fatalf("took %q", key)
		}
		for _, r := range key {
			if r < ' ' || r > '~' {
				t.Fatalf("took %q", key)
			}
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err := parseKey(quoted); err != nil || again != key {
			t.Fatalf("%q is %q in quotes, %v", key, again, err)
		}
	})
}

// FuzzDecode: nothing that a store returns makes a replay panic.
func FuzzDecode(f *testing.F) {
	whole, err := (&answer{Status: 201, Header: http.Header{"Etag": {"1"}}, body: []byte("a\nb")}).encode()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{whole, whole[:10], nil, []byte("{}\n"), []byte("null\n"), []byte(`{"status":99}` + "\n")} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := decode(text)
		if err != nil {
			return
		}
		again, err := a.encode()
		if err != nil {
			t.Fatal(err)
		}
		if b, err := decode(again); err != nil || b.Status != a.Status || string(b.body) != string(a.body) {
			t.Fatalf("%q became %+v, %v", text, b, err)
		}
	})
}
