// Command bench measures notifyd on this machine, and the database alone in the
// same run:
//
//	go run ./cmd/bench latency --rate 2000
//	make bench ARGS="drain --mode both"
//
// It starts private servers, and installs PostgreSQL where it is missing, so it is
// not part of the daemon. docs/performance.md describes how each figure is measured.
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/bench"
	"github.com/notifyd/notifyd/internal/cli"
)

func main() {
	cli.TuneGC()
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run executes a command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return bench.Execute(ctx, args, stdout, stderr, newRootCmd)
}

// newRootCmd builds the tree of commands.
func newRootCmd(p *bench.Program) *cobra.Command {
	root := &cobra.Command{
		Use:     "bench",
		Short:   "Measure notifyd on this machine",
		Example: "  bench latency --rate 2000\n  bench drain --events 1000000 --payload 1024",
		Long: `bench measures how fast notifyd is here, and what the database alone can do in
the same run. Each bench starts a private PostgreSQL that flushes to disk like
one in production, and installs PostgreSQL where it is missing. With --database-url
it uses that database, in schemas that are dropped at the end.

docs/performance.md has the figures, and says how each is measured.`,
	}
	for _, x := range bench.Experiments() {
		root.AddCommand(p.Command(x))
	}
	root.AddCommand(p.RelayCommand())
	return root
}
