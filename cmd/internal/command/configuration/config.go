package configuration

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
)

// NewConfig returns the command config.
func NewConfig(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Write, show and describe the configuration file",
		Example: "  notifyd config init\n  notifyd config print",
	}
	cmd.AddCommand(newConfigInitCmd(a), newConfigPrintCmd(a), newConfigSchemaCmd(a), newConfigReferenceCmd(a))
	return cmd
}

func newConfigPrintCmd(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "print",
		Short: "Print the effective configuration, without secrets",
		Long: `print shows the configuration with all defaults filled in, as a file that means the
same. Text that comes from ${env:NAME} or ${file:PATH} is shown as it stands in the
file. In place of secrets in the file itself, and of text that looks like one
in a URL or a header, there is ${redacted}, which is not input: check-config lists
where to put the secrets back.`,
		Example: "  notifyd config print\n  notifyd config print -c /etc/notifyd/config.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := a.Load()
			if err != nil {
				return err
			}
			return config.Print(cmd.OutOrStdout(), c)
		},
	}
}

func newConfigSchemaCmd(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of the configuration file, for editors",
		Example: "  notifyd config schema > notifyd.schema.json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			descriptions, err := config.AllDescriptions()
			if err != nil {
				return err
			}
			schema, err := config.Schema(destinations.Registry("", a.Stdout, a.Stderr), descriptions)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(schema)
			return err
		},
	}
}

// newConfigReferenceCmd is for "go generate", and hidden from the help.
func newConfigReferenceCmd(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:    "reference FILE",
		Short:  "Write the tables of all settings into a Markdown page, between its markers",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			page, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			descriptions, err := config.AllDescriptions()
			if err != nil {
				return err
			}
			page, err = config.Reference(page, destinations.Registry("", a.Stdout, a.Stderr), descriptions)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return os.WriteFile(args[0], page, 0o644) //nolint:gosec // a page of the documentation
		},
	}
}

func newConfigInitCmd(a *command.App) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "init [file]",
		Short: "Write a configuration file to start from",
		Long: `init writes a commented configuration file: to the given file, else to that of
--config, else to notifyd.yaml. The file - is standard output.`,
		Example: "  notifyd config init\n  notifyd config init -",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "notifyd.yaml"
			if a.ConfigPath != "" {
				path = a.ConfigPath
			}
			if len(args) == 1 {
				path = args[0]
			}
			if path == "-" {
				return config.Init(cmd.OutOrStdout())
			}

			flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
			if force {
				flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
			}

			if err := writeStarter(path, flags); err != nil {
				return err
			}

			_, err := fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s: edit it, then run \"notifyd check-config\"\n", path)
			return err
		},
	}

	cmd.Flags().BoolVar(&force, "force", false, "overwrite the file if it exists")
	return cmd
}

// writeStarter writes the starter file, readable by its owner only: sooner or
// later it holds a password.
func writeStarter(path string, flags int) error {
	var starter bytes.Buffer
	if err := config.Init(&starter); err != nil {
		return err
	}

	f, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: --force overwrites it, - prints to standard output", path)
	}
	if err != nil {
		return err
	}

	_, err = f.Write(starter.Bytes())
	return errors.Join(err, f.Close())
}
