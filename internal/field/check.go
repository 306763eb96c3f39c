package field

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/handlers"
)

// Under prefixes the paths of the mistakes in err, which may be joined, with path. Under(path, nil) is nil.
func Under(path string, err error) error {
	var errs []error
	for _, e := range Split(err) {
		if fe, ok := errors.AsType[*handlers.FieldError](e); ok {
			e = &handlers.FieldError{Path: path + "." + fe.Path, Err: fe.Err}
		} else {
			e = &handlers.FieldError{Path: path, Err: e}
		}
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// Word returns an error unless got is one of the known words. "" stands for the default.
func Word[T ~string](path string, got T, known ...T) error {
	if got == "" || slices.Contains(known, got) {
		return nil
	}
	words := make([]string, len(known))
	for i, word := range known {
		words[i] = string(word)
	}
	return Errorf(path, "unknown word %q: use %s", got, strings.Join(words, ", "))
}

// Between returns an error unless got is from low to high. Zero stands for the default.
func Between[T cmp.Ordered](path string, got, low, high T) error {
	var unset T
	if got == unset || got >= low && got <= high {
		return nil
	}
	return Errorf(path, "must be %v to %v, not %v", low, high, got)
}

// Timeout returns an error unless got is positive and at most most. If most is 0, got has no upper bound. A got of 0
// stands for the default, which is such.
func Timeout(path string, got, most, such time.Duration) error {
	switch {
	case got >= 0 && (most == 0 || got <= most):
		return nil
	case most == 0:
		return Errorf(path, "must be positive, such as %v", such)
	default:
		return Errorf(path, "must be above 0 and at most %v, such as %v", most, such)
	}
}

// Login returns an error unless both username and password are set, or neither. The error suggests variable for the
// password.
func Login(username string, password interface{ IsZero() bool }, variable string) error {
	switch {
	case username != "" && password.IsZero():
		return Errorf("password", "missing: username needs one, such as ${env:%s}", variable)
	case username == "" && !password.IsZero():
		return Errorf("username", "missing: password needs one")
	default:
		return nil
	}
}
