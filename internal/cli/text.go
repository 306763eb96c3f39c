package cli

import (
	"fmt"
	"strings"
	"time"
)

// Moment returns a time as all commands print it: in UTC, to the second, such as 2026-11-28 14:03:05Z.
func Moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// Age returns a span of time as all commands print it, to two units at most: 5s, 3m12s, 27h46m, 10d.
func Age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

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
