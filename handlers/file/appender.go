package file

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/notifyd/notifyd/handlers/internal/jsonline"
)

const (
	// The archive is for its owner and a group, as logs are.
	fileMode, folderMode = 0o640, 0o750
	// lockEvery is how often a lock that another holds is tried, and lockWithin how long one batch waits for all its locks: far
	// above the time of a batch.
	lockEvery, lockWithin = 5 * time.Millisecond, 20 * time.Second
	// block is how much is read at once while the end of the last line is looked for.
	block = 64 << 10
)

// appender is an open file.
type appender struct {
	f    *os.File
	info fs.FileInfo
	size int64 // where the last line ends, as far as this handler knows; -1 if it does not
	use  int64 // the number of the last use
}

// files are those that are open. One batch uses them at a time.
type files struct {
	root string               // the folder that must exist
	open map[string]*appender // by path; paths that lead to the same file share one
	uses int64                // counts uses
	sync func(string) error   // syncFolder
}

// shrink closes the files that were not used for longest, for some others to be opened.
func (s *files) shrink(needed int) {
	for len(s.open) > maxOpen-needed {
		oldest := ""
		for path, a := range s.open {
			if oldest == "" || a.use < s.open[oldest].use {
				oldest = path
			}
		}
		s.forget(oldest)
	}
}

// acquire returns the open file at path, locked, and ready for the next line. It opens the file again if logrotate has
// renamed it. The caller unlocks the file. patience is how long the batch may still wait for locks.
func (s *files) acquire(ctx context.Context, path string, patience *time.Duration) (*appender, error) {
	for {
		a := s.open[path]
		if a == nil {
			var err error
			a, err = s.openAt(path)
			if err != nil {
				return nil, err
			}
			s.open[path] = a
		}

		s.uses++
		a.use = s.uses

		if err := a.lock(ctx, patience); err != nil {
			return nil, err
		}

		if !a.isAt(path) {
			s.forget(path)
			continue
		}

		if err := a.repair(); err != nil {
			s.drop(a)
			return nil, err
		}

		if a.size == 0 {
			if err := s.syncFolders(filepath.Dir(path)); err != nil {
				return nil, err
			}
		}

		return a, nil
	}
}

// openAt opens the file at path, and makes it, with folders below the root, if it is not there. A file that is open already, by
// a link or by a name in other letters, is not opened again: the lock of the one would exclude the other.
func (s *files) openAt(path string) (*appender, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.makeFolders(filepath.Dir(path)); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, fileMode)
	}

	var info fs.FileInfo
	if err == nil {
		info, err = f.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = &fs.PathError{Op: "open", Path: path, Err: errKind}
		}
	}

	if err != nil {
		if f != nil {
			_ = f.Close() // nothing was written
		}
		return nil, err
	}

	for _, a := range s.open {
		if os.SameFile(a.info, info) {
			_ = f.Close() // nothing was written
			return a, nil
		}
	}

	return &appender{f: f, info: info, size: -1}, nil
}

// makeFolders makes a folder and those above it, down from the root, which must be there: a folder on a disk that is not
// mounted is not made on another.
func (s *files) makeFolders(folder string) error {
	if _, err := os.Stat(folder); folder == s.root || !errors.Is(err, fs.ErrNotExist) {
		return nil // making the file reports other faults
	}
	if err := s.makeFolders(filepath.Dir(folder)); err != nil {
		return err
	}
	if err := os.Mkdir(folder, folderMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// syncFolders synchronizes the folder of a file without lines, and all folders above it up to the root. Their creator,
// perhaps a dead relay, may not have synchronized them.
func (s *files) syncFolders(folder string) error {
	for {
		if err := s.sync(folder); err != nil {
			return err
		}
		above := filepath.Dir(folder)
		if folder == s.root || folder == above {
			return nil
		}
		folder = above
	}
}

// syncFolder makes a new entry of a folder survive a crash.
func syncFolder(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	return f.Sync()
}

// forget takes a path from its file, and closes the file if no other path leads to it.
func (s *files) forget(path string) {
	a := s.open[path]
	delete(s.open, path)
	for _, other := range s.open {
		if other == a {
			return
		}
	}
	s.drop(a)
}

// drop closes a file. What was acknowledged is synchronized.
func (s *files) drop(a *appender) {
	_ = a.f.Close() // nothing that counts is left to write
	maps.DeleteFunc(s.open, func(_ string, other *appender) bool { return other == a })
}

func (s *files) close() {
	for _, a := range s.open {
		s.drop(a)
	}
}

// lock waits until no other relay or destination holds the lock, and takes the wait off patience. The error is [errLocked],
// also at ctx's deadline, or the cause of a ctx that was canceled.
func (a *appender) lock(ctx context.Context, patience *time.Duration) error {
	free, err := tryLock(a.f)
	if free || err != nil {
		return err
	}

	begin := time.Now()
	defer func() { *patience -= time.Since(begin) }()
	end := time.NewTimer(*patience)
	defer end.Stop()
	tick := time.NewTicker(lockEvery)
	defer tick.Stop()

	for {
		select {
		case <-tick.C:
			if free, err := tryLock(a.f); free || err != nil {
				return err
			}
			continue
		case <-end.C:
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return context.Cause(ctx)
			}
		}

		return &fs.PathError{Op: "lock", Path: a.f.Name(), Err: errLocked}
	}
}

// unlock releases the lock. Closing the file has released it already.
func (a *appender) unlock() { unlock(a.f) }

// isAt reports whether the file is still the one at path.
func (a *appender) isAt(path string) bool {
	there, err := os.Stat(path)
	return err == nil && os.SameFile(a.info, there)
}

// repair makes the file end with a newline. A line of notifyd without its newline gets it. Half a line of notifyd is removed: a
// crash has left it, amid a batch that was not acknowledged. Half a line of another program is an error. A file that ends where
// this handler has left it needs no repair.
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
		end, err = a.finish(end, size)
		if err != nil {
			return err
		}
	}

	a.size = end
	return nil
}

// finish adds a newline to the line that begins at from, or removes it, and returns where the file ends then.
func (a *appender) finish(from, size int64) (int64, error) {
	own, err := a.isOwn(from, size)
	if err != nil {
		return 0, err
	}

	if !own {
		return 0, &fs.PathError{Op: "append", Path: a.f.Name(), Err: errForeign}
	}

	whole, err := a.isWhole(from, size)
	if err != nil {
		return 0, err
	}

	if whole {
		_, err = a.f.WriteString("\n")
		return size + 1, err
	}

	return from, a.f.Truncate(from)
}

// isOwn reports whether notifyd wrote the bytes between the last newline and the end of the file. After a loss of power
// some file systems have zeros in place of data that was not synchronized: zeros alone are from notifyd if the line
// before them is.
func (a *appender) isOwn(end, size int64) (bool, error) {
	begin, err := a.read(end, min(size, end+int64(len(jsonline.Prefix))))
	if err != nil {
		return false, err
	}

	begin = bytes.TrimRight(begin, "\x00")
	if len(begin) > 0 || end == 0 {
		return len(begin) > 0 && bytes.HasPrefix([]byte(jsonline.Prefix), begin), nil
	}

	before, err := a.lineEnd(end - 1)
	if err != nil {
		return false, err
	}

	begin, err = a.read(before, min(end, before+int64(len(jsonline.Prefix))))
	return string(begin) == jsonline.Prefix, err
}

// isWhole reports whether the text from an offset to the end of the file is a whole line but for its newline.
func (a *appender) isWhole(from, size int64) (bool, error) {
	last, err := a.read(size-1, size)
	if err != nil || last[0] != '}' {
		return false, err
	}
	line, err := a.read(from, size)
	return json.Valid(line), err
}

// read returns the bytes of the file in [from, to).
func (a *appender) read(from, to int64) ([]byte, error) {
	b := make([]byte, to-from)
	_, err := a.f.ReadAt(b, from)
	return b, err
}

// lineEnd returns the offset behind the last newline before size, or 0 without a newline.
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

// append writes lines and synchronizes the file. After a failure it removes the lines.
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
