package schema

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/command"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// The default names of the roles.
const (
	defaultWriter = "notifyd_writer"
	defaultRelay  = "notifyd_relay"
)

// registerGrants gives "notifyd migrate" the flags of --print-grants. Without
// that flag the command is unchanged.
func registerGrants(a *command.App, cmd *cobra.Command, otherwise func(*cobra.Command, []string) error) {
	var printing bool
	var roles outboxsql.Roles
	flags := cmd.Flags()
	flags.BoolVar(&printing, "print-grants", false, "print the SQL that gives the roles their privileges, and change nothing")
	flags.StringVar(&roles.Writer, "writer", "",
		"with --print-grants: the `role` that inserts events (default "+defaultWriter+", or none if --relay is given)")
	flags.StringVar(&roles.Relay, "relay", "",
		"with --print-grants: the `role` that the relay connects as (default "+defaultRelay+", or none if --writer is given)")

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if printing {
			return printGrants(a, cmd, roles)
		}
		for _, name := range []string{"writer", "relay"} {
			if flags.Changed(name) {
				return command.UsageErrorf("--%s goes with --print-grants", name)
			}
		}
		return otherwise(cmd, args)
	}
}

func printGrants(a *command.App, cmd *cobra.Command, roles outboxsql.Roles) error {
	flags := cmd.Flags()
	for _, name := range []string{"partitions", "mode", "notify", "serialize-writers", "grant-writer", "grant-relay"} {
		if flags.Changed(name) {
			return command.UsageErrorf("--%s changes the outbox, --print-grants changes nothing: run them one after the other", name)
		}
	}
	for _, name := range []string{"writer", "relay"} {
		if flags.Changed(name) && flags.Lookup(name).Value.String() == "" {
			return command.UsageErrorf("--%s: the name of a role is missing", name)
		}
	}

	if roles == (outboxsql.Roles{}) {
		roles = outboxsql.Roles{Writer: defaultWriter, Relay: defaultRelay}
	}

	schema, _ := flags.GetString("schema")                     // cannot fail: "migrate" has the flag
	db := command.DatabaseFlags{Schema: schema, URL: "unused"} // printing connects to nothing
	if err := db.Resolve(cmd.Context(), a); err != nil {
		return err
	}

	script, err := outboxsql.Grants(db.Schema, roles)
	if err != nil {
		return command.UsageErrorf("--%w", err) // it begins with writer or relay
	}

	_, err = fmt.Fprint(cmd.OutOrStdout(), script)
	return err
}
