package wire

import (
	"strings"
	"testing"
)

const captured = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestIsTraceparent(t *testing.T) {
	t.Parallel()
	for _, good := range []string{captured, captured[:53] + "00", "cc" + captured[2:]} {
		if !isTraceparent([]byte(good)) {
			t.Errorf("%q is refused", good)
		}
	}
	for _, bad := range []string{
		"", captured[:54], captured + "0", "ff" + captured[2:], strings.ToUpper(captured), strings.ReplaceAll(captured, "-", "a"), captured[:10] + "-" + captured[11:],
		"00-" + strings.Repeat("0", 32) + captured[35:], captured[:36] + strings.Repeat("0", 16) + "-01", captured[:54] + "g", captured[:54] + "\n",
	} {
		if isTraceparent([]byte(bad)) {
			t.Errorf("%q passes", bad)
		}
	}
}
