package main

import (
	"context"
	"io"

	"github.com/notifyd/notifyd/cmd/internal/command/capture"
	"github.com/notifyd/notifyd/cmd/internal/command/inspect"

	"github.com/notifyd/notifyd/cmd/internal/command/configuration"

	"github.com/notifyd/notifyd/cmd/internal/command/schema"

	"github.com/notifyd/notifyd/cmd/internal/command/positions"

	"github.com/notifyd/notifyd/cmd/internal/command/events"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/cli"
)

// run executes a command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, lookup config.LookupEnv) int {
	a := &command.App{
		Lookup:    lookup,
		Stdout:    stdout,
		Stderr:    stderr,
		LogLevel:  cli.LogLevel(),
		LogFormat: cli.LogFormat(),
	}

	root := newRootCmd(a) //nolint:contextcheck // ExecuteContextC hands ctx to the commands
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd() // after SetOut, which it looks at

	a.Strict(root)
	cmd, err := root.ExecuteContextC(ctx)
	return a.Report(cmd, err)
}

// newRootCmd builds the tree of commands. A new command is a file with a
// constructor like the ones below, and a line here.
func newRootCmd(a *command.App) *cobra.Command {
	root := &cobra.Command{
		Use:   "notifyd",
		Short: "Deliver events from a PostgreSQL outbox table",
		Long: `notifyd delivers the events that applications insert into a PostgreSQL table
to queues, mailboxes, webhooks and other destinations.`,
		Example: `  notifyd demo             # see it work, in a schema of its own
  notifyd config init      # then edit notifyd.yaml
  notifyd migrate
  notifyd run`,
		Version:       readBuildInfo().String(),
		SilenceErrors: true, // run prints them
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("{{.Version}}\n") // like "notifyd version"

	flags := root.PersistentFlags()
	flags.StringVarP(&a.ConfigPath, "config", "c", "", "configuration `file` (default: $"+config.EnvPath+
		", ./notifyd.yaml, $XDG_CONFIG_HOME/notifyd/config.yaml, /etc/notifyd/config.yaml)")
	flags.Var(&a.LogLevel, "log-level", "debug, info, warn or error, in place of log.level of the file")
	flags.Var(&a.LogFormat, "log-format", "auto, text or json, in place of log.format of the file")

	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run a relay:", []*cobra.Command{
			newDemoCmd(a), schema.NewMigrate(a), newRunCmd(a), configuration.NewReload(a), inspect.NewHealthcheck(a),
		}},
		{"Configure:", []*cobra.Command{
			configuration.NewConfig(a), configuration.NewCheckConfig(a), configuration.NewPlan(a),
			events.NewRoute(a), events.NewTemplate(a),
		}},
		{"Look:", []*cobra.Command{inspect.NewStatus(a), inspect.NewDoctor(a), newConsoleCmd(a), events.NewEvents(a)}},
		{"Act:", []*cobra.Command{
			events.NewPublish(a), capture.New(a), events.NewDeadLetters(a), positions.NewPause(a), positions.NewResume(a),
			positions.NewPositions(a), positions.NewReplay(a), schema.NewAdopt(a),
		}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, cmd := range g.commands {
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}

	root.AddCommand(newManCmd(a), newVersionCmd())
	return root
}
