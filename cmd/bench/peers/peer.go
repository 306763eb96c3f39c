package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// peer is a system under test, in one configuration.
type peer interface {
	// preload inserts n events in bulk, while no worker runs.
	preload(ctx context.Context, n int) error
	// insert inserts one event within tx, in the documented way of the system.
	insert(ctx context.Context, tx pgx.Tx, seq int) error
	// launch loads the system's program, which does not work before start.
	launch(ctx context.Context, c calls) (worker, error)
	// tables returns the tables that hold the work.
	tables() tables
}

// worker is the program of a peer that delivers events.
type worker interface {
	// start connects and begins to work. It returns once the worker works.
	start(ctx context.Context) error
	// stop ends the work in an orderly way, and the program. It also ends the program if start failed or was not called.
	stop() error
}

// calls are the callbacks of a worker.
type calls struct {
	// handled is called for each call of the handler, with the seq of the insert. If times is set, at is the time of the
	// call; a zero at means now.
	handled func(seq int, at time.Time)
	// failed is called if the worker ends before stop.
	failed func(error)
	times  bool
}

// tables describes the parts of a peer's schema that the benchmark needs.
type tables struct {
	names []string // all tables that hold work, quoted
	left  string   // query: true while work is left
	done  string   // query: the number of events marked done; "" if the peer deletes them
}

// database is one database of a run: each system has one.
type database struct {
	url  string
	pool *pgxpool.Pool // of the writers, with the server's defaults
}

// measures are the measurements that a variant supports.
type measures uint8

const (
	drains measures = 1 << iota
	latencies
	inserts
)

// variant is a peer with the texts that describe it, and its figures.
type variant struct {
	name     string
	settings string
	measures measures
	peer     peer
	db       database

	measured map[string][]float64 // figures, by round
	repeats  int64                // calls of the handler beyond one per event
}

// add adds the figure of a round.
func (v *variant) add(name string, value float64) {
	v.measured[name] = append(v.measured[name], value)
}

// event is the event of all systems. All decode it for each call of the handler, because a handler that uses the payload
// must decode it, too.
type event struct {
	Seq int    `json:"seq"`
	Pad string `json:"pad"`
}

// eventBytes is the approximate size of an event as JSON.
const eventBytes = 256

func newEvent(seq int) event {
	return event{Seq: seq, Pad: strings.Repeat("x", eventBytes-len(`{"seq":100000,"pad":""}`))}
}

// json returns the event as text, for systems that store text.
func (e event) json() string { return fmt.Sprintf(`{"seq":%d,"pad":"%s"}`, e.Seq, e.Pad) }

// Kind is the name of the event for River.
func (event) Kind() string { return jobName }

// jobName is the name of the event for job queues.
const jobName = "bench_event"

// ownPool opens the connections of a worker. They have the settings of the writers' connections, except their number and
// synchronous_commit.
func (d database) ownPool(ctx context.Context, conns int32, c commit) (*pgxpool.Pool, error) {
	cfg := d.pool.Config()
	cfg.MaxConns = conns
	if c != commitDefault {
		cfg.ConnConfig.RuntimeParams["synchronous_commit"] = string(c)
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// commit is the synchronous_commit of a worker's connections.
type commit string

const (
	commitDefault commit = ""    // the server's setting
	commitOff     commit = "off" // as notifyd's always are
)

func (c commit) String() string {
	if c == commitDefault {
		return "sync_commit on"
	}
	return "sync_commit " + string(c)
}

// preloadBatch is how many events a preload inserts at once. River's own benchmark uses the same number.
const preloadBatch = 5000

// inBatches calls insert for the numbers 0..n-1 in batches.
func inBatches(n int, insert func(from, to int) error) error {
	for from := 0; from < n; from += preloadBatch {
		if err := insert(from, min(from+preloadBatch, n)); err != nil {
			return fmt.Errorf("insert events %d and up: %w", from, err)
		}
	}
	return nil
}
