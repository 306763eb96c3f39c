//go:build linux || darwin

package pgserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// memoryLine is the line of postmaster.pid with the key and the id of the
// server's System V shared memory segment, counted from 0.
const memoryLine = 6

// freeMemory removes the small shared memory segment of a server that was killed and not
// started again: otherwise it stays until the machine restarts, and the kernel allows a
// few thousand. After an orderly end postmaster.pid is gone.
func freeMemory(dataDir string, account privateserver.Account) error {
	b, err := os.ReadFile(filepath.Join(dataDir, "postmaster.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("free the memory of PostgreSQL: %w", err)
	}

	lines := strings.Split(string(b), "\n")
	if len(lines) <= memoryLine {
		return nil // killed before it had a segment
	}
	fields := strings.Fields(lines[memoryLine])
	if len(fields) != 2 {
		return nil
	}

	id, err := strconv.Atoi(fields[1])
	if err != nil {
		return fmt.Errorf("free the memory of PostgreSQL: %w", err)
	}
	return removeSegment(id, account.UID())
}

// removeSegment removes a segment only if it belongs to the server's account: the id comes
// from a file that this account can write, and this process may be root.
func removeSegment(id, owner int) error {
	var desc unix.SysvShmDesc
	_, err := unix.SysvShmCtl(id, unix.IPC_STAT, &desc)
	if err == nil && int(desc.Perm.Uid) == owner {
		_, err = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}

	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EIDRM) {
		return fmt.Errorf("free the memory of PostgreSQL: %w", err)
	}
	return nil
}
