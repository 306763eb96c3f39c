//go:build !linux

package systemd

// monotonicMicroseconds: there is no systemd here to ask for it.
func monotonicMicroseconds() int64 { return 0 }
