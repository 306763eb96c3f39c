// Command dist builds the release: see "make dist".
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/notifyd/notifyd/internal/dist"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)

	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	out := flag.String("o", "dist", "directory for the archives")
	platforms := flag.String("platforms", "", "such as linux/amd64,darwin/arm64 (default: all released platforms)")
	dirty := flag.Bool("allow-dirty", false, "also build changes that are not committed")
	check := flag.Bool("check-go", false, "only check that this Go is new enough for a release")
	flag.Parse()

	if *check {
		return dist.CheckGo(runtime.Version())
	}

	wanted := dist.Platforms()
	if *platforms != "" {
		wanted = nil
		for p := range strings.SplitSeq(*platforms, ",") {
			system, arch, ok := strings.Cut(p, "/")
			if !ok {
				return fmt.Errorf("-platforms: %q is not like linux/amd64", p)
			}
			wanted = append(wanted, dist.Platform{OS: system, Arch: arch})
		}
	}

	paths, err := dist.Build(ctx, dist.Options{
		Root:       ".",
		Package:    "./cmd/notifyd",
		Out:        *out,
		Platforms:  wanted,
		AllowDirty: *dirty,
		Extra:      extra(),
		Generate:   generate,
		Log:        slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})

	for _, p := range paths {
		fmt.Println(p)
	}
	return err
}

// extra are the files that accompany the program, and their places in an archive.
func extra() map[string]string {
	return map[string]string{
		"LICENSE":         "LICENSE",
		"README.md":       "README.md",
		"CHANGELOG.md":    "CHANGELOG.md",
		"SECURITY.md":     "SECURITY.md",
		"docs":            "docs",
		"deploy/systemd":  "systemd",
		"deploy/examples": "examples",
	}
}

// generate writes man pages and completions.
func generate(ctx context.Context, program, dir string, epoch int64) error {
	man := exec.CommandContext(ctx, program, "man", filepath.Join(dir, "man", "man1"))
	man.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+strconv.FormatInt(epoch, 10))
	if out, err := man.CombinedOutput(); err != nil {
		return fmt.Errorf("man pages: %w\n%s", err, out)
	}

	completions := filepath.Join(dir, "completions")
	if err := os.Mkdir(completions, 0o700); err != nil {
		return err
	}

	for shell, name := range map[string]string{
		"bash":       "notifyd.bash",
		"zsh":        "_notifyd",
		"fish":       "notifyd.fish",
		"powershell": "notifyd.ps1",
	} {
		script, err := exec.CommandContext(ctx, program, "completion", shell).Output()
		if err != nil {
			return fmt.Errorf("completion for %s: %w", shell, err)
		}
		if err := os.WriteFile(filepath.Join(completions, name), script, 0o600); err != nil {
			return err
		}
	}
	return nil
}
