package command

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/internal/cli"
)

// complete offers names of the configuration file to the shell: destinations for --destination and for arguments
// called DESTINATION, outboxes for --outbox, and the words of flags that take one of few. A file that cannot be read offers
// nothing.
func complete(a *App, cmd *cobra.Command) {
	flags := map[string]func(*config.Config) []string{
		"destination": NamesOf,
		"outbox":      func(c *config.Config) []string { return namesOfOutboxes(c.Outboxes.List) },
	}

	for name, of := range flags {
		if cmd.Flags().Lookup(name) == nil {
			continue
		}

		offer := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) { return names(a, of) }
		_ = cmd.RegisterFlagCompletionFunc(name, offer) // the flag exists
	}

	words := map[string][]string{"mode": {"queue", "stream"}, "notify": {"auto", "always", "off"}, "partitions": {"daily"}}
	fixed := func(f *pflag.Flag) {
		choice := words[f.Name]
		if o, ok := f.Value.(*cli.OneOf); ok {
			choice = o.Words
		}
		if choice != nil {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(choice, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
		}
	}

	cmd.Flags().VisitAll(fixed)
	cmd.PersistentFlags().VisitAll(fixed)

	_, arguments, _ := strings.Cut(cmd.Use, " ")
	if !strings.HasPrefix(arguments, "DESTINATION") {
		return
	}

	many := strings.HasPrefix(arguments, "DESTINATION...")
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !many {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(a, NamesOf)
	}
}

// names reads names from the configuration file. Environment variables may be missing, because names do not depend on
// them.
func names(a *App, of func(*config.Config) []string) ([]string, cobra.ShellCompDirective) {
	path, err := config.Find(a.ConfigPath, a.Lookup)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}

	c, err := config.LoadRoutes(path, "", func(name string) (string, bool) {
		if value, ok := a.Lookup(name); ok {
			return value, true
		}
		return "postgres://localhost/unknown", true // a connection string is checked as one
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}

	return of(c), cobra.ShellCompDirectiveNoFileComp
}
