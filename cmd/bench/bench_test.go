//go:build testall

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/bench"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func TestBenchForPeople(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cpu, mem := filepath.Join(dir, "cpu"), filepath.Join(dir, "mem")
	got := command(t, "drain", "--events", "100", "--database-url", testenv.Database(t), "--cpuprofile", cpu, "--memprofile", mem)
	if got.code != 0 || !strings.Contains(got.stdout, "events per second") || !strings.Contains(got.stdout, "settings: ") {
		t.Errorf("got %+v", got)
	}
	for _, path := range []string{cpu, mem} {
		if info, err := os.Stat(path); err != nil || info.Size() == 0 {
			t.Errorf("profile %s: %v", path, err)
		}
	}
}

// TestBenchPrivate: without --database-url the bench starts a private server.
func TestBenchPrivate(t *testing.T) {
	t.Parallel()
	testenv.Postgres(t) // skips where PostgreSQL is missing
	got := command(t, "drain", "--events", "100")
	if got.code != 0 || !strings.Contains(got.stdout, "private, durable") {
		t.Errorf("got %+v", got)
	}
}

func TestBenchUsage(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"lat":                             "unknown command \"lat\" for \"bench\"",
		"latency more":                    "unknown command \"more\" for \"bench latency\"",
		"latency --rate 0":                "--rate 0 is below 1",
		"drain --keys -1":                 "--keys -1 is below 0",
		"drain --to nowhere":              "must be one of kafka, noop, rabbitmq",
		"drain --mode log":                "must be one of both, queue, stream",
		"drain --mode stream --delete":    "--delete needs --mode queue",
		"drain --total":                   "--total needs --mode stream, and goes without --blocked-keys",
		"drain --consume":                 "--consume needs --to rabbitmq",
		"drain --exactly-once --to kafka": "--exactly-once needs --mode stream --to kafka",
		"drain --urgent 2 --to kafka":     "--blocked-keys, --urgent, --partitions, --destinations and --shards need --to noop",
		"drain --urgent 2 --shards 2":     "--blocked-keys, --urgent, --partitions, --destinations and --shards go without each other",
		"drain --shards 2":                "--shards needs --mode stream, and goes without --total",
		"drain --mode stream --shards 65": "--shards 65 is not from 1 to 64",
		"drain --blocked-keys 1":          "--blocked-keys needs --mode stream: a queue holds nothing back",
		"shards --handler-time -1ms":      "--handler-time -1ms is below 0",
		"shards --relays 2,4":             "--relays [2 4] does not begin with 1, which the others are compared with",
		"variants --only lease,cdc":       "--only has \"cdc\", which is none of long-tx, advisory, lease, partitions, serialised, queue, stream",
		"variants --parts drain,crash":    "--parts has \"crash\", which is none of drain, writers, open, order",
		"insert --total":                  "--total needs --mode stream",
		"soak --blocked-keys 10":          "unknown flag: --blocked-keys",
	} {
		got := command(t, strings.Fields(args)...)
		if got.code != bench.ExitUsage || got.stdout != "" || !strings.Contains(got.stderr, want) || !strings.Contains(got.stderr, "\nsee bench") {
			t.Errorf("%s: got %+v, want %q", args, got, want)
		}
	}
	if got := command(t, "relay"); got.code != bench.ExitFailure || !strings.Contains(got.stderr, "not by hand") {
		t.Errorf("relay by hand: %+v", got)
	}
}
