//go:build testall

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/bench"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestBenchJSON: the result is one line with a column for each scenario, and each has the figure that is compared.
func TestBenchJSON(t *testing.T) {
	t.Parallel()
	kafka := "--brokers " + strings.Join(testenv.Kafka(t), ",") + " "
	for args, want := range map[string]struct{ columns, figure string }{
		"latency --events 20 --rate 100 --mode stream --foreign-transaction": {"stream|stream, disturbed|floor", "commit returned -> handler, p99, ms"},
		"drain --events 100 --mode both --held-snapshot":                     {"queue|SQL alone|stream|read alone", "WAL, bytes/event"},
		"drain --events 100 --to kafka " + kafka:                             {"relay|SQL alone", "events per second"},
		"insert --writers 2 --seconds 1 --mode stream":                       {"stream, none: no trigger|stream, auto: a relay at work|stream, silent: the trigger alone|stream, alone: no relay|stream, frozen: a frozen relay|stream, always: NOTIFY every time", "/ none"},
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			got := command(t, append(strings.Fields(args), "--json", "--database-url", testenv.Database(t))...)
			if got.code != 0 || !strings.HasPrefix(got.stderr, "PostgreSQL ") {
				t.Fatalf("exit code %d, %s", got.code, got.stderr)
			}
			var r bench.Result
			if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || strings.Count(got.stdout, "\n") != 1 {
				t.Fatalf("standard output %q: %v", got.stdout, err)
			}
			var columns []string
			for _, c := range r.Columns {
				columns = append(columns, c.Name)
				if _, ok := c.Figures[want.figure]; !ok {
					t.Errorf("%s lacks %q: %v", c.Name, want.figure, c.Figures)
				}
			}
			if have := strings.Join(columns, "|"); have != want.columns {
				t.Errorf("columns %q, want %q", have, want.columns)
			}
		})
	}
}

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
		"lat":                               "unknown command \"lat\" for \"bench\"",
		"latency more":                      "unknown command \"more\" for \"bench latency\"",
		"latency --log-level loud":          "must be one of debug, info, warn, error",
		"latency --rate 0":                  "--rate 0 is below 1",
		"drain --workers -1":                "--workers -1 is below 1",
		"drain --keys -1":                   "--keys -1 is below 0",
		"drain --to nowhere":                "must be one of kafka, noop, rabbitmq",
		"drain --mode log":                  "must be one of both, queue, stream",
		"drain --mode stream --delete":      "--delete needs --mode queue",
		"drain --total":                     "--total needs --mode stream, and goes without --blocked-keys",
		"drain --consume":                   "--consume needs --to rabbitmq",
		"drain --exactly-once --to kafka":   "--exactly-once needs --mode stream --to kafka",
		"drain --destinations 2 --to kafka": "--urgent, --partitions, --destinations and --shards need --to noop",
		"drain --destinations 2 --urgent 1": "--blocked-keys, --urgent, --partitions, --destinations and --shards go without each other",
		"drain --mode stream --foreign-transaction=here --blocked-keys 1": "--foreign-transaction=here goes without --blocked-keys",
		"drain --shards 2":                                                  "--shards needs --mode stream, and goes without --total",
		"drain --mode stream --shards 65":                                   "--shards 65 is not from 1 to 64",
		"drain --mode stream --blocked-keys 1 --to kafka":                   "--blocked-keys needs --to noop, not kafka",
		"drain --blocked-keys 1":                                            "--blocked-keys needs --mode stream: a queue holds nothing back",
		"drain --blocked-fresh 1":                                           "--blocked-fresh needs --blocked-keys",
		"drain --mode stream --events 1 --blocked-keys 1 --blocked-fresh 2": "--blocked-fresh 2 is above --events 1",
		"takeover --rate 0":                                                 "--rate 0 is below 1",
		"shards --events 0":                                                 "--events 0 is below 1",
		"shards --handler-time -1ms":                                        "--handler-time -1ms is below 0",
		"shards --relays 2,4":                                               "--relays [2 4] does not begin with 1, which the others are compared with",
		"shards --relays 1,65":                                              "--relays 65 is not from 1 to 64",
		"replay --letters 0":                                                "--letters 0 is below 1",
		"variants --batch 0":                                                "--batch 0 is below 1",
		"variants --only lease,cdc":                                         "--only has \"cdc\", which is none of long-tx, advisory, lease, partitions, serialised, queue, stream",
		"variants --parts drain,crash":                                      "--parts has \"crash\", which is none of drain, writers, open, order",
		"capture --rows 0":                                                  "--rows 0 is below 1",
		"insert --writers 0":                                                "--writers 0 is below 1",
		"insert --total":                                                    "--total needs --mode stream",
		"soak --seconds 0":                                                  "--seconds 0 is below 1",
		"soak --blocked-keys 10":                                            "unknown flag: --blocked-keys",
	} {
		got := command(t, strings.Fields(args)...)
		if got.code != exitUsage || got.stdout != "" || !strings.Contains(got.stderr, want) || !strings.Contains(got.stderr, "\nsee bench") {
			t.Errorf("%s: got %+v, want %q", args, got, want)
		}
	}
	if got := command(t, "relay"); got.code != exitFailure || !strings.Contains(got.stderr, "not by hand") {
		t.Errorf("relay by hand: %+v", got)
	}
}

// TestBenchHelp: every bench has examples, in lines that begin with the command.
func TestBenchHelp(t *testing.T) {
	t.Parallel()
	root := newRootCmd(&program{})
	for _, cmd := range append(root.Commands(), root) {
		for line := range strings.Lines(cmd.Example) {
			if !strings.HasPrefix(line, "  "+cmd.CommandPath()+" ") && strings.TrimSpace(line) != cmd.CommandPath() {
				t.Errorf("%s has the example %q", cmd.CommandPath(), line)
			}
		}
		if cmd.Example == "" && !cmd.Hidden {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
	}
	if got := command(t); got.code != 0 || !strings.Contains(got.stdout, "\n  takeover ") || strings.Contains(got.stdout, "\n  relay ") {
		t.Errorf("got %+v", got)
	}
}
