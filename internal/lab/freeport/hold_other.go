//go:build !linux

package freeport

// hold does nothing: only Linux has abstract sockets.
func hold(int) (bool, error) { return true, nil }
