package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestRun is a smoke test: it says nothing about speed.
func TestRun(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	args := []string{"--events", "500", "--latency-events", "20", "--rate", "100", "--rounds", "2", "--json", "--database-url", testenv.Database(t)}
	if err := run(t.Context(), args, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var r result
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		t.Fatalf("the last line is no JSON, %v:\n%s", err, out.String())
	}
	if len(r.Drain) != 9 || len(r.Latency) != 5 {
		t.Fatalf("%d drains and %d latencies, want 9 and 5:\n%s", len(r.Drain), len(r.Latency), out.String())
	}
	for i, d := range r.Drain {
		want := 2
		if i == 0 {
			want = 8 // notifyd runs between the others
		}
		if len(d.EachPerSecond) != want || d.PerSecond <= 0 || d.Ratio <= 0 || d.Repeats != 0 {
			t.Errorf("drain = %+v", d)
		}
	}
	for i, l := range r.Latency {
		want := 2
		if i == 0 {
			want = 4
		}
		if len(l.Each) != want || l.Median.Max <= 0 || l.Median.WriteP50 <= 0 {
			t.Errorf("latency = %+v", l)
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--rounds", "0"}, {"--rate", "0"}, {"--events", "-1"}, {"more"}, {"--nonsense"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parse(%q) = nil, want an error", args)
		}
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		of   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{5, 1, 3}, 3}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := median(c.of); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.of, got, c.want)
		}
	}
}
