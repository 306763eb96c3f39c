package secret_test

import (
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/secret"
)

func TestRedact(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, secrets, want string }{
		{"from: is not an e-mail address", "postgres://notifyd:hunter2@h/db notifyd:hunter2 hunter2", "from: is not an e-mail address"},
		{"no hunter2, hunter2!", "hunter2", "no [redacted], [redacted]!"},
		{"key=hunter2x", "hunter2", "key=[redacted]x"},
		{"an abacus, (ab) and ab.", "ab", "an abacus, ([redacted]) and [redacted]."},
		{"ab ab:ab", "ab", "[redacted] [redacted]:[redacted]"},
		{"u:hunter2@h", "hunter2 u:hunter2", "[redacted]@h"},
		{"a%2Fb%40c a/b@c", "a/b@c", "[redacted] [redacted]"},
		{`"q\"uote"`, `q"uote`, `"[redacted]"`},
		{"redacted", "redacted", "[redacted]"},
		{"nothing", "", "nothing"},
	} {
		if got := secret.NewRedactor(strings.Split(c.secrets, " ")...).Redact(c.text); got != c.want {
			t.Errorf("%q without %q is %q, want %q", c.text, c.secrets, got, c.want)
		}
	}
	var none *secret.Redactor
	if none.Redact("x") != "x" || none.Longest() != 0 {
		t.Error("a nil Redactor changes a text")
	}
}

// FuzzRedact: no secret of four bytes or more is left, no shorter one between delimiters, and a text without secrets is
// unchanged.
func FuzzRedact(f *testing.F) {
	f.Add("from: is not an e-mail address", "notifyd", "not")
	f.Add("invalid port \":hunter2\" after host", "hunter2", "u")
	f.Add("xabcabcd ab ab abc", "abcd", "ab") //nolint:dupword // the text has it twice
	f.Add("[redacted] and redacted", "redacted", "[r")
	f.Add("a%2Fb c", "a/b", "c")
	const delimiters = " \t\r\n\"'`()[]<>{},;:=@/.!?"
	delimits := func(text string) bool { return text == "" || strings.ContainsAny(text, delimiters) }
	f.Fuzz(func(t *testing.T, text, one, two string) {
		got := secret.NewRedactor(one, two).Redact(text)
		found := false
		for _, s := range []string{one, two} {
			if s == "" {
				continue
			}
			quoted := strconv.Quote(s)
			for _, form := range []string{s, url.QueryEscape(s), url.PathEscape(s), url.User(s).String(), quoted[1 : len(quoted)-1]} {
				found = found || strings.Contains(text, form)
				// The text next to a mark differs from the text next to the secret.
				for piece := range strings.SplitSeq(got, secret.Redacted) {
					for i := range piece {
						rest, ok := strings.CutPrefix(piece[i:], form)
						if ok && (len(form) >= 4 || delimits(piece[max(i-1, 0):i]) && delimits(rest[:min(1, len(rest))])) {
							t.Errorf("%q is in %q, from %q", form, got, text)
						}
					}
				}
			}
		}
		if !found && got != text {
			t.Errorf("%q without a secret became %q", text, got)
		}
	})
}
