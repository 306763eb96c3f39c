package main

import (
	"encoding/json"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/bench"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// typed is the beginning of each command line on the pages.
const typed = "go run ./cmd/bench "

// benches returns the command lines of a page's blocks, without comments.
func benches(t *testing.T, page string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?ms)^```\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			line, _, _ = strings.Cut(line, " #")
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// TestPerformancePage runs every bench of docs/performance.md and docs/retention.md,
// with flags for small numbers appended.
func TestPerformancePage(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	ran := make(map[string]bool)
	for _, page := range []string{"performance.md", "retention.md"} {
		for _, line := range benches(t, page) {
			args, isBench := strings.CutPrefix(line, typed)
			if !isBench {
				if page == "performance.md" && line != "make bench-peers" { // the others of the other page are TestRetentionPage's
					t.Errorf("%s is no bench", line)
				}
				continue
			}
			if ran[args] {
				continue
			}
			ran[args] = true
			t.Run(args, func(t *testing.T) {
				t.Parallel()
				checkRun(t, append(strings.Fields(args), small(t, args)...))
			})
		}
	}
	if len(ran) < 14 {
		t.Errorf("%d benches", len(ran))
	}
}

// checkRun runs a bench, and checks that it prints a table and the same as JSON, and that it measured something.
func checkRun(t *testing.T, args []string) {
	t.Helper()
	got := command(t, append(args, "--json")...)
	var r bench.Result
	err := json.Unmarshal([]byte(got.stdout), &r)
	if err != nil || got.code != 0 || strings.Count(got.stdout, "\n") != 1 || !strings.HasPrefix(got.stderr, "PostgreSQL ") {
		t.Fatalf("exit code %d, %v: %s%s", got.code, err, got.stdout, got.stderr)
	}
	if r.Faults != nil && args[0] != "takeover" && r.Faults.Duplicates > 0 {
		t.Errorf("faults %v", r.Faults)
	}
	if len(r.Columns) == 0 {
		t.Error("no scenario was measured")
	}
	for _, c := range r.Columns {
		measured := false
		for name, value := range c.Figures {
			if math.IsNaN(value) || math.IsInf(value, 0) || !strings.Contains(got.stderr, name) {
				t.Errorf("%s: %s is %v", c.Name, name, value)
			}
			measured = measured || value > 0
		}
		if !measured || !strings.Contains(got.stderr, c.Name) {
			t.Errorf("%s: %v", c.Name, c.Figures)
		}
	}
}

// small returns flags that shorten a bench of a page and point it at the servers of the tests. Of two equal flags the last
// one holds.
func small(t *testing.T, args string) (more []string) {
	t.Helper()
	more = []string{"--database-url", testenv.Database(t)}
	switch strings.Fields(args)[0] {
	case "latency", "drain":
		more = append(more, "--events", "300")
	case "shards":
		more = append(more, "--events", "100", "--handler-time", "1ms", "--relays", "1,2")
	case "insert":
		more = append(more, "--seconds", "1", "--writers", "2")
	case "capture":
		more = append(more, "--seconds", "1", "--rows", "100")
	case "takeover":
		more = append(more, "--seconds", "2", "--rate", "100")
	case "replay":
		more = append(more, "--letters", "300", "--seconds", "1")
		if strings.Contains(args, "--history") {
			more = append(more, "--history", "300")
		}
	case "variants":
		more = append(more, "--only", "stream", "--events", "300", "--seconds", "1", "--open-seconds", "1", "--brokers", strings.Join(testenv.Kafka(t), ","))
	case "soak":
		more = append(more, "--seconds", "1", "--rate", "200")
	}
	for _, less := range [][]string{
		{"--blocked-keys", "50"}, {"--keys", "100"}, {"--partitions", "3"}, {"--destinations", "2"}, {"--shards", "2"},
	} {
		if strings.Contains(args, less[0]+" ") {
			more = append(more, less...)
		}
	}
	switch {
	case strings.Contains(args, "--to kafka"):
		more = append(more, "--brokers", strings.Join(testenv.Kafka(t), ","))
	case strings.Contains(args, "--to rabbitmq"):
		more = append(more, "--amqp-url", testenv.RabbitMQ(t).URL)
	}
	return more
}
