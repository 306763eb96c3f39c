// Package field makes and reads the errors about single settings: [*handlers.FieldError]. The daemon prints each
// with file, line and column.
package field

import (
	"errors"

	"github.com/notifyd/notifyd/handlers"
)

// formattedError is an error that knows its format.
type formattedError struct {
	error

	format string
}

// Unwrap returns the formatted error.
func (e formattedError) Unwrap() error { return e.error }

// Errorf returns a [*handlers.FieldError] about the setting at path. [Own] returns its format.
func Errorf(path, format string, args ...any) error {
	return &handlers.FieldError{Path: path, Err: formatted(format, args...)}
}

// Own returns the format of the first [*handlers.FieldError] in err's chain, or "" if it is unknown. The words of a
// format are not secret, even if a secret contains the same words.
func Own(err error) string {
	if fe, ok := errors.AsType[*handlers.FieldError](err); ok {
		if f, ok := fe.Err.(formattedError); ok { //nolint:errorlint // the wrapped error has another format
			return f.format
		}
	}
	return ""
}

// Split flattens the result of errors.Join, however deep, so that each mistake can be printed on a separate line.
// Split(nil) is nil.
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

// Path returns the path of the first [*handlers.FieldError] in err's chain, or "" without one.
func Path(err error) string {
	if fe, ok := errors.AsType[*handlers.FieldError](err); ok {
		return fe.Path
	}
	return ""
}
