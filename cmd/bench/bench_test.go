//go:build testall

package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/testenv"
)

// TestBenchJSON pins the keys that programs read.
func TestBenchJSON(t *testing.T) {
	t.Parallel()
	const drainKeys = "events_per_second, sql_per_second, ratio, start_seconds, flowing_per_second, lost, duplicates, wal_bytes_per_event, peak_rss_mib, dead_rows, relay_cpu_s_per_million"
	const latencyKeys = "p50_ms, p90_ms, p99_ms, max_ms, floor_p50_ms, floor_p99_ms, lost"
	const insertKeys = "none, auto, silent, alone, frozen, always, auto_ratio, trigger_ratio, alone_ratio, frozen_ratio, slow_none, slow_listens, listen_ratio"
	for args, keys := range map[string]string{
		"latency --events 20 --rate 100":                                                           latencyKeys,
		"latency --events 20 --rate 100 --mode stream --foreign-transaction":                       latencyKeys + ", disturbed_p50_ms, disturbed_p99_ms, disturbed_p50_ratio, disturbed_p99_ratio",
		"drain --events 100":                                                                       drainKeys,
		"drain --events 100 --mode both":                                                           drainKeys + ", stream, stream_ratio",
		"drain --events 100 --mode stream --destinations 2":                                        drainKeys + ", fanned_deliveries_per_second, fanned_cpu_ratio",
		"drain --events 100 --mode stream --foreign-transaction=here":                              drainKeys,
		"takeover --rate 50 --seconds 1 --mode both":                                               "events, resumed_ms, repeats, lost, stream",
		"insert --writers 2 --seconds 1 --mode stream":                                             insertKeys,
		"drain --events 100 --delete --batch 10 --workers 1 --to noop --held-snapshot --payload 9": drainKeys,
		"drain --mode stream --events 100 --keys 5 --blocked-keys 3 --blocked-fresh 2":             drainKeys + ", out_of_order, blocked_events_per_second, blocked_ratio, blocked_start_seconds, blocked_flowing_per_second, blocked_flowing_ratio, blocked_peak_rss_mib",
		"drain --events 100 --urgent 5":                                                            drainKeys + ", urgent_events_per_second, urgent_ratio, urgent_behind_alike, urgent_behind",
		"drain --events 100 --mode stream --shards 2":                                              drainKeys + ", sharded_events_per_second, sharded_ratio, sharded_cpu_ratio",
		"capture --rows 50 --seconds 1":                                                            "rows, variants",
		"insert --writers 2 --seconds 1":                                                           insertKeys,
		"soak --rate 50 --seconds 1":                                                               "events, events_per_second, p50_ms, p99_ms, p999_ms, max_ms, lost, duplicates, relay_cpu_s_per_million, sessions_cpu_s_per_million, dead_tuples, table_mib",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			got := command(t, append(strings.Fields(args), "--json", "--database-url", testenv.Database(t))...)
			if got.code != 0 || !strings.HasPrefix(got.stderr, "PostgreSQL ") {
				t.Fatalf("exit code %d, %s", got.code, got.stderr)
			}
			var values map[string]any
			if err := json.Unmarshal([]byte(got.stdout), &values); err != nil || strings.Count(got.stdout, "\n") != 1 {
				t.Fatalf("standard output %q: %v", got.stdout, err)
			}
			want := strings.Split(keys, ", ")
			slices.Sort(want)
			if have := slices.Sorted(maps.Keys(values)); !slices.Equal(have, want) {
				t.Errorf("keys %v, want %v", have, want)
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
		"lat":                               "bench: unknown command \"lat\" for \"bench\"\n\nDid you mean this?\n\tlatency\n\nsee bench --help\n",
		"latency more":                      "bench: unknown command \"more\" for \"bench latency\"\nsee bench latency --help\n",
		"latency --log-level loud":          "bench: invalid argument \"loud\" for \"--log-level\" flag: must be one of debug, info, warn, error\nsee bench latency --help\n",
		"latency --rate 0":                  "bench: --rate 0 is below 1\nsee bench latency --help\n",
		"drain --workers -1":                "bench: --workers -1 is below 1\nsee bench drain --help\n",
		"drain --to nowhere":                "bench: invalid argument \"nowhere\" for \"--to\" flag: must be one of kafka, noop, rabbitmq\nsee bench drain --help\n",
		"drain --mode log":                  "bench: invalid argument \"log\" for \"--mode\" flag: must be one of both, queue, stream\nsee bench drain --help\n",
		"drain --mode stream --delete":      "bench: --delete goes with --mode queue\nsee bench drain --help\n",
		"drain --total":                     "bench: --total goes with --mode stream, and without --blocked-keys\nsee bench drain --help\n",
		"drain --consume":                   "bench: --consume needs --to rabbitmq\nsee bench drain --help\n",
		"drain --destinations 2 --to kafka": "bench: --destinations goes with --to noop, and without --blocked-keys, --urgent and --partitions\nsee bench drain --help\n",
		"drain --mode stream --foreign-transaction=here --blocked-keys 1": "bench: --foreign-transaction=here goes without --blocked-keys\nsee bench drain --help\n",
		"takeover --rate 0":                               "bench: --rate 0 is below 1\nsee bench takeover --help\n",
		"shards --events 0":                               "bench: --events 0 is below 1\nsee bench shards --help\n",
		"shards --concurrency 0":                          "bench: --concurrency 0 is below 1\nsee bench shards --help\n",
		"shards --handler-time -1ms":                      "bench: --handler-time -1ms is below 0\nsee bench shards --help\n",
		"shards --relays 2,4":                             "bench: --relays [2,4] does not begin with 1, which the others are compared with\nsee bench shards --help\n",
		"shards --relays 1,65":                            "bench: --relays 65 is not from 1 to 64\nsee bench shards --help\n",
		"drain --shards 2":                                "bench: --shards goes with --mode stream and --to noop, and without --total, --blocked-keys, --urgent, --partitions and --destinations\nsee bench drain --help\n",
		"drain --mode stream --shards 65":                 "bench: --shards 65 is not from 1 to 64\nsee bench drain --help\n",
		"drain --keys -1":                                 "bench: --keys -1 is below 0\nsee bench drain --help\n",
		"drain --mode stream --blocked-keys 1 --to kafka": "bench: --blocked-keys needs --to noop, not kafka\nsee bench drain --help\n",
		"drain --blocked-keys 1":                          "bench: --blocked-keys needs --mode stream: a queue holds nothing back\nsee bench drain --help\n",
		"drain --urgent 1 --to kafka":                     "bench: --urgent goes with --to noop, and without --blocked-keys and --partitions\nsee bench drain --help\n",
		"drain --blocked-fresh 1":                         "bench: --blocked-fresh needs --blocked-keys\nsee bench drain --help\n",
		"drain --mode stream --events 1 --blocked-keys 1 --blocked-fresh 2": "bench: --blocked-fresh 2 is above --events 1\nsee bench drain --help\n",
		"variants --batch 0":           "bench: --batch 0 is below 1\nsee bench variants --help\n",
		"variants --only lease,cdc":    "bench: --only has \"cdc\", which is none of long-tx, advisory, lease, partitions, serialised, queue, stream\nsee bench variants --help\n",
		"variants --parts drain,crash": "bench: --parts has \"crash\", which is none of drain, writers, open, order\nsee bench variants --help\n",
		"capture --rows 0":             "bench: --rows 0 is below 1\nsee bench capture --help\n",
		"insert --writers 0":           "bench: --writers 0 is below 1\nsee bench insert --help\n",
		"soak --seconds 0":             "bench: --seconds 0 is below 1\nsee bench soak --help\n",
		"soak --blocked-keys 10":       "bench: unknown flag: --blocked-keys\nsee bench soak --help\n",
	} {
		if got := command(t, strings.Fields(args)...); got != (result{exitUsage, "", want}) {
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

// TestBenchShards pins the keys of a scenario.
func TestBenchShards(t *testing.T) {
	t.Parallel()
	got := command(t, "shards", "--events", "100", "--handler-time", "1ms", "--relays", "1,2", "--json", "--database-url", testenv.Database(t))
	var values struct {
		Scenarios []map[string]any `json:"scenarios"`
	}
	if err := json.Unmarshal([]byte(got.stdout), &values); got.code != 0 || err != nil || len(values.Scenarios) != 2 {
		t.Fatalf("%v, %+v", err, got)
	}
	want := []string{"duplicates", "events", "events_per_second", "flowing_per_second", "flowing_ratio", "largest_share", "lost", "out_of_order", "ratio", "relay_cpu_s_per_million", "relays", "shards"}
	for _, s := range values.Scenarios {
		if have := slices.Sorted(maps.Keys(s)); !slices.Equal(have, want) {
			t.Errorf("keys %v, want %v", have, want)
		}
	}
}

func TestBenchDrainToKafka(t *testing.T) {
	t.Parallel()
	brokers := strings.Join(testenv.Kafka(t), ",")
	got := command(t, "drain", "--to", "kafka", "--brokers", brokers, "--events", "500", "--json", "--database-url", testenv.Database(t))
	if got.code != 0 || !strings.Contains(got.stdout, `"lost":0,"duplicates":0,`) || !strings.Contains(got.stderr, "2 topics of 1 partition") {
		t.Errorf("got %+v", got)
	}
}

func TestBenchVariants(t *testing.T) {
	t.Parallel()
	brokers := strings.Join(testenv.Kafka(t), ",")
	got := command(t, "variants", "--only", "lease,stream", "--parts", "drain", "--brokers", brokers, "--events", "500", "--json", "--database-url", testenv.Database(t))
	var values struct {
		Variants []struct {
			Name    string           `json:"name"`
			Notifyd bool             `json:"notifyd"`
			Drains  []map[string]any `json:"drains"`
		} `json:"variants"`
	}
	if err := json.Unmarshal([]byte(got.stdout), &values); got.code != 0 || err != nil || strings.Count(got.stdout, "\n") != 1 || !strings.Contains(got.stderr, "producers: acks=all") {
		t.Fatalf("%v, %+v", err, got)
	}
	if len(values.Variants) != 2 || values.Variants[0].Name != "lease" || values.Variants[0].Notifyd || values.Variants[1].Name != "stream" || !values.Variants[1].Notifyd {
		t.Errorf("got %+v", values)
	}
	want := []string{"changed_rows", "dead_rows", "duplicates", "lost", "out_of_order", "postgres_cpu_s", "seconds", "wal_bytes", "worker_cpu_s", "workers"}
	for _, v := range values.Variants {
		if len(v.Drains) != 2 || !slices.Equal(slices.Sorted(maps.Keys(v.Drains[0])), want) {
			t.Errorf("drains %v, want two with %v", v.Drains, want)
		}
	}
}
