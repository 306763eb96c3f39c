// Command peers compares notifyd with other systems for events or jobs in PostgreSQL: the same server,
// the same work. See README.md.
//
// It is a separate module, so that users of notifyd do not download the peers.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/bench"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run executes a command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return bench.Execute(ctx, args, stdout, stderr, func(p *bench.Program) *cobra.Command { return p.Command(&peers{}) })
}

// peers is the experiment of this program.
type peers struct {
	events        int
	latencyEvents int
	rate          int
	patience      time.Duration
	writers       int
	writeFor      time.Duration
	rounds        int
	only          []string // all, if empty
	require       bool
}

// system is a word of --only.
type system struct {
	name string
	// open creates the system's tables in a separate database and returns its variants.
	open func(ctx context.Context, c *comparison, db database) ([]*variant, error)
	// module or npm is the package whose version is printed; "" is this tree.
	module, npm string
}

// systems are compared in this order; notifyd's come first.
func systems() []system {
	return []system{
		{name: "queue", open: openNotifyd(outboxsql.ModeQueue)},
		{name: "stream", open: openNotifyd(outboxsql.ModeStream)},
		{name: "river", open: openRiver, module: "github.com/riverqueue/river"},
		{name: "watermill", open: openWatermill, module: "github.com/ThreeDotsLabs/watermill-sql/v4"},
		{name: "graphile-worker", open: openGraphile, npm: "graphile-worker"},
		{name: "pg-boss", open: openBoss, npm: "pg-boss"},
	}
}

// names returns the words of --only.
func names() (all []string) {
	for _, s := range systems() {
		all = append(all, s.name)
	}
	return all
}

// Define implements [bench.Experiment].
func (x *peers) Define(cmd *cobra.Command) {
	cmd.Use = "peers"
	cmd.Short = "Compare notifyd with other systems on the same PostgreSQL"

	flags := cmd.Flags()
	flags.IntVar(&x.events, "events", 200_000, "`number` of events to drain; 0 leaves the drain out")
	flags.IntVar(&x.latencyEvents, "latency-events", 2000, "`number` of events whose latency is measured; 0 leaves the latency out")
	flags.IntVar(&x.rate, "rate", 500, "events per `second` while the latency is measured")
	flags.DurationVar(&x.patience, "patience", 3*time.Second, "how long the foreign transactions stay open for events that have not arrived")
	flags.IntVar(&x.writers, "writers", 16, "`number` of writers whose rate is measured")
	flags.DurationVar(&x.writeFor, "write-for", 3*time.Second, "how long they write; 0 leaves their rate out")
	flags.IntVar(&x.rounds, "rounds", 3, "`number` of rounds, whose medians are printed")
	flags.StringSliceVar(&x.only, "only", nil, "`systems`, with commas between them: "+strings.Join(names(), ", ")+"; all by default")
	flags.BoolVar(&x.require, "require", false, "fail if a system is not available on this machine, instead of leaving it out")
}

// Check implements [bench.Experiment].
func (x *peers) Check() error {
	if min(x.rate, x.rounds, x.writers) < 1 {
		return errors.New("--rate, --rounds and --writers must be at least 1")
	}
	if min(x.events, x.latencyEvents) < 0 || min(x.patience, x.writeFor) < 0 {
		return errors.New("numbers of events and times must be at least 0")
	}
	for _, name := range x.only {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("--only has %q, which is none of %s", name, strings.Join(names(), ", "))
		}
	}
	return nil
}

// Settings returns the setting of the private server that is not PostgreSQL's default. The connections are 16 writers, two
// dozen workers, and the connections that the previous pool has not closed yet.
func (x *peers) Settings() map[string]string { return map[string]string{"max_connections": "200"} }

// version returns the version of a system that is measured.
func (s *system) version(n *node) (string, error) {
	switch {
	case s.npm != "":
		return n.packageVersion(s.npm)
	case s.module == "":
		return "this tree", nil
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == s.module {
				return dep.Version, nil
			}
		}
	}
	return "unknown", nil
}
