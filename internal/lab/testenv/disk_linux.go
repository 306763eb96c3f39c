package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// SmallDisk mounts a file system of the given size in memory, in bytes, and
// returns its directory, which every account can traverse. The mount needs root;
// without permission, the test is skipped, or fails if [EnvRequire] lists
// "mount". The end of the test unmounts the file system, even if it is in use.
func SmallDisk(tb testing.TB, bytes int) string {
	tb.Helper()
	top, err := os.MkdirTemp("/tmp", "notifyd-disk-") //nolint:usetesting // the directory of a test is closed to other accounts
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(top) })

	dir := filepath.Join(top, "disk")
	if err := os.Mkdir(dir, readableMode); err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(top, readableMode); err != nil {
		tb.Fatal(err)
	}

	err = unix.Mount("notifyd", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", bytes))
	if err != nil {
		err = fmt.Errorf("mount a tmpfs: %w", err)
	}
	require(tb, "mount", err)

	tb.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			tb.Errorf("unmount %s: %v", dir, err)
		}
	})

	return dir
}
