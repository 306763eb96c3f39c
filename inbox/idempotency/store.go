package idempotency

import (
	"context"
	"errors"
	"time"
)

// State is the state of a key.
type State int

// The states of a key.
const (
	// Taken: the key was free and is now held by this claim.
	Taken State = iota + 1
	// InProgress: another claim holds the key.
	InProgress
	// Done: there is an answer.
	Done
)

// Claim is one request's bid for a key, and later its hold on the key.
type Claim struct {
	// Key identifies the scope and the key of the request: 64 hexadecimal digits.
	Key string
	// Token is unique to this claim, so that a claim that has lost its key cannot
	// change the state set by another. Letters and digits.
	Token string
	// Fingerprint identifies the request: 64 hexadecimal digits.
	Fingerprint string
}

// Entry is the result of [Store.Begin].
type Entry struct {
	State State
	// Fingerprint is the fingerprint of the claim that holds the key or has held it.
	// It is not needed if State is Taken.
	Fingerprint string
	// Answer is the answer that [Finish] has stored, if State is Done.
	Answer []byte
}

// Action is a change to a key that a claim holds.
type Action int

// The actions.
const (
	// Renew extends the hold on the key.
	Renew Action = iota + 1
	// Release frees the key.
	Release
	// Finish stores an answer.
	Finish
)

// Change is the change that [Store.Settle] makes.
type Change struct {
	Action Action
	// For is how long the key is held after Renew, and the answer kept after
	// Finish.
	For time.Duration
	// Answer is stored by Finish. It is opaque, and may hold any bytes.
	Answer []byte
}

// Errors of stores.
var (
	// ErrLost means that another claim has taken the key, or that the claim to renew
	// has expired.
	ErrLost = errors.New("the idempotency key is no longer held")
	// ErrUnusable wraps an error that a retry cannot cure, such as a missing table.
	// Calls are retried after all other errors but ErrLost.
	ErrUnusable = errors.New("the store of idempotency keys cannot be used")
)

// Store keeps keys. Each call is atomic, and the store's own clock measures
// times: callers pass durations only.
//
// Calls are repeated when their answer is lost, so they must be idempotent: Begin
// with the token that holds the key is Taken again, with a new lease, Finish with
// the token of the answer stores it again, and Release of a free key is not an error.
type Store interface {
	// Begin takes the key of the claim for the duration of lease if it is free, and
	// otherwise returns its state. A key whose lease or answer has expired is free.
	Begin(ctx context.Context, c Claim, lease time.Duration) (Entry, error)
	// Settle changes a key that the claim holds. If another claim has the key, or
	// has answered, nothing is changed and the error wraps [ErrLost]. Renew of a key
	// that the store has lost is ErrLost too. Finish of such a key stores the
	// answer, because the store has no other answer.
	Settle(ctx context.Context, c Claim, change Change) error
}
