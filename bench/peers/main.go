// Command peers runs notifyd and River on the same PostgreSQL with the same
// work and prints how they compare. See README.md.
//
// It is a module of its own so that nobody who uses notifyd downloads River.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	//nolint:forbidigo // a program's root makes the first context
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintf(os.Stderr, "peers: %v\n", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintf(os.Stderr, "peers: %v\n", err)
		os.Exit(1)
	}
}

// errUsage is a mistake in the command line.
var errUsage = errors.New("wrong use")

// options are the flags.
type options struct {
	events        int
	latencyEvents int
	rate          int
	rounds        int
	databaseURL   string
	asJSON        bool
	// progress takes what a person reads while it runs.
	progress io.Writer
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{progress: stderr}
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.events, "events", 200_000, "`number` of events to drain; 0 leaves the drain out")
	flags.IntVar(&o.latencyEvents, "latency-events", 2000, "`number` of events whose latency is taken; 0 leaves the latency out")
	flags.IntVar(&o.rate, "rate", 500, "events per second while the latency is taken")
	flags.IntVar(&o.rounds, "rounds", 3, "how often everything is done; medians are shown")
	flags.StringVar(&o.databaseURL, "database-url", "", "use this database, in a schema of its own that is dropped at the end; a private PostgreSQL otherwise")
	flags.BoolVar(&o.asJSON, "json", false, "print the result as one line of JSON, last on standard output")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, fmt.Errorf("%w: %w", errUsage, err)
	}
	if flags.NArg() > 0 || o.events < 0 || o.latencyEvents < 0 || o.rate < 1 || o.rounds < 1 {
		return o, fmt.Errorf("%w: rate and rounds must be at least 1, numbers of events at least 0, and there are no arguments; see -help", errUsage)
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	result, err := measure(ctx, o)
	if err != nil {
		return err
	}
	if err := result.print(stdout); err != nil {
		return err
	}
	if !o.asJSON {
		return nil
	}
	line, err := json.Marshal(result)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, string(line))
	return err
}
