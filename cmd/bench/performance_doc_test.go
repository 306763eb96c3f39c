package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

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
				more, says := small(t, args)
				got := command(t, append(strings.Fields(args), more...)...)
				if got.code != 0 || !strings.Contains(got.stdout, says) {
					t.Errorf("%+v\nlacks %q", got, says)
				}
			})
		}
	}
	if len(ran) < 14 {
		t.Errorf("%d benches", len(ran))
	}
}

// small returns flags that shorten a bench of a page and point it at the servers of the
// tests, and a part of its output. Of two equal flags the last one holds.
func small(t *testing.T, args string) (more []string, says string) {
	t.Helper()
	more, says = []string{"--database-url", testenv.Database(t)}, "lost=0 duplicates=0"
	switch strings.Fields(args)[0] {
	case "latency", "drain":
		more = append(more, "--events", "300")
	case "shards":
		more = append(more, "--events", "100", "--handler-time", "1ms", "--relays", "1,2")
	case "insert":
		more, says = append(more, "--seconds", "1", "--writers", "2"), "silent: the trigger alone"
	case "capture":
		more, says = append(more, "--seconds", "1", "--rows", "100"), "capture: notifyd capture add"
	case "takeover":
		more, says = append(more, "--seconds", "2", "--rate", "100"), "lost=0 duplicates="
	case "replay":
		more, says = append(more, "--letters", "300", "--seconds", "1"), "lost=0 duplicates=0 out_of_order=0"
		if strings.Contains(args, "--history") {
			more = append(more, "--history", "300")
		}
	case "variants":
		more, says = append(more, "--only", "stream", "--events", "300", "--seconds", "1", "--open-seconds", "1", "--brokers", strings.Join(testenv.Kafka(t), ",")), "WAL, MiB"
	case "soak":
		more = append(more, "--seconds", "1", "--rate", "200")
	}
	for _, less := range [][]string{
		{"--blocked-keys", "50"}, {"--blocked-fresh", "100"}, {"--keys", "100"}, {"--partitions", "3"}, {"--destinations", "2"}, {"--shards", "2"},
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
	return more, says
}
