//go:build !linux

package systemd

// monotonicMicroseconds returns 0: no systemd runs here.
func monotonicMicroseconds() int64 { return 0 }
