package outcome

import "errors"

// RefusalError is an answer that refuses a request over the events in it: none of them was taken. A batch finds out which
// event it is about.
type RefusalError struct {
	// Class is the class of the event, once it is alone in the request.
	Class Class
	// Err describes the refusal.
	Err error
}

// Error returns the text of Err.
func (r *RefusalError) Error() string { return r.Err.Error() }

// Unwrap returns Err.
func (r *RefusalError) Unwrap() error { return r.Err }

// IsRefusal reports whether a [RefusalError] is in err's chain.
func IsRefusal(err error) bool {
	_, ok := errors.AsType[*RefusalError](err)
	return ok
}

// Alone marks the failure of a request that had one event.
func Alone(err error) error {
	if r, ok := errors.AsType[*RefusalError](err); ok {
		return r.Class.Mark(0, err)
	}
	return err
}
