package events

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/safecall"
)

// htmlPreviewer is a handler that can show its message in a browser.
type htmlPreviewer interface {
	PreviewHTML(e *delivery.Event) (string, error)
}

// openPage writes the page of a message to a file and prints the path. On a terminal it has the desktop open the file.
func openPage(cmd *cobra.Command, c *config.Config, name string, e *delivery.Event) error {
	page, err := previewHTML(c, name, e)
	if err != nil {
		return err
	}

	path, err := writePage(page)
	if err != nil {
		return fmt.Errorf("the page cannot be written: %w", err)
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), path); err != nil {
		return err
	}

	if !cli.IsTerminal(cmd.OutOrStdout()) {
		return nil
	}
	if err := show(cmd.Context(), path); err != nil {
		cmd.PrintErrf("the file was not opened: %v: open it in a browser\n", err)
	}
	return nil
}

func previewHTML(c *config.Config, name string, e *delivery.Event) (page string, err error) {
	kind, h, err := openDestination(c, name)
	if err != nil {
		return "", err
	}
	if closer, ok := h.(io.Closer); ok {
		defer func() { err = errors.Join(err, closer.Close()) }()
	}

	p, ok := delivery.As[htmlPreviewer](h)
	if !ok {
		return "", fmt.Errorf("--open shows mails, and a message of the type %q is none: leave --open out", kind)
	}

	if wrong := safecall.Call("PreviewHTML", func() { page, err = p.PreviewHTML(e) }); wrong != nil {
		return "", wrong
	}
	return page, err
}

// writePage writes a file that only this user can read. It begins with the mark by which browsers know UTF-8.
func writePage(page string) (path string, err error) {
	f, err := os.CreateTemp("", "notifyd-*.html")
	if err != nil {
		return "", err
	}
	_, err = f.WriteString("\ufeff" + page)
	return f.Name(), errors.Join(err, f.Close())
}

// show has the desktop open a file.
func show(ctx context.Context, path string) error {
	program := opener(runtime.GOOS)
	open := exec.CommandContext(ctx, program[0], append(program[1:], path)...)
	open.Stdin = os.Stdin
	open.Stdout = os.Stderr
	open.Stderr = os.Stderr
	return open.Run()
}

// opener returns the program that opens a file on a system.
func opener(system string) []string {
	switch system {
	case "darwin":
		return []string{"open"}
	case "windows":
		return []string{"rundll32", "url.dll,FileProtocolHandler"}
	default:
		return []string{"xdg-open"}
	}
}
