package oneline_test

import (
	"testing"

	"github.com/notifyd/notifyd/handlers/internal/oneline"
)

func TestLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{
		{"550 no\r\n such\tuser ", 100, "550 no such user"},
		{"\x1b[2Jgone\u0085\u2028now\x7f", 100, "[2Jgone now"},
		{"grün und rot", 3, "gr..."},
		{"grün", 5, "grün"},
		{"a\xffb", 100, "a\ufffdb"},
		{"", 0, ""},
	} {
		if got := oneline.Of(c.text, c.limit); got != c.want {
			t.Errorf("Of(%q, %d) = %q, want %q", c.text, c.limit, got, c.want)
		}
	}
}
