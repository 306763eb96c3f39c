package textview_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/notifyd/notifyd/internal/textview"
)

func TestPayload(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", `{"n": 1}`, "a\r\n\tb", "<ü>\n", "\"\x7f\""} {
		if got := textview.Payload([]byte(text)); got != text {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
	want := "4 bytes\n00000000  89 50 4e 47                                       |.PNG|"
	if got := textview.Payload([]byte("\x89PNG")); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, data := range []string{"\x00", "a\x1b[31m", "\xff"} {
		if got := textview.Payload([]byte(data)); strings.ContainsFunc(got, unshowable) || !strings.HasPrefix(got, "1 bytes\n") && len(data) == 1 {
			t.Errorf("%q is shown as %q", data, got)
		}
	}
	if got := textview.Payload(make([]byte, 1000)); !strings.HasPrefix(got, "1000 bytes, the first 256\n") || strings.Count(got, "\n") != 16 {
		t.Errorf("1000 bytes are shown as\n%s", got)
	}
}

// unshowable is true for what would harm a terminal or a page.
func unshowable(r rune) bool { return r == 0 || r == 0x1b || r == utf8.RuneError }

// TestJSON: no text of JSON reaches a terminal as a control, and it means the same.
func TestJSON(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"a": "ü"}` + "\n": `{"a": "ü"}` + "\n", "\"\u009b31m\"": `"\u009b31m"`, "\"\x7f\"": `"\u007f"`, "\"\u202egnp.exe\"": `"\u202egnp.exe"`,
		"\"\u2066\u061c\u200e\"": `"\u2066\u061c\u200e"`, "\"\u2028\"": `"\u2028"`, "\"\x9b\"": "\"\ufffd\"", "\"\ufffd\"": "\"\ufffd\"",
	} {
		if got := string(textview.JSON([]byte(in))); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

// TestIndent: JSON is indented, unless that multiplies its size.
func TestIndent(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"a":[1,{"b":"x,[\""}]}`: "{\n  \"a\": [\n    1,\n    {\n      \"b\": \"x,[\\\"\"\n    }\n  ]\n}",
		`[`:                       `[`,
		``:                        ``,
		`"[[["`:                   `"[[["`,
	} {
		if got := string(textview.Indent([]byte(text))); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
	for _, depth := range []int{10, 100, 9_999} {
		for _, leaf := range []string{"", "1", "1,2,3", `{"a":1}`} {
			text := []byte(strings.Repeat("[", depth) + leaf + strings.Repeat("]", depth))
			if got := len(textview.Indent(text)); got > 12*len(text) {
				t.Errorf("%d levels, %d bytes: %d with indents", depth, len(text), got)
			}
		}
	}
}

// TestHTML: no text of a page changes the order in which other text is shown. What a form sends back stays.
func TestHTML(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"<p>a\tb\r\n</p>": "<p>a\tb\r\n</p>",
		"a\u202eb<p title=\"\u202e\">\x1b[2J\u2028</p>\u009b": "a\ufffdb<p title=\"\u202e\">\ufffd[2J\ufffd</p>\ufffd",
		"<textarea name=\"x\">\n\u202e</textarea>\u202e<b":    "<textarea name=\"x\">\n\u202e</textarea>\ufffd<b",
		"\u202e": "\ufffd",
	} {
		if got := string(textview.HTML([]byte(in))); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}
