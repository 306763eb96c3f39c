package delivery_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
)

// TestRateText: what a rate is written as is what it is read as.
func TestRateText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]delivery.Rate{
		"": {}, "100/s": {Events: 100, Per: time.Second}, "500/m": {Events: 500, Per: time.Minute}, "7/10m": {Events: 7, Per: 10 * time.Minute},
		"10000/h": {Events: 10_000, Per: time.Hour}, "50000/d": {Events: 50_000, Per: 24 * time.Hour}, "1/250ms": {Events: 1, Per: 250 * time.Millisecond},
	} {
		var r delivery.Rate
		if err := r.UnmarshalText([]byte(text)); err != nil || r != want {
			t.Errorf("%q: %+v, %v", text, r, err)
		}
		if back, err := r.MarshalText(); err != nil || string(back) != text {
			t.Errorf("%+v: %q, %v", r, back, err)
		}
	}
	for _, text := range []string{"5", "5/", "/s", "5/w", "0/s", "-1/s", "5/0s", "5 /s", "5/s ", "2000000/s", "1/400d", "1.5/s", "5/S"} {
		var r delivery.Rate
		if err := r.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken for %+v", text, r)
		}
	}
	if _, err := (delivery.Rate{Events: 1, Per: time.Millisecond + 1}).MarshalText(); err == nil {
		t.Error("a part of a millisecond has a text")
	}
	rapid.Check(t, func(t *rapid.T) {
		units := []time.Duration{time.Millisecond, time.Second, time.Minute, time.Hour, 24 * time.Hour}
		r := delivery.Rate{Events: rapid.IntRange(1, 1000).Draw(t, "events"), Per: time.Duration(rapid.IntRange(1, 300).Draw(t, "times")) * rapid.SampledFrom(units).Draw(t, "unit")}
		text, err := r.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var back delivery.Rate
		if err := back.UnmarshalText(text); err != nil || back != r {
			t.Fatalf("%+v is %q, which is %+v, %v", r, text, back, err)
		}
	})
}
