package file

import (
	"cmp"
	"errors"
	"io/fs"
	"syscall"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

var (
	errForeign = errors.New("the file ends amid a line that notifyd has not written")
	errKind    = errors.New("this is not a regular file")
	errLocked  = errors.New("another program has locked the file")
	errTurn    = errors.New("other batches were written until the deadline")
	errBehind  = errors.New("an earlier event of the aggregate has failed")
)

// causes is the table of errors of files. Own is for a path made of the event: the folder of a day, or a file system, may
// refuse every event. An error that is not in the table is a fault of the disk.
func causes() outcome.Table[error] {
	return outcome.Table[error]{
		{Codes: []error{syscall.ENOSPC}, Class: outcome.Unavailable, Cure: "free space or inodes on the file system"},
		{Codes: []error{syscall.EDQUOT}, Class: outcome.Unavailable, Cure: "raise the quota of this user, or free space"},
		{Codes: []error{syscall.EFBIG}, Class: outcome.Unavailable, Cure: "rotate the file, or raise the limit of its size (ulimit -f)"},
		{
			Codes: []error{syscall.EACCES, syscall.EPERM},
			Class: outcome.Unavailable,
			Own:   outcome.UnclearRetry,
			Cure:  "allow this user to write to the file and to its folder",
		},
		{
			Codes: []error{syscall.EROFS},
			Class: outcome.Unavailable,
			Cure:  "the file system is read-only: mount it for writing, and check the disk",
		},
		{Codes: []error{syscall.ENOENT}, Class: outcome.Unavailable, Cure: "make the folder, or mount its disk"},
		{
			Codes: []error{syscall.EISDIR, syscall.ENOTDIR, syscall.ELOOP, errKind},
			Class: outcome.Unavailable,
			Own:   outcome.UnclearRetry,
			Cure:  "path must name a file in a folder; for pipes and terminals use type: log",
		},
		{Codes: []error{syscall.ENAMETOOLONG}, Class: outcome.Unavailable, Own: outcome.Unclear, Cure: "shorten path"},
		{
			Codes: []error{syscall.EINVAL},
			Class: outcome.Unavailable,
			Own:   outcome.UnclearRetry,
			Cure:  "the file system may not allow this name",
		},
		{Codes: []error{syscall.EIO}, Class: outcome.Unavailable, Cure: "check the disk"},
		{
			Codes: []error{errLocked},
			Class: outcome.Unavailable,
			Cure:  "look for a relay that hangs: fuser names the processes that have the file open",
		},
		{
			Codes: []error{syscall.ENOLCK, errors.ErrUnsupported},
			Class: outcome.Unavailable,
			Cure:  "path must be on a file system with locks (flock)",
		},
		{Codes: []error{errForeign}, Class: outcome.Unavailable, Cure: "name another file in path, or end its last line"},
	}
}

// failed returns the error of the events of a file. A path made of an event may be at fault if the file cannot be
// opened, but not if no file can be made in the folder that all paths share.
func (h *Handler) failed(err error) error {
	bad, isPath := errors.AsType[*fs.PathError](err)
	opening := isPath && (bad.Op == "open" || bad.Op == "mkdir")
	class, cure := outcome.Match(causes(), h.fixed == "" && opening, err)

	if class != outcome.Unknown && class != outcome.Unavailable && tryFolder(h.files.root) != nil {
		class = outcome.Unavailable
	}

	f := outcome.Failure{Err: err, Cure: cure}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		f.Code = errno
	}

	if isPath && h.fixed == "" {
		f.Text = bad.Op + ": " + bad.Err.Error() // a path made of a payload does not belong into logs
	}

	return cmp.Or(class, outcome.Unavailable).Mark(0, h.out.Line(f))
}
