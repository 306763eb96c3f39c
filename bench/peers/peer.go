package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// peer is a system under test, in one configuration.
type peer interface {
	// preload inserts n events in bulk, while nobody works.
	preload(ctx context.Context, n int) error
	// insert inserts one event within tx.
	insert(ctx context.Context, tx pgx.Tx, seq int) error
	// start begins to work and returns once it does; handle is called with
	// what insert was given. stop ends the work in order.
	start(ctx context.Context, handle func(seq int)) (stop func() error, err error)
	// tables says where the work is kept.
	tables() tables
}

// tables are what the benchmark itself has to know of a peer's schema.
type tables struct {
	names []string // all that hold work, quoted
	left  string   // query: is anything left to do?
	done  string   // query: how many are marked as done?
}

// variant is a peer with what is printed about it.
type variant struct {
	name      string
	settings  string
	commitOff bool // synchronous_commit = off on its own connections
	peer      peer
}

// event is what both systems carry, and both decode for each call of the
// handler: River always does, and a handler of notifyd that has any use for
// the payload does too.
type event struct {
	Seq int    `json:"seq"`
	Pad string `json:"pad"`
}

// eventBytes is about the size of an event as JSON.
const eventBytes = 256

func newEvent(seq int) event {
	return event{Seq: seq, Pad: strings.Repeat("x", eventBytes-len(`{"seq":100000,"pad":""}`))}
}

// Kind is the name of the event for River.
func (event) Kind() string { return "bench_event" }

// inBatches calls insert for 0..n-1 in pieces of up to size.
func inBatches(n, size int, insert func(from, to int) error) error {
	for from := 0; from < n; from += size {
		if err := insert(from, min(from+size, n)); err != nil {
			return fmt.Errorf("insert events %d and up: %w", from, err)
		}
	}
	return nil
}
