package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/destinations"
)

// app is shared by all commands.
type app struct {
	lookup         config.LookupEnv
	stdout, stderr io.Writer

	// The values of the flags that every command has.
	configPath string
	logLevel   cli.OneOf
	logFormat  cli.OneOf

	// role and schema are those of the last connection of a command, for messages.
	role, schema string

	// started is set once a command's own code runs. An error before that is a
	// mistake in the command line.
	started bool
}

// run executes a command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, lookup config.LookupEnv) int {
	a := &app{
		lookup:    lookup,
		stdout:    stdout,
		stderr:    stderr,
		logLevel:  cli.LogLevel(),
		logFormat: cli.LogFormat(),
	}
	root := newRootCmd(a) //nolint:contextcheck // ExecuteContextC hands ctx to the commands
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd() // after SetOut, which it looks at
	a.strict(root)
	cmd, err := root.ExecuteContextC(ctx)
	return a.report(cmd, err)
}

// newRootCmd builds the tree of commands. A new command is a file with a
// constructor like the ones below, and a line here.
func newRootCmd(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "notifyd",
		Short:         "Deliver events from a PostgreSQL outbox table",
		Long:          "notifyd delivers the events that applications insert into a PostgreSQL table\nto queues, mailboxes, webhooks and other destinations.",
		Example:       "  notifyd demo             # see it work, in a schema of its own\n  notifyd config init      # then edit notifyd.yaml\n  notifyd migrate\n  notifyd run",
		Version:       readBuildInfo().String(),
		SilenceErrors: true, // run prints them
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("{{.Version}}\n") // like "notifyd version"
	flags := root.PersistentFlags()
	flags.StringVarP(&a.configPath, "config", "c", "", "configuration `file` (default: $"+config.EnvPath+", ./notifyd.yaml, $XDG_CONFIG_HOME/notifyd/config.yaml, /etc/notifyd/config.yaml)")
	flags.Var(&a.logLevel, "log-level", "debug, info, warn or error, in place of log.level of the file")
	flags.Var(&a.logFormat, "log-format", "auto, text or json, in place of log.format of the file")
	root.AddCommand(
		newRunCmd(a),
		newDemoCmd(a),
		newMigrateCmd(a),
		newStatusCmd(a),
		newDoctorCmd(a),
		newPauseCmd(a),
		newResumeCmd(a),
		newReloadCmd(a),
		newPublishCmd(a),
		newEventsCmd(a),
		newPositionsCmd(a),
		newReplayCmd(a),
		newDLQCmd(a),
		newCheckConfigCmd(a),
		newPlanCmd(a),
		newConfigCmd(a),
		newTemplateCmd(a),
		newHealthcheckCmd(a),
		newManCmd(a),
		newVersionCmd(),
	)
	return root
}

// load reads the configuration and applies the flags on top of it.
func (a *app) load() (*config.Config, string, error) {
	path, err := config.Find(a.configPath, a.lookup)
	if err != nil {
		return nil, "", err
	}
	c, err := a.loadAt(path, "")
	return c, path, err
}

// loadAt is load for the file at path. A url, if there is one, stands in for its
// connection strings.
func (a *app) loadAt(path, url string) (*config.Config, error) {
	c, err := config.Load(path, url, destinations.Registry(filepath.Dir(path), a.stdout, a.stderr), a.lookup)
	if err != nil {
		return nil, err
	}
	if a.logLevel.Value != "" {
		c.Log.Level = a.logLevel.Value
	}
	if a.logFormat.Value != "" {
		c.Log.Format = a.logFormat.Value
	}
	return c, nil
}

// strict closes two holes that cobra leaves: a command that only holds others prints
// its help and succeeds whatever its arguments, and a command without a rule for
// arguments accepts any.
func (a *app) strict(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		a.strict(sub)
	}
	switch {
	case cmd.HasSubCommands() && !cmd.Runnable():
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = needsCommand
	case cmd.HasSubCommands():
		cmd.Args = onlyCommands
	case cmd.Args == nil && cmd.Name() != "help": // whose arguments are commands
		cmd.Args = cobra.NoArgs
	}
	if runE := cmd.RunE; runE != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.started = true
			return runE(cmd, args)
		}
	}
}

// needsCommand is run by a command that only holds others.
func needsCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		if !cmd.HasParent() {
			return cmd.Help()
		}
		return usageErrorf("%s needs a command", cmd.CommandPath())
	}
	return onlyCommands(cmd, args)
}

// onlyCommands refuses arguments: they were meant to be commands.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2 // cobra's own default, which it sets too late
	hint := ""
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		hint = fmt.Sprintf(" (did you mean %s?)", strings.Join(names, " or "))
	}
	return usageErrorf("unknown command %q for %s%s", args[0], cmd.CommandPath(), hint)
}
