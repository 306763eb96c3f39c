package command

import (
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"90m": 90 * time.Minute, "7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour, "0s": -1, "x": -1, "5": -1, "-1s": -1} {
		var d Duration
		if err := d.Set(text); (err != nil) != (want < 0) || err == nil && time.Duration(d) != want {
			t.Errorf("%s: %v, %v", text, time.Duration(d), err)
		}
	}
}

// TestBound: a point in time is an age, a time of RFC 3339, or a time as commands print it.
func TestBound(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 1, 9, 30, 0, 0, time.UTC)
	now := at.Add(time.Hour)
	for text, want := range map[string]struct {
		age   time.Duration
		at    time.Time
		place string
	}{
		"2h":                        {age: 2 * time.Hour, place: "2026-11-01T08:30:00Z"},
		"7d":                        {age: 7 * 24 * time.Hour, place: "2026-10-25T10:30:00Z"},
		"2026-11-01T09:30:00Z":      {at: at, place: "2026-11-01T09:30:00Z"},
		"2026-11-01T10:30:00+01:00": {at: at, place: "2026-11-01T10:30:00+01:00"},
		"2026-11-01 09:30:00Z":      {at: at, place: "2026-11-01T09:30:00Z"},
	} {
		var b Bound
		if err := b.Set(text); err != nil || b.IsZero() || b.Age != want.age || !b.At.Equal(want.at) || b.String() != text {
			t.Errorf("%s: %+v, %v", text, b, err)
		}
		if got := Place(text, now); got != want.place {
			t.Errorf("the place of %s is %s, want %s", text, got, want.place)
		}
	}
	for _, text := range []string{"", "yesterday", "42", "0s", "-1h", "2026-11-01", "2026-11-01 09:30:00"} {
		var b Bound
		if err := b.Set(text); err == nil || !b.IsZero() {
			t.Errorf("%q: %+v", text, b)
		}
	}
	for _, text := range []string{"beginning", "now", "42", "yesterday"} {
		if got := Place(text, now); got != text {
			t.Errorf("the place of %s is %s", text, got)
		}
	}
}
