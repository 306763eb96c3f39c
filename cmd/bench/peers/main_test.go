package main

import (
	"encoding/json"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/bench"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// small runs the bench with tiny numbers, and returns the result and the table.
func small(t *testing.T, args ...string) (r bench.Result, printed string) {
	t.Helper()
	var out, table strings.Builder
	args = append([]string{
		"--events", "500", "--latency-events", "20", "--rate", "100", "--patience", "100ms", "--write-for", "100ms", "--writers", "4",
		"--json", "--database-url", testenv.Database(t),
	}, args...)
	if code := run(t.Context(), args, &out, &table); code != 0 {
		t.Fatalf("exit code %d\n%s", code, table.String())
	}
	if err := json.Unmarshal([]byte(out.String()), &r); err != nil {
		t.Fatalf("%v:\n%s", err, out.String())
	}
	if r.Faults.Duplicates != 0 {
		t.Errorf("faults %v", r.Faults)
	}
	return r, table.String()
}

// checkCounts checks how many variants of a system have each group of figures.
func checkCounts(t *testing.T, r bench.Result, system string, drained, timed, wrote int) {
	t.Helper()
	got := make(map[string]int)
	for _, c := range r.Columns {
		if !strings.HasPrefix(c.Name, system+", ") {
			continue
		}
		for name, value := range c.Figures {
			if value > 0 {
				got[name]++
			}
		}
	}
	for name, want := range map[string]int{"drain, s": drained, drainRate: drained, "behind, p99": timed, "alone, writes/s": wrote, "beside, writes/s": wrote} {
		if got[name] != want {
			t.Errorf("%s: %d have %q, want %d", system, got[name], name, want)
		}
	}
}

// TestRun has the systems that are written in Go.
func TestRun(t *testing.T) {
	t.Parallel()
	r, printed := small(t, "--only", "queue,stream,river,watermill", "--rounds", "2")
	checkCounts(t, r, "notifyd queue", 1, 1, 1)
	checkCounts(t, r, "notifyd stream", 1, 1, 1)
	checkCounts(t, r, "River", 8, 4, 2)
	checkCounts(t, r, "Watermill", 6, 6, 3)
	for i, of := range []string{"queue / it", "stream / it"} {
		if ratio := r.Columns[i].Figures[of]; ratio != 1 {
			t.Errorf("%s: %s is %v", r.Columns[i].Name, of, ratio)
		}
	}
	for _, c := range r.Columns {
		// Watermill reads up to the oldest transaction that is open anywhere on the server, however long that is.
		held, isMeasured := c.Figures["held"]
		if isMeasured && strings.HasPrefix(c.Name, "Watermill, default schema") && held != 40 {
			t.Errorf("%s: held %v events of 40", c.Name, held)
		}
	}
	if !strings.Contains(printed, "Watermill, default schema, batch 100,") || !strings.Contains(printed, "\nriver v0.") {
		t.Errorf("printed:\n%s", printed)
	}
}

// TestRunNode has those on Node.js, which npm fetches the first time.
func TestRunNode(t *testing.T) {
	t.Parallel()
	r, printed := small(t, "--only", "graphile-worker,pg-boss", "--rounds", "1")
	if strings.Contains(printed, "left out: ") {
		if os.Getenv("NOTIFYD_TEST_REQUIRE") == "all" {
			t.Fatal(printed)
		}
		t.Skip(printed)
	}
	checkCounts(t, r, "graphile-worker", 5, 3, 1)
	checkCounts(t, r, "pg-boss", 5, 5, 2)
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
	if code := run(t.Context(), args, &out, io.Discard); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	for _, want := range []string{"left out: graphile-worker: ", "left out: pg-boss: ", "install npm"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed without %q:\n%s", want, out.String())
		}
	}
	var failed strings.Builder
	if code := run(t.Context(), append(args, "--require"), io.Discard, &failed); code != bench.ExitFailure || !strings.Contains(failed.String(), errNoNode.Error()) {
		t.Errorf("--require: exit code %d, %s", code, failed.String())
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--rounds", "0"}, {"--events", "-1"}, {"--write-for", "-1s"}, {"--only", "kafka"}, {"more"}} {
		if code := run(t.Context(), args, io.Discard, io.Discard); code != bench.ExitUsage {
			t.Errorf("%q: exit code %d", args, code)
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
