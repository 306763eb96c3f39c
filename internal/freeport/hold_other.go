//go:build !linux

package freeport

// hold does nothing: only Linux has names that end with their process.
func hold(int) (bool, error) { return true, nil }
