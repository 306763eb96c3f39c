package delivery

import (
	"errors"
	"fmt"
	"time"
)

// Class tells whose fault a failed delivery was. It decides whether an attempt is counted and what
// happens to the event.
type Class uint8

const (
	// ClassEvent is a fault of the event, proven or suspected: the attempt
	// counts, and the event is a dead letter once its attempts are used up, or
	// at once if the error is [Permanent].
	ClassEvent Class = iota + 1
	// ClassDestination is a fault of the destination: it is down, refusing, throttling, or rejects
	// our credentials. No attempt counts and no event becomes a dead letter.
	ClassDestination
	// ClassRelay is a fault of the relay: it is stopping, lost its database, or its machine has no
	// files, ports or memory left (EMFILE and its like in the error's chain, whatever else the error
	// is marked with). The event is released as if it had never been tried.
	ClassRelay
)

// String returns "event", "destination" or "relay", the labels in the error_class column, in logs
// and in metrics.
func (c Class) String() string {
	switch c {
	case ClassEvent:
		return "event"
	case ClassDestination:
		return "destination"
	case ClassRelay:
		return "relay"
	default:
		return fmt.Sprintf("class(%d)", uint8(c))
	}
}

// MarshalText implements encoding.TextMarshaler, for logs.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Permanent marks err as a failure that no further attempt can cure: the event
// becomes a dead letter at once. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// IsPermanent reports whether err, or an error that it wraps, was marked by
// [Permanent] or has a method Permanent() bool that returns true. It reports false for
// Unclear(Permanent(err)): an unclear refusal is not yet final.
func IsPermanent(err error) bool {
	var p interface{ Permanent() bool }
	return errors.As(err, &p) && p.Permanent()
}

// Unclear marks err as a refusal that may concern this event, or every event: a gateway's 404, a missing partition, a mail
// server that rejects the greeting. Other events show whose fault the refusal was:
//
//   - The destination has taken another event since it first refused this one: the event is at fault. err then has its
//     meaning without the mark. Unclear(Permanent(err)) makes a dead letter, and Unclear(err) counts an attempt.
//   - The destination refuses several different events in a row and takes none: the destination is down, as after
//     [Unavailable]. No attempt counts, and one event at a time probes the destination until it takes one.
//   - Until then the attempt counts, and the event waits for its backoff while others are tried. The last attempt
//     makes a dead letter only if the destination has refused no other event in the meantime.
//
// Unclear(nil) is nil.
func Unclear(err error) error {
	if err == nil {
		return nil
	}
	return &unclearError{err}
}

// IsUnclear reports whether err, or an error that it wraps, was marked by [Unclear] or has a method Unclear() bool
// that returns true.
func IsUnclear(err error) bool {
	_, ok := unclear(err)
	return ok
}

// Proven returns what an unclear refusal means once the event is known to be at fault: the error below the mark of
// [Unclear]. It returns any other error as it is.
func Proven(err error) error {
	u, ok := unclear(err)
	if !ok {
		return err
	}
	return errors.Unwrap(u)
}

func unclear(err error) (marked error, ok bool) {
	var u interface {
		error
		Unclear() bool
	}
	if !errors.As(err, &u) {
		return nil, false
	}
	return u, u.Unclear()
}

// RetryAfter marks err as a failure that may be retried after d. The event waits for the backoff of the attempt if
// that is longer, so a destination cannot use up all attempts within a short time. The attempt counts. A negative d
// counts as zero. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, max(d, 0)}
}

// Unavailable marks err as a fault of the destination, not of the event: the
// lane pauses, no attempt is counted, and one event at a time probes the
// destination until it answers. An event over which the destination fails again and again while it
// answers others has itself to blame: its attempts count. Unavailable(nil) is nil.
//
// Status and console show the pause of Unavailable(RetryAfter(d, err)). The lane probes as after any other fault: a handler
// that must send nothing before the end of the pause has to refuse events until then.
func Unavailable(err error) error {
	if err == nil {
		return nil
	}
	return &unavailableError{err}
}

// IsUnavailable reports whether err, or an error that it wraps, was marked by
// [Unavailable] or has a method Unavailable() bool that returns true.
func IsUnavailable(err error) bool {
	var u interface{ Unavailable() bool }
	return errors.As(err, &u) && u.Unavailable()
}

// Unauthorized marks err as the refusal of our credentials. It is [Unavailable], with one difference: the
// destination is tried again after a minute or more, and seldom, because servers lock accounts that log in with a
// wrong password again and again. Unauthorized(nil) is nil.
func Unauthorized(err error) error {
	if err == nil {
		return nil
	}
	return &unauthorizedError{err}
}

// IsUnauthorized reports whether err, or an error that it wraps, was marked by
// [Unauthorized] or has a method Unauthorized() bool that returns true.
func IsUnauthorized(err error) bool {
	var u interface{ Unauthorized() bool }
	return errors.As(err, &u) && u.Unauthorized()
}

// Throttled marks err as the answer of a working destination that wants fewer deliveries. No attempt counts and the
// breaker stays closed, but the lane begins fewer deliveries, and none before after has passed. Pass 0 if the
// destination names no duration; a negative after counts as 0, and more than an hour as an hour. If a destination
// throttles one event repeatedly, and others not, that event waits in quarantine. Throttled(d, nil) is nil.
func Throttled(after time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &throttledError{err, max(after, 0)}
}

// IsThrottled reports whether err, or an error that it wraps, was marked by [Throttled] or has a
// method Throttled() bool that returns true. A method RetryAfter() time.Duration, if there is one,
// returns how long the destination wants no deliveries.
func IsThrottled(err error) bool {
	var t interface{ Throttled() bool }
	return errors.As(err, &t) && t.Throttled()
}

// RetryDelay returns the delay requested by [RetryAfter] or [Throttled].
func RetryDelay(err error) (time.Duration, bool) {
	var r interface{ RetryAfter() time.Duration }
	if errors.As(err, &r) {
		return r.RetryAfter(), true
	}
	return 0, false
}

type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }
func (*permanentError) Permanent() bool { return true }

type unclearError struct{ error }

func (e *unclearError) Unwrap() error { return e.error }
func (*unclearError) Unclear() bool   { return true }

// Permanent hides the mark of an error below: see [IsPermanent].
func (*unclearError) Permanent() bool { return false }

type retryAfterError struct {
	error
	delay time.Duration
}

func (e *retryAfterError) Unwrap() error             { return e.error }
func (e *retryAfterError) RetryAfter() time.Duration { return e.delay }

type unavailableError struct{ error }

func (e *unavailableError) Unwrap() error   { return e.error }
func (*unavailableError) Unavailable() bool { return true }

type unauthorizedError struct{ error }

func (e *unauthorizedError) Unwrap() error    { return e.error }
func (*unauthorizedError) Unavailable() bool  { return true }
func (*unauthorizedError) Unauthorized() bool { return true }

type throttledError struct {
	error
	after time.Duration
}

func (e *throttledError) Unwrap() error             { return e.error }
func (*throttledError) Throttled() bool             { return true }
func (e *throttledError) RetryAfter() time.Duration { return e.after }
