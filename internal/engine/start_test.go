package engine

import "testing"

func TestParseStart(t *testing.T) {
	t.Parallel()
	for text, kind := range map[string]StartKind{
		"": StartDefault, "auto": StartDefault, "beginning": StartAtBeginning, "now": StartNow, "1": StartAtID, "9223372036854775807": StartAtID,
		"2026-11-01T00:00:00Z": StartAtTime, "2026-11-01T00:00:00.25+02:00": StartAtTime,
	} {
		s, err := ParseStart(text)
		if err != nil || s.Kind != kind {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
		if again, err := ParseStart(s.String()); text != "" && (err != nil || again != s) {
			t.Errorf("%q is written as %q", text, s)
		}
	}
	for _, text := range []string{"0", "-1", "Beginning", "yesterday", "2026-11-01", "9223372036854775808", "1.5", "default"} {
		if s, err := ParseStart(text); err == nil {
			t.Errorf("%q is %+v", text, s)
		}
	}
}
