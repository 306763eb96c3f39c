package testenv

import (
	"os"
	"path/filepath"
	"testing"
)

// ReadFile returns the text of a file.
func ReadFile(tb testing.TB, path string) string {
	tb.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// WriteFile writes a file, and makes the directories above it that do not exist. It returns the path.
func WriteFile(tb testing.TB, path, text string) string {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}
