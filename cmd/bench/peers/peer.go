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
	// insert inserts one event within tx, as the system documents it.
	insert(ctx context.Context, tx pgx.Tx, seq int) error
	// launch loads the system's program, which does nothing yet.
	launch(ctx context.Context, c calls) (worker, error)
	// tables says where the work is kept.
	tables() tables
}

// worker is the program of a peer that delivers.
type worker interface {
	// start connects and begins to work, and returns once it does.
	start(ctx context.Context) error
	// stop ends the work in order, and the program also if start failed or was not called.
	stop() error
}

// calls are how a worker reports.
type calls struct {
	// handled is called for each call of the handler: with what insert was given and when it
	// was, if times is set. A zero time is now.
	handled func(seq int, at time.Time)
	// failed is called if the worker ends before stop.
	failed func(error)
	times  bool
}

// tables describes the parts of a peer's schema that the benchmark needs.
type tables struct {
	names []string // all that hold work, quoted
	left  string   // query: is anything left to do?
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

// variant is a peer with the texts that describe it.
type variant struct {
	name     string
	settings string
	commit   commit
	measured measures
	peer     peer
	db       database
}

// event is what all systems carry, and all decode for each call of the handler: a handler that
// has any use for the payload does too.
type event struct {
	Seq int    `json:"seq"`
	Pad string `json:"pad"`
}

// eventBytes is about the size of an event as JSON.
const eventBytes = 256

func newEvent(seq int) event {
	return event{Seq: seq, Pad: strings.Repeat("x", eventBytes-len(`{"seq":100000,"pad":""}`))}
}

// json is the event as systems store it that are given text.
func (e event) json() string { return fmt.Sprintf(`{"seq":%d,"pad":"%s"}`, e.Seq, e.Pad) }

// Kind is the name of the event for River.
func (event) Kind() string { return jobName }

// jobName is the name of the event for job queues.
const jobName = "bench_event"

// ownPool opens connections of a worker's own, as the writers' but for their number and
// synchronous_commit.
func (d database) ownPool(ctx context.Context, conns int32, c commit) (*pgxpool.Pool, error) {
	cfg := d.pool.Config()
	cfg.MaxConns = conns
	if c != commitDefault {
		cfg.ConnConfig.RuntimeParams["synchronous_commit"] = string(c)
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// commit is synchronous_commit of a worker's own connections.
type commit string

const (
	commitDefault commit = ""    // as the server has it
	commitOff     commit = "off" // as notifyd's always are
)

func (c commit) String() string {
	if c == commitDefault {
		return "sync_commit on"
	}
	return "sync_commit " + string(c)
}

// preloadBatch is how many events a preload inserts at once: what River's own benchmark does.
const preloadBatch = 5000

// inBatches calls insert for 0..n-1 in pieces.
func inBatches(n int, insert func(from, to int) error) error {
	for from := 0; from < n; from += preloadBatch {
		if err := insert(from, min(from+preloadBatch, n)); err != nil {
			return fmt.Errorf("insert events %d and up: %w", from, err)
		}
	}
	return nil
}
