// Package field names the setting of a configuration mistake, so that the caller can print
// the mistake with file, line and column.
package field

import (
	"errors"
	"fmt"
)

// Error is a mistake in one setting.
type Error struct {
	// Path is the setting's key, with dots between levels and numbers for
	// list elements: "to", "backoff.initial", "routes.2.match".
	Path string
	// Err says what is wrong and how to fix it, without repeating the path.
	Err error

	// own is what of the text was written by us: none of it is a secret.
	own string
}

// Errorf returns an [Error] about the setting at path.
func Errorf(path, format string, args ...any) error {
	return &Error{Path: path, Err: fmt.Errorf(format, args...), own: format}
}

// Own returns the format that the text was made with, "" if it is not known: its words
// are no secrets, even where a secret has them, too.
func (e *Error) Own() string { return e.own }

// Error returns "path: what is wrong".
func (e *Error) Error() string { return e.Path + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Split flattens the result of errors.Join, however deep, so that each mistake
// can be printed on a line of its own. Split(nil) is nil.
func Split(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, Split(e)...)
	}
	return all
}

// Path returns the path of the first [Error] in err's chain, "" if there is none.
func Path(err error) string {
	if fe, ok := errors.AsType[*Error](err); ok {
		return fe.Path
	}
	return ""
}
