package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Mistake is one mistake in a configuration file.
type Mistake struct {
	// File is the name of the file, as it was given.
	File string
	// Line and Column count from 1. Both are 0 if the file could not be read.
	Line, Column int
	// Message describes the mistake and its cure.
	Message string
}

// String returns the place and the message, such as "notifyd.yaml:14:7: unknown key".
func (m Mistake) String() string {
	if m.Line == 0 {
		return m.File + ": " + m.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", m.File, m.Line, m.Column, m.Message)
}

// Error holds all mistakes of a configuration. A command that returns it exits
// with code 78.
type Error struct {
	// Mistakes are sorted by position. There is at least one.
	Mistakes []Mistake
}

// Error returns the mistakes, one per line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Mistakes))
	for i, m := range e.Mistakes {
		lines[i] = m.String()
	}
	return strings.Join(lines, "\n")
}

// pos is a place in the file; both numbers count from 1.
type pos struct{ line, col int }

// mistakes collects the mistakes of one file.
type mistakes struct {
	file string
	all  []Mistake
	// failed holds the path of every setting with a mistake: a check that
	// looks at the setting as a whole must not report it a second time.
	failed map[string]bool
}

func newMistakes(file string) *mistakes {
	return &mistakes{file: file, failed: map[string]bool{}}
}

// add records a mistake about the setting at path, which may be "".
func (m *mistakes) add(at pos, path, format string, args ...any) {
	m.all = append(m.all, Mistake{
		File: m.file, Line: at.line, Column: at.col, Message: fmt.Sprintf(format, args...),
	})
	m.fail(path)
}

// fail records that the setting at path has a mistake that was reported already.
func (m *mistakes) fail(path string) {
	if path != "" {
		m.failed[path] = true
	}
}

// explains reports whether a mistake about path, about a part of it or about a
// setting around it is known: then its value means nothing.
func (m *mistakes) explains(path string) bool {
	if path == "" {
		return false
	}
	for p := range m.failed {
		if p == path || strings.HasPrefix(p, path+".") || strings.HasPrefix(path, p+".") {
			return true
		}
	}
	return false
}

// err returns the mistakes as an [Error], or nil without mistakes. An anchor
// that is used twice yields its mistakes twice; err keeps one of each.
func (m *mistakes) err() error {
	if len(m.all) == 0 {
		return nil
	}
	sortMistakes(m.all)
	return &Error{Mistakes: slices.Compact(m.all)}
}

func sortMistakes(all []Mistake) {
	slices.SortStableFunc(all, func(a, b Mistake) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), strings.Compare(a.Message, b.Message))
	})
}

// join appends a key to a path; the path of the whole file is "".
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// in returns " in path" for a message, or "" for the top level of the file.
func in(path string) string {
	if path == "" {
		return ""
	}
	return " in " + path
}
