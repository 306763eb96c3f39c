package outcome

import "errors"

// Refusal is an answer that refuses a request over the events in it: none of them was taken. A batch finds out which
// event it is about.
type Refusal struct {
	// Class is that of the event, once it is alone in the request.
	Class Class
	// Err describes the refusal.
	Err error
}

// Error returns the text of Err.
func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns Err.
func (r *Refusal) Unwrap() error { return r.Err }

// IsRefusal reports whether a [Refusal] is in err's chain.
func IsRefusal(err error) bool {
	_, ok := errors.AsType[*Refusal](err)
	return ok
}

// Alone marks the failure of a request that had one event.
func Alone(err error) error {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r.Class.Mark(0, err)
	}
	return err
}
