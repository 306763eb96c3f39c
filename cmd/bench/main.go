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
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/cli"
)

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	cli.TuneGC()
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr, os.LookupEnv))
}

// program is the state that all commands share.
type program struct {
	lookup func(string) (string, bool)

	// The values of the flags that every command has.
	logLevel, logFormat    cli.OneOf
	database               string
	force, asJSON          bool
	cpuProfile, memProfile string

	started bool // the command line is valid
}

// log returns the logger of the relays.
func (p *program) log(cmd *cobra.Command) *slog.Logger {
	return cli.NewLogger(cmd.ErrOrStderr(), p.logLevel.Value, p.logFormat.Value)
}

// run executes a command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, lookup func(string) (string, bool)) int {
	p := &program{lookup: lookup, logLevel: cli.LogLevel(), logFormat: cli.LogFormat()}
	p.logLevel.Value, p.logFormat.Value = "warn", "auto"
	root := newRootCmd(p) //nolint:contextcheck // ExecuteContextC hands ctx to the commands
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitOK
	case p.started:
		cmd.PrintErrf("bench: %s\n", strings.TrimPrefix(err.Error(), "notifyd: ")) // the relay's errors have a prefix already
		return exitFailure
	default:
		cmd.PrintErrf("bench: %v\nsee %s --help\n", err, cmd.CommandPath())
		return exitUsage
	}
}

// newRootCmd builds the tree of commands.
func newRootCmd(p *program) *cobra.Command {
	root := &cobra.Command{
		Use:     "bench",
		Short:   "Measure notifyd on this machine",
		Example: "  bench latency --rate 2000\n  bench drain --events 1000000 --payload 1024",
		Long: `bench measures how fast notifyd is here, beside what the database alone can do in
the same run. Each bench starts a private PostgreSQL that flushes to disk like
one in production, and installs PostgreSQL where it is missing. With --database-url
it uses that database, in schemas of its own that are dropped at the end.

docs/performance.md says how each figure is measured.`,
		SilenceErrors: true, // run prints them
		SilenceUsage:  true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	flags := root.PersistentFlags()
	flags.Var(&p.logLevel, "log-level", "log of the relay: debug, info, warn or error")
	flags.Var(&p.logFormat, "log-format", "form of that log: auto, text or json")
	flags.StringVar(&p.database, "database-url", "", "use this database, in schemas of their own that are dropped at the end")
	flags.BoolVar(&p.force, "force", false, "use the database even if it holds events")
	flags.BoolVar(&p.asJSON, "json", false, "print the result as one line of JSON on standard output")
	flags.StringVar(&p.cpuProfile, "cpuprofile", "", "write a profile of this process's CPU time to this `file`")
	flags.StringVar(&p.memProfile, "memprofile", "", "write a profile of this process's allocations to this `file`")
	root.AddCommand(newLatencyCmd(p), newDrainCmd(p), newInsertCmd(p), newCaptureCmd(p), newSoakCmd(p), newTakeoverCmd(p), newShardsCmd(p), newReplayCmd(p), newVariantsCmd(p), newRelayCmd(p))
	return root
}

// untilSignal returns a context that ends with the first SIGINT, SIGTERM or SIGHUP,
// so that a bench removes its schemas and servers. The second one ends the process.
func untilSignal(ctx context.Context) (until context.Context, stop func()) {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		signals = append(signals, syscall.SIGHUP)
	}
	until, stop = signal.NotifyContext(ctx, signals...)
	context.AfterFunc(until, stop)
	return until, stop
}
