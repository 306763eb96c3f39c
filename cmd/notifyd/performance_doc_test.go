//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/testenv"
)

// TestPerformancePage runs every bench of docs/performance.md and docs/retention.md as
// it stands there, with small numbers behind.
func TestPerformancePage(t *testing.T) {
	t.Parallel()
	less := []struct{ flag, value string }{ // the last one of two holds
		{"--blocked-keys", "50"},
		{"--blocked-fresh", "100"},
		{"--keys", "100"},
		{"--partitions", "3"},
		{"--destinations", "2"},
	}
	ran := make(map[string]bool)
	for _, page := range []string{"docs/performance.md", "docs/retention.md"} {
		for _, st := range steps(read(t, root+page)) {
			line := st.line()
			if st.language != "sh" || named()[line] != "" || ran[line] {
				continue
			}
			if !strings.HasPrefix(line, "notifyd bench ") {
				if page == "docs/performance.md" { // the others of the other page are TestRetentionPage's
					t.Errorf("%s is no bench", line)
				}
				continue
			}
			ran[line] = true
			t.Run(line, func(t *testing.T) {
				t.Parallel()
				more := ` --database-url "$DATABASE_URL"`
				says := `lost=0 duplicates=0`
				switch strings.Fields(line)[2] {
				case "latency", "drain":
					more += " --events 300"
				case "insert":
					more += " --seconds 1 --writers 2"
					says = `silent: the trigger alone`
				case "takeover":
					more += " --seconds 2 --rate 100"
					says = "lost=0 repeats="
				case "soak":
					more += " --seconds 1 --rate 200"
				}
				for _, l := range less {
					if strings.Contains(line, l.flag+" ") {
						more += " " + l.flag + " " + l.value
					}
				}
				switch {
				case strings.Contains(line, "--to kafka"):
					more += " --brokers " + strings.Join(testenv.Kafka(t), ",")
				case strings.Contains(line, "--to rabbitmq"):
					more += " --amqp-url " + testenv.RabbitMQ(t).URL
				}
				newStage(t, testenv.Database(t)).command(st, act{as: "%s" + more, says: says})
			})
		}
	}
	if len(ran) < 14 {
		t.Errorf("%d benches", len(ran))
	}
}
