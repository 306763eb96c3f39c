// Command peers compares notifyd with other systems for events or jobs in PostgreSQL: the same server,
// the same work. See README.md.
//
// It is a separate module, so that users of notifyd do not download the peers.
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
	"slices"
	"strings"
	"syscall"
	"time"
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
	patience      time.Duration
	writers       int
	writeFor      time.Duration
	rounds        int
	only          []string // all, if empty
	require       bool
	databaseURL   string
	asJSON        bool
	// progress gets text for people during the run.
	progress io.Writer
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{progress: stderr}
	var only string
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.events, "events", 200_000, "`number` of events to drain; 0 leaves the drain out")
	flags.IntVar(&o.latencyEvents, "latency-events", 2000, "`number` of events whose latency is taken; 0 leaves the latency out")
	flags.IntVar(&o.rate, "rate", 500, "events per second while the latency is taken")
	flags.DurationVar(&o.patience, "patience", 3*time.Second, "how long the foreign transactions stay open for events that have not arrived")
	flags.IntVar(&o.writers, "writers", 16, "`number` of writers whose rate is taken")
	flags.DurationVar(&o.writeFor, "write-for", 3*time.Second, "how long they write; 0 leaves their rate out")
	flags.IntVar(&o.rounds, "rounds", 3, "how often everything is done; medians are shown")
	flags.StringVar(&only, "only", "", "comma-separated `systems`: "+strings.Join(names(), ", ")+"; all otherwise")
	flags.BoolVar(&o.require, "require", false, "fail if a system cannot be had on this machine, in place of leaving it out")
	flags.StringVar(&o.databaseURL, "database-url", "", "use the server of this `URL`, in databases of their own that are dropped at the end; a private PostgreSQL otherwise")
	flags.BoolVar(&o.asJSON, "json", false, "print the result as one line of JSON, last on standard output")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, fmt.Errorf("%w: %w", errUsage, err)
	}
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("%w: there are no arguments; see -help", errUsage)
	}
	return o, o.validate()
}

func (o *options) validate() error {
	if o.rate < 1 || o.rounds < 1 || o.writers < 1 {
		return fmt.Errorf("%w: rate, rounds and writers must be at least 1", errUsage)
	}
	if min(o.events, o.latencyEvents) < 0 || min(o.patience, o.writeFor) < 0 {
		return fmt.Errorf("%w: numbers of events and times must be at least 0", errUsage)
	}
	for _, name := range o.only {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("%w: --only: there is no %q", errUsage, name)
		}
	}
	return nil
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
