package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/notifyd/notifyd/handlers/internal/jsonline"
)

const (
	// The archive is for its owner and a group, as logs are.
	fileMode, folderMode = 0o640, 0o750
	// lockEvery is how often a lock that another holds is tried.
	lockEvery = 5 * time.Millisecond
	// block is how much is read at once while the end of the last line is looked for.
	block = 64 << 10
)

// appender is an open file.
type appender struct {
	f    *os.File
	size int64 // where the last line ends, as far as this handler knows; -1 if it does not
	use  int64 // the number of the last use
}

// shrink closes the files that were not used for longest, for some others to be opened.
func (h *Handler) shrink(room int) {
	for len(h.files) > maxOpen-room {
		oldest := ""
		for path, a := range h.files {
			if oldest == "" || a.use < h.files[oldest].use {
				oldest = path
			}
		}
		h.forget(oldest)
	}
}

// acquire returns the open file at path, locked, with an end at which a line can begin. It opens the file again if
// another has taken its place, as logrotate does. The caller unlocks it.
func (h *Handler) acquire(ctx context.Context, path string) (*appender, error) {
	for {
		a := h.files[path]
		if a == nil {
			f, err := h.open(path)
			if err != nil {
				return nil, err
			}
			a = &appender{f: f, size: -1}
			h.files[path] = a
		}
		h.uses++
		a.use = h.uses
		if err := a.lock(ctx); err != nil {
			return nil, err
		}
		if !a.isAt(path) {
			h.forget(path)
			continue
		}
		if err := a.repair(); err != nil {
			h.forget(path)
			return nil, err
		}
		return a, nil
	}
}

// open opens the file at path, and makes it, with folders below the root, if it is not there.
func (h *Handler) open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err := h.makeFolders(filepath.Dir(path)); err != nil {
			return nil, err
		}
		if f, err = os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, fileMode); err == nil {
			err = syncFolder(filepath.Dir(path))
		}
	}
	if err == nil {
		var info fs.FileInfo
		if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("open %s: %w", path, errKind)
		}
	}
	if err != nil {
		if f != nil {
			_ = f.Close() // nothing was written
		}
		return nil, err
	}
	return f, nil
}

// makeFolders makes a folder and those above it, down from the root, which must be there: an archive whose disk is not mounted
// must not go to another.
func (h *Handler) makeFolders(folder string) error {
	if _, err := os.Stat(folder); folder == h.root || !errors.Is(err, fs.ErrNotExist) {
		return nil // what is wrong with it shows when the file is made
	}
	above := filepath.Dir(folder)
	if err := h.makeFolders(above); err != nil {
		return err
	}
	if err := os.Mkdir(folder, folderMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncFolder(above)
}

// syncFolder has a new entry of a folder survive a crash.
func syncFolder(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	return f.Sync()
}

// lock waits until no other relay or destination has the lock.
func (a *appender) lock(ctx context.Context) error {
	var tick *time.Ticker
	for {
		free, err := tryLock(a.f)
		if free || err != nil {
			return err
		}
		if tick == nil {
			tick = time.NewTicker(lockEvery)
			defer tick.Stop()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unlock ends lock. It does nothing to a file that is closed, whose lock is gone.
func (a *appender) unlock() { unlock(a.f) }

// isAt reports whether the file is still the one at path.
func (a *appender) isAt(path string) bool {
	own, err := a.f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(own, there)
}

// repair removes half a line from the end, which a crash has left amid a batch that was not acknowledged. It fails if that is of
// another program. Only a file that another has written to is looked at.
func (a *appender) repair() error {
	info, err := a.f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if size == a.size {
		return nil
	}
	end, err := a.lineEnd(size)
	if err != nil {
		return err
	}
	if end < size {
		begin := make([]byte, min(int64(len(jsonline.Prefix)), size-end))
		if _, err := a.f.ReadAt(begin, end); err != nil {
			return err
		}
		// Some file systems fill up with zeros what was not written before the machine lost power.
		begin = bytes.TrimRight(begin, "\x00")
		if !bytes.HasPrefix([]byte(jsonline.Prefix), begin) {
			return fmt.Errorf("%s: %w", a.f.Name(), errForeign)
		}
		if err := a.f.Truncate(end); err != nil {
			return err
		}
	}
	a.size = end
	return nil
}

// lineEnd returns where the last line ends that has an end.
func (a *appender) lineEnd(size int64) (int64, error) {
	buf := make([]byte, min(block, size))
	for to := size; to > 0; {
		part := buf[:min(block, to)]
		if _, err := a.f.ReadAt(part, to-int64(len(part))); err != nil {
			return 0, err
		}
		to -= int64(len(part))
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return to + int64(i) + 1, nil
		}
	}
	return 0, nil
}

// append writes lines and has them survive a crash. After a failure it takes back what it has written.
func (a *appender) append(lines []byte) error {
	_, err := a.f.Write(lines)
	if err == nil {
		err = a.f.Sync()
	}
	if err != nil {
		_ = a.f.Truncate(a.size) // otherwise the next batch finds half a line, or copies of whole ones
		return err
	}
	a.size += int64(len(lines))
	return nil
}
