package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/cli"
)

// version and commit are set by the release build with -ldflags "-X
// main.version=v1.2.3 -X main.commit=..."; other builds take them from their module
// and repository.
var version, commit string //nolint:gochecknoglobals // the linker writes to nothing else

// buildInfo is the output of "notifyd version -o json".
type buildInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// readBuildInfo describes the running binary.
func readBuildInfo() buildInfo {
	b := buildInfo{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.fill(info)
	}
	if version != "" {
		b.Version = version
	}
	if commit != "" {
		b.Commit = commit
	}
	return b
}

func (b *buildInfo) fill(info *debug.BuildInfo) {
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}

	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
}

// String returns the line that "notifyd version" prints.
func (b buildInfo) String() string {
	revision := b.Commit
	switch {
	case revision == "":
		revision = "unknown"
	case b.Modified:
		revision += ", modified"
	}
	return fmt.Sprintf("notifyd %s (commit %s, %s, %s)", b.Version, revision, b.Go, b.Platform)
}

func newVersionCmd() *cobra.Command {
	var form *cli.OneOf
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  notifyd version\n  notifyd version -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := readBuildInfo()
			if form.Value == "json" {
				return command.WriteJSON(cmd.OutOrStdout(), info)
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), info)
			return err
		},
	}
	form = command.AddFormat(cmd)
	return cmd
}
