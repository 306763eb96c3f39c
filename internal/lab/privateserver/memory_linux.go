package privateserver

import "golang.org/x/sys/unix"

// memoryRoom returns the bytes that are free in the file system in memory, 0 without one.
func memoryRoom() uint64 {
	var fs unix.Statfs_t
	if err := unix.Statfs(memoryDir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return 0
	}
	return fs.Bavail * uint64(fs.Bsize) //nolint:gosec // the size of a block is positive
}
