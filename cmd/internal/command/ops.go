package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/ops"
)

// OpsFlags are the flags of commands that work with an [ops.Client].
type OpsFlags struct {
	DB DatabaseFlags
	// Progress is set while With runs.
	Progress *Progress
	// Reports makes With read from the configuration file which destinations receive reports of dead letters.
	Reports bool

	output *cli.OneOf
	cmd    *cobra.Command
}

// Register adds the flags of the database, and --output.
func (f *OpsFlags) Register(cmd *cobra.Command) {
	f.DB.Register(cmd)
	f.cmd = cmd
	f.output = AddFormat(cmd)
}

// JSON reports whether the result is printed as JSON.
func (f *OpsFlags) JSON() bool { return f.output.Value == "json" }

// With connects and calls do with a client, and shows the progress meanwhile. The client deletes an event with its last
// dead letter if forget is set, or if retention.keep is 0.
func (f *OpsFlags) With(ctx context.Context, a *App, forget bool, do func(s *ops.Client) error) error {
	f.Progress = StartProgress(f.cmd, Connecting)
	defer f.Progress.Stop()

	conn, err := f.DB.ConnectTable(ctx, a)
	if err != nil {
		return err
	}
	defer store.Close(ctx, conn)

	f.Progress.Say("%s", f.cmd.CommandPath())

	reportTo, err := f.reportTo(ctx, a)
	if err != nil {
		return err
	}

	s, err := ops.New(conn, ops.Config{Schema: f.DB.Schema, DeleteEvents: forget || f.DB.Keep == 0, ReportTo: reportTo})
	if err == nil {
		err = do(s)
	}

	if errors.Is(err, ops.ErrQueue) {
		return fmt.Errorf("%w; notifyd migrate --mode stream makes it one", err)
	}

	return Mistaken(err)
}

// reportTo reads from the configuration file which destinations receive reports of dead letters. It returns nil with
// --database-url, which may name another database than the file does.
func (f *OpsFlags) reportTo(ctx context.Context, a *App) (func(destination string) string, error) {
	if !f.Reports || f.DB.Given != "" {
		return nil, nil //nolint:nilnil // nil is how package ops spells "no reports"
	}

	c, _, err := f.DB.Optional(ctx, a, config.LoadRoutes)
	if err != nil || c == nil {
		return nil, err
	}

	to := make(map[string]string)
	for _, d := range c.Destinations {
		to[d.Name] = d.OnDead.To
	}

	return func(destination string) string { return to[destination] }, nil
}

// Agree asks a person for consent to the described action, unless yes is set.
func (f *OpsFlags) Agree(cmd *cobra.Command, yes bool, what string) error {
	return Agree(cmd, f.Progress, yes, what, "--yes says that this is to be done, --dry-run shows it")
}

// Agree asks a person for consent to the described action, unless yes is set. It ends the line of progress. Without a
// terminal it returns an error that ends with the cure.
func Agree(cmd *cobra.Command, progress *Progress, yes bool, what, cure string) error {
	switch {
	case yes:
		return nil
	case !cli.IsTerminal(cmd.InOrStdin()):
		return UsageErrorf("%s: %s", what, cure)
	}

	progress.Say("")
	fmt.Fprintf(cmd.ErrOrStderr(), "%s. Go on? [y/N] ", what) //nolint:errcheck // the answer is what counts
	if !Agreed(cmd.InOrStdin()) {
		return ErrNotAgreed
	}
	return nil
}

// Mistaken returns a mistake in the command line if an operation has refused its arguments, and err otherwise.
func Mistaken(err error) error {
	if errors.Is(err, ops.ErrInvalid) {
		return UsageErrorf("%w", err)
	}
	return err
}
