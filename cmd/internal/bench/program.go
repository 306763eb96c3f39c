package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/notifyd/notifyd/internal/cli"
)

// The exit codes of [Execute].
const (
	ExitFailure = 1
	ExitUsage   = 2
)

// errFaults is returned after a bench whose result is not OK.
var errFaults = errors.New("events were lost, or out of order")

// Program has the flags that all experiments share.
type Program struct {
	options                Options
	asJSON                 bool
	cpuProfile, memProfile string

	started bool // the command line is valid
}

// Execute runs a command line, and returns the exit code. build makes the root command.
func Execute(ctx context.Context, args []string, stdout, stderr io.Writer, build func(*Program) *cobra.Command) int {
	p := &Program{}
	root := build(p)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SilenceErrors = true // printed below
	root.SilenceUsage = true
	root.CompletionOptions.DisableDefaultCmd = true

	flags := root.PersistentFlags()
	flags.StringVar(&p.options.DatabaseURL, "database-url", "", "`URL` of a database to use, for schemas that are dropped at the end; private by default")
	flags.BoolVar(&p.options.Force, "force", false, "use the database even if it holds events")
	flags.BoolVar(&p.asJSON, "json", false, "print the result as one line of JSON on standard output, and all else on standard error")
	flags.StringVar(&p.cpuProfile, "cpuprofile", "", "write a profile of this process's CPU time to this `file`")
	flags.StringVar(&p.memProfile, "memprofile", "", "write a profile of this process's allocations to this `file`")

	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return 0
	case p.started:
		cmd.PrintErrf("%s: %s\n", root.Name(), strings.TrimPrefix(err.Error(), "notifyd: ")) // the relay's errors have a prefix already
		return ExitFailure
	default:
		cmd.PrintErrf("%s: %v\nsee %s --help\n", root.Name(), err, cmd.CommandPath())
		return ExitUsage
	}
}

// Command returns the command of an experiment.
func (p *Program) Command(x Experiment) *cobra.Command {
	cmd := &cobra.Command{Args: cobra.NoArgs}
	x.Define(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := x.Check(); err != nil {
			return err
		}
		p.started = true
		return p.measure(cmd, x)
	}
	return cmd
}

// RelayCommand returns the hidden command of the relay that insert, soak and takeover start as a process.
func (p *Program) RelayCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "relay",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.started = true
			return Serve(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), relayLog(cmd.ErrOrStderr()), os.Getenv(EnvRelay))
		},
	}
}

// measure runs an experiment, and prints its result.
func (p *Program) measure(cmd *cobra.Command, x Experiment) error {
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}

	p.options.Relay = []string{self, "relay"}
	p.options.Log = relayLog(cmd.ErrOrStderr())
	p.options.Out = cmd.OutOrStdout()
	if p.asJSON {
		p.options.Out = cmd.ErrOrStderr()
	}

	var result *Result
	err = p.profiled(func() (err error) {
		result, err = Measure(ctx, p.options, x)
		return err
	})
	if err != nil {
		return err
	}

	if p.asJSON {
		encoder := json.NewEncoder(cmd.OutOrStdout())
		encoder.SetEscapeHTML(false) // the names of figures have arrows
		if err := encoder.Encode(result); err != nil {
			return err
		}
	}
	if !result.OK() {
		return errFaults
	}
	return nil
}

// profiled calls run, and writes the requested profiles.
func (p *Program) profiled(run func() error) (err error) {
	if p.cpuProfile != "" {
		file, err := os.Create(p.cpuProfile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			return errors.Join(err, file.Close())
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, file.Close())
		}()
	}
	if err := run(); err != nil || p.memProfile == "" {
		return err
	}

	file, err := os.Create(p.memProfile)
	if err != nil {
		return err
	}
	runtime.GC() // so that the profile includes the latest frees
	return errors.Join(pprof.Lookup("allocs").WriteTo(file, 0), file.Close())
}

// untilSignal returns a context that ends with the first SIGINT, SIGTERM or SIGHUP, so that a bench removes its schemas
// and servers. The second one ends the process.
func untilSignal(ctx context.Context) (until context.Context, stop func()) {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		signals = append(signals, syscall.SIGHUP)
	}
	until, stop = signal.NotifyContext(ctx, signals...)
	context.AfterFunc(until, stop)
	return until, stop
}

// words is a flag that takes one of a few words.
type words[T ~string] struct {
	cli.OneOf
	into *T
}

// Set implements pflag.Value.
func (w *words[T]) Set(word string) error {
	err := w.OneOf.Set(word)
	*w.into = T(w.Value)
	return err
}

// word defines a flag that takes one of a few words. The value of into is its default.
func word[T ~string](flags *pflag.FlagSet, into *T, name string, known []string, usage string) {
	flags.Var(&words[T]{cli.OneOf{Words: known, Value: string(*into)}, into}, name, usage)
}

// addMode defines the flag for the mode of the tables.
func addMode(flags *pflag.FlagSet, mode *Mode) {
	*mode = ModeQueue
	word(flags, mode, "mode", []string{string(ModeBoth), string(ModeQueue), string(ModeStream)}, "what the table is: queue, stream, or both in turns")
}

// addForeign defines the flag for an open transaction.
func addForeign(flags *pflag.FlagSet, foreign *string, usage string) {
	word(flags, foreign, "foreign-transaction", foreigns(), usage)
	flags.Lookup("foreign-transaction").NoOptDefVal = foreignElsewhere
}

// option is a flag of a number.
type option struct {
	name  string
	value int
}

// atLeast returns an error for the first option that is below a limit.
func atLeast(least int, options ...option) error {
	for _, o := range options {
		if o.value < least {
			return fmt.Errorf("--%s %d is below %d", o.name, o.value, least)
		}
	}
	return nil
}

// relayLog returns the logger of the relays.
func relayLog(w io.Writer) *slog.Logger { return cli.NewLogger(w, "warn", "auto") }
