package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// small runs the bench with tiny numbers: it says nothing about speed.
func small(t *testing.T, args ...string) (r result, printed string) {
	t.Helper()
	var out strings.Builder
	args = append([]string{
		"--events", "500", "--latency-events", "20", "--rate", "100", "--patience", "100ms", "--write-for", "100ms", "--writers", "4",
		"--json", "--database-url", testenv.Database(t),
	}, args...)
	if err := run(t.Context(), args, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		t.Fatalf("the last line is no JSON, %v:\n%s", err, out.String())
	}
	return r, out.String()
}

// counts says how many settings of a system were measured, and checks what any of them has to show.
func counts(t *testing.T, r result, system string, rounds int) (drained, timed, wrote int) {
	t.Helper()
	for _, s := range r.Systems {
		if s.System != system {
			continue
		}
		if d := s.Drain; d != nil {
			drained++
			if len(d.EachPerSecond) != rounds || d.PerSecond <= 0 || d.Seconds <= 0 || d.Repeats != 0 {
				t.Errorf("%s (%s): drain = %+v", s.System, s.Settings, *d)
			}
		}
		if s.Latency != nil {
			timed++
			if len(s.Latency.Each) != rounds || s.Latency.Median.Max <= 0 || s.Latency.Median.WriteP50 <= 0 || s.Latency.Median.Held != 0 || s.Behind.Median.Max <= 0 {
				t.Errorf("%s (%s): latency = %+v, behind = %+v", s.System, s.Settings, *s.Latency, *s.Behind)
			}
		}
		if w := s.Writers; w != nil {
			wrote++
			if len(w.EachAlone) != rounds || w.Alone <= 0 || w.Beside <= 0 {
				t.Errorf("%s (%s): writers = %+v", s.System, s.Settings, *w)
			}
		}
	}
	return drained, timed, wrote
}

// TestRun has the systems that are written in Go.
func TestRun(t *testing.T) {
	t.Parallel()
	r, printed := small(t, "--only", "queue,stream,river,watermill", "--rounds", "2")
	for _, want := range []struct {
		system                          string
		rounds, drained, timed, written int
	}{{"River", 2, 8, 4, 2}, {"Watermill", 2, 6, 6, 3}} {
		drained, timed, wrote := counts(t, r, want.system, want.rounds)
		if drained != want.drained || timed != want.timed || wrote != want.written {
			t.Errorf("%s: %d drains, %d latencies, %d rates; want %+v", want.system, drained, timed, wrote, want)
		}
	}
	for i, system := range []string{"notifyd queue", "notifyd stream"} {
		s := r.Systems[i]
		// notifyd runs between the others.
		if s.System != system || len(s.Drain.EachPerSecond) != 8 || s.Drain.Repeats != 0 || len(s.Drain.Ratios) != 2 || s.Drain.Ratios[i] != 1 {
			t.Errorf("drain of %s = %+v", s.System, s.Drain)
		}
	}
	for _, s := range r.Systems {
		// Watermill reads up to the oldest transaction that is open anywhere on the server, however long that is.
		waits := s.System == "Watermill" && strings.Contains(s.Settings, "default schema")
		if waits && s.Behind != nil && s.Behind.Median.Held != 40 {
			t.Errorf("behind foreign transactions, %s (%s) held %d events of 40", s.System, s.Settings, s.Behind.Median.Held)
		}
	}
	if !strings.Contains(printed, "SYSTEM") || !strings.Contains(printed, "default schema, batch 100,") || !strings.Contains(printed, " held") {
		t.Errorf("printed:\n%s", printed)
	}
}

// TestRunNode has those on Node.js, which npm fetches the first time.
func TestRunNode(t *testing.T) {
	t.Parallel()
	r, _ := small(t, "--only", "graphile-worker,pg-boss", "--rounds", "1")
	if len(r.LeftOut) > 0 {
		if os.Getenv("NOTIFYD_TEST_REQUIRE") == "all" {
			t.Fatal(strings.Join(r.LeftOut, "; "))
		}
		t.Skip(strings.Join(r.LeftOut, "; "))
	}
	for _, want := range []struct {
		system                  string
		drained, timed, written int
	}{{"graphile-worker", 5, 3, 1}, {"pg-boss", 5, 5, 2}} {
		if drained, timed, wrote := counts(t, r, want.system, 1); drained != want.drained || timed != want.timed || wrote != want.written {
			t.Errorf("%s: %d drains, %d latencies, %d rates; want %+v", want.system, drained, timed, wrote, want)
		}
	}
}

// TestLeftOut is on a machine without npm, in a checkout that has fetched nothing yet.
func TestLeftOut(t *testing.T) {
	database := testenv.Database(t)
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "cmd", "bench", "peers"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cmd", "bench", "peers", "go.mod"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	t.Setenv("PATH", dir)
	var out strings.Builder
	args := []string{"--only", "graphile-worker,pg-boss", "--database-url", database}
	if err := run(t.Context(), args, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"left out: graphile-worker: ", "left out: pg-boss: ", "install npm"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed without %q:\n%s", want, out.String())
		}
	}
	if err := run(t.Context(), append(args, "--require"), io.Discard, io.Discard); !errors.Is(err, errNoNode) {
		t.Errorf("--require: %v, want %v", err, errNoNode)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--rounds", "0"}, {"--rate", "0"}, {"--events", "-1"}, {"--writers", "0"}, {"--write-for", "-1s"}, {"--only", "kafka"}, {"more"}, {"--nonsense"},
	} {
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

func TestOrder(t *testing.T) {
	t.Parallel()
	ours, others := []int{0, 1}, []int{2, 3, 4, 5, 6}
	if got, want := order(0, ours, others), []int{0, 1, 2, 3, 4, 5, 0, 1, 6}; !slices.Equal(got, want) {
		t.Errorf("first round: %v, want %v", got, want)
	}
	if got, want := order(1, ours, others), []int{1, 0, 6, 5, 4, 3, 1, 0, 2}; !slices.Equal(got, want) {
		t.Errorf("second round: %v, want %v", got, want)
	}
}

func TestNewEnough(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"v22.18.0": true, "v24.0.0": true, "v22.17.9": false, "v20.20.2": false, "": false, "v24": false, "nothing": false} {
		if got := newEnough(version); got != want {
			t.Errorf("newEnough(%q) = %v", version, got)
		}
	}
}

func TestWithOption(t *testing.T) {
	t.Parallel()
	for _, database := range []string{"postgres://me:a+b@host:1/db", "postgres://me@host/db?sslmode=disable&options=-c%20work_mem%3D1MB"} {
		got, err := withOption(database, "-c synchronous_commit=off")
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(got)
		if err != nil {
			t.Fatal(err)
		}
		// node-postgres takes a plus sign literally.
		if !strings.HasSuffix(u.Query().Get("options"), "-c synchronous_commit=off") || strings.Contains(u.RawQuery, "+") {
			t.Errorf("withOption(%q) = %q", database, got)
		}
	}
}

// TestBossStatement puts jobs where pg-boss has its own.
func TestBossStatement(t *testing.T) {
	t.Parallel()
	s := bossStatement{Values: []string{`[{"id":null,"data":` + bossMarker + `,"priority":0}]`}}
	if err := s.cut(); err != nil {
		t.Fatal(err)
	}
	var jobs []struct {
		Data     event `json:"data"`
		Priority int   `json:"priority"`
	}
	if err := json.Unmarshal([]byte(s.parameter(3, 5)), &jobs); err != nil {
		t.Fatal(err)
	}
	if len(jobs) != 2 || jobs[0].Data != newEvent(3) || jobs[1].Data != newEvent(4) {
		t.Errorf("jobs = %+v", jobs)
	}
	for _, values := range [][]string{nil, {"[]"}, {bossMarker}} {
		other := bossStatement{Values: values}
		if err := other.cut(); err == nil {
			t.Errorf("cut(%q) = nil, want an error", values)
		}
	}
}
