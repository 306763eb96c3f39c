package command

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/session"
)

// App is shared by all commands.
type App struct {
	Lookup         config.LookupEnv
	Stdout, Stderr io.Writer

	// The values of the flags that every command has.
	ConfigPath string
	LogLevel   cli.OneOf
	LogFormat  cli.OneOf

	// Role and Schema belong to the last connection, for messages.
	Role, Schema string

	// Log, if not nil, gets the error that ends the command, in place of a line of text: the log of a daemon that writes JSON.
	Log *slog.Logger

	// started is set when the code of a command begins. An earlier error is a mistake in
	// the command line.
	started bool
}

// Load reads the configuration and applies the flags on top of it.
func (a *App) Load() (*config.Config, string, error) {
	path, err := config.Find(a.ConfigPath, a.Lookup)
	if err != nil {
		return nil, "", err
	}

	c, err := a.LoadAt(path, "")
	return c, path, err
}

// LoadAt is load for the file at path. A url, if there is one, stands in for its
// connection strings.
func (a *App) LoadAt(path, url string) (*config.Config, error) {
	c, err := config.Load(path, url, destinations.Registry(filepath.Dir(path), a.Stdout, a.Stderr), a.Lookup)
	if err != nil {
		return nil, err
	}

	if a.LogLevel.Value != "" {
		c.Log.Level = a.LogLevel.Value
	}
	if a.LogFormat.Value != "" {
		c.Log.Format = a.LogFormat.Value
	}

	return c, nil
}

// Strict closes two holes that cobra leaves: a command that only holds others prints
// its help and succeeds whatever its arguments, and a command without a rule for
// arguments accepts any.
func (a *App) Strict(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		a.Strict(sub)
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

	complete(a, cmd)

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
		return UsageErrorf("%s needs a command", cmd.CommandPath())
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

	return UsageErrorf("unknown command %q for %s%s", args[0], cmd.CommandPath(), hint)
}

// Report prints err, which the command cmd returned, and gives the exit code.
func (a *App) Report(cmd *cobra.Command, err error) int {
	if err == nil {
		return ExitOK
	}

	if errors.Is(err, ErrChanges) {
		return ExitChanges
	}

	if list, ok := errors.AsType[*config.Error](err); ok && a.Log == nil {
		cmd.PrintErrln(list)
		return ExitConfig
	}

	text := Lines(strings.TrimPrefix(err.Error(), "notifyd: ")) // the relay's errors have the prefix already
	if _, ok := errors.AsType[*UsageError](err); ok || !a.started {
		cmd.PrintErrf("notifyd: %s\nsee %s --help\n", text, cmd.CommandPath())
		return ExitUsage
	}

	text += a.grantCure(cmd, err)
	if a.Log == nil {
		cmd.PrintErrf("notifyd: %s\n", text)
	} else {
		a.Log.Error("notifyd ends", "err", text)
	}

	_, isConfig := errors.AsType[*config.Error](err)
	_, isEnvironment := errors.AsType[*cli.EnvironmentError](err)
	if isConfig || isEnvironment {
		return ExitConfig
	}

	return ExitFailure
}

// InsufficientPrivilege is a code of PostgreSQL.
const InsufficientPrivilege = "42501"

// grantCure returns the cure for a statement of the command cmd that PostgreSQL refused for lack of
// a privilege, "" if err is another error. Each command runs with the privileges of one of three
// roles: the owner of the tables, a writer, or a relay.
func (a *App) grantCure(cmd *cobra.Command, err error) string {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || refused.Code != InsufficientPrivilege || a.Role == "" {
		return ""
	}

	if session.IsHidden(err) {
		return ": " + session.HiddenCure
	}

	const owner = "run the command as the owner of the tables"
	var flag string

	switch path := strings.TrimPrefix(cmd.CommandPath(), "notifyd "); {
	case strings.HasPrefix(path, "migrate"), path == "dlq edit":
		return fmt.Sprintf(": role %s is not the owner of the tables: %s", pgx.Identifier{a.Role}.Sanitize(), owner)
	case strings.HasPrefix(path, "capture"):
		return fmt.Sprintf(": run the command as the owner of the table, who needs CREATE on its schema and the privileges of a writer: "+
			"`notifyd migrate --print-grants --schema %s --writer %s`", shellWord(a.Schema), shellWord(a.Role))
	case path == "publish":
		flag = "--writer"
	default:
		flag = "--relay"
	}

	return fmt.Sprintf(": role %s lacks a privilege in schema %s: %s, "+
		"or as its owner run the output of `notifyd migrate --print-grants --schema %s %s %s`",
		pgx.Identifier{a.Role}.Sanitize(), pgx.Identifier{a.Schema}.Sanitize(), owner,
		shellWord(a.Schema), flag, shellWord(a.Role))
}

// shellWord quotes a word for a shell where that is necessary.
func shellWord(word string) string {
	if !strings.ContainsFunc(word, needsQuotes) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// needsQuotes reports whether a character may mean something to a shell.
func needsQuotes(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z',
		r >= 'A' && r <= 'Z',
		r >= '0' && r <= '9',
		r == '_',
		r == '-':
		return false
	default:
		return true
	}
}
