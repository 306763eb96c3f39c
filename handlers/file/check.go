package file

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// Check opens the file for writing, if it is there and the same for every event, and otherwise makes a file in its folder and
// removes it. It implements delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	if ctx.Err() != nil {
		return h.out.Ended(ctx, "")
	}

	folder := h.files.root
	if h.fixed != "" {
		f, err := os.OpenFile(h.fixed, os.O_RDWR|os.O_APPEND, 0)
		if err == nil {
			err = f.Close()
		}

		if !errors.Is(err, fs.ErrNotExist) {
			return h.checked(err)
		}
		folder = filepath.Dir(h.fixed)
	}

	return h.checked(tryFolder(folder))
}

// tryFolder makes a file in a folder and removes it.
func tryFolder(folder string) error {
	f, err := os.CreateTemp(folder, ".notifyd-check-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func (h *Handler) checked(err error) error {
	if err == nil {
		return nil
	}
	return h.failed(err)
}

// DescribeCheck implements delivery.CheckDescriber.
func (h *Handler) DescribeCheck() (tested, untested string) {
	if h.fixed == "" {
		return "that a file can be made in " + h.files.root, "the folders below it, which depend on the event"
	}
	return "that the file can be written to, or made", "the space on the disk"
}

// Preview returns the file for e, and its line.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	l, err := h.line(e)
	if err != nil {
		return "", err
	}
	return message.Preview([]message.Header{{Name: "path", Value: l.path}}, l.text[:len(l.text)-1]), nil
}

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
	_ delivery.Previewer      = (*Handler)(nil)
)
