package cli

import (
	"fmt"
	"strings"
)

// Count returns "1 route" or "2 routes".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "x") {
		noun += "e"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// OneLine is an error with all its mistakes, for a line of a log or a page.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// EnvironmentError is a mistake in variables of the environment.
type EnvironmentError struct{ Err error }

// Error returns the text of Err.
func (e *EnvironmentError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *EnvironmentError) Unwrap() error { return e.Err }
