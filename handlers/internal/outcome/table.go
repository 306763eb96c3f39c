// Package outcome makes the errors that destinations return: it finds what an error or a code of a server means
// for the event, and describes it in one line without secrets, with its cure.
//
// A destination has a [Table] of its codes, finds the code in what its client returns, and leaves the rest to its
// [Destination].
package outcome

import (
	"errors"
	"slices"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// Class decides how the relay treats a failure.
type Class uint8

// Unknown is the class of a code that a table does not have. The others are the marks of package delivery.
const (
	Unknown      Class = iota // like Retry
	Retry                     // no mark: the attempt counts, and another one follows
	Permanent                 // delivery.Permanent
	Unavailable               // delivery.Unavailable
	Unauthorized              // delivery.Unauthorized
	Throttled                 // delivery.Throttled
	// Unclear is delivery.Unclear(delivery.Permanent): every event may be refused alike. Once another event was taken,
	// the event is at fault, and no retry can help.
	Unclear
	// UnclearRetry is delivery.Unclear: the same, and a retry may help.
	UnclearRetry
)

// Of returns the class of a marked error.
func Of(err error) Class {
	switch {
	case delivery.IsUnclear(err) && delivery.IsPermanent(delivery.Proven(err)):
		return Unclear
	case delivery.IsUnclear(err):
		return UnclearRetry
	case delivery.IsPermanent(err):
		return Permanent
	case delivery.IsUnauthorized(err):
		return Unauthorized
	case delivery.IsUnavailable(err):
		return Unavailable
	case delivery.IsThrottled(err):
		return Throttled
	default:
		return Retry
	}
}

// MayBeServer reports whether a marked error may be the fault of one of several servers behind a name, or of the way to
// it: the next request begins on a new connection.
func MayBeServer(err error) bool {
	return delivery.IsUnavailable(err) || delivery.IsThrottled(err) || delivery.IsUnclear(err)
}

// Mark marks err with the class. wait is the pause that the server asked for, zero if none.
func (c Class) Mark(wait time.Duration, err error) error {
	switch c {
	case Permanent:
		return delivery.Permanent(err)
	case Unavailable:
		return delivery.Unavailable(Retry.Mark(wait, err))
	case Unauthorized:
		return delivery.Unauthorized(err)
	case Throttled:
		return delivery.Throttled(wait, err)
	case Unclear:
		return delivery.Unclear(delivery.Permanent(err))
	case UnclearRetry:
		return delivery.Unclear(Retry.Mark(wait, err))
	default:
		if wait > 0 {
			return delivery.RetryAfter(wait, err)
		}
		return err
	}
}

// MayBeEvents reports whether the event may be at fault. If the server refuses several events together, the caller then
// finds out which.
func (c Class) MayBeEvents() bool {
	switch c {
	case Unavailable, Unauthorized, Throttled:
		return false
	default:
		return true
	}
}

// WithoutEvent returns the class of a request that holds no event: none is ever at fault.
func (c Class) WithoutEvent() Class {
	switch c {
	case Unauthorized, Throttled:
		return c
	default:
		return Unavailable
	}
}

// Table maps the codes of a server, or the errors of a client, to classes and cures. The first rule that has a
// code counts.
type Table[C comparable] []Rule[C]

// Rule holds the meaning of some codes.
type Rule[C comparable] struct {
	Codes []C
	// Class is the class where all events go to the same place: the topic, the channel, the URL.
	Class Class
	// Own is the class where the place is made of the event, so that the place may be wrong for this
	// event alone. Unknown is Class.
	Own Class
	// Cure tells an operator the remedy, without brackets; "" for none.
	Cure string
}

// Find returns class and cure of the first of codes that the table has. The class is Unknown if the table has no code of
// them. own reports that the place was made of the event.
func (t Table[C]) Find(own bool, codes ...C) (class Class, cure string) {
	for _, code := range codes {
		class, cure = t.first(own, func(known C) bool { return known == code })
		if class != Unknown {
			return class, cure
		}
	}
	return Unknown, ""
}

// Match is [Table.Find] for the first rule with an error that is in err's chain. What [Content] has marked is Permanent.
func Match(t Table[error], own bool, err error) (class Class, cure string) {
	if IsContent(err) {
		return Permanent, ""
	}
	return t.first(own, func(known error) bool { return errors.Is(err, known) })
}

func (t Table[C]) first(own bool, matches func(C) bool) (class Class, cure string) {
	for _, r := range t {
		if !slices.ContainsFunc(r.Codes, matches) {
			continue
		}
		if own && r.Own != Unknown {
			return r.Own, r.Cure
		}
		return r.Class, r.Cure
	}
	return Unknown, ""
}

// Answers replaces each error of a batch by its answer. Neighbours that failed alike share one answer. It returns nil if no
// event has failed.
func Answers(errs []error, answer func(error) error) []error {
	failed := false
	var last, shared error
	for i, err := range errs {
		if err == nil {
			continue
		}
		failed = true

		isOther := last == nil || last.Error() != err.Error()
		if isOther || IsContent(last) != IsContent(err) {
			last = err
			shared = answer(err)
		}
		errs[i] = shared
	}

	if !failed {
		return nil
	}
	return errs
}

// First returns the error of a batch of one event.
func First(errs []error) error {
	if errs == nil {
		return nil
	}
	return errs[0]
}
