package idempotency

import (
	"context"
	"errors"
	"time"
)

// State is what a store knows of a key.
type State int

// The states of a key.
const (
	// Taken says that the key was free and is now held by this claim.
	Taken State = iota + 1
	// InProgress says that another claim holds the key.
	InProgress
	// Done says that there is an answer.
	Done
)

// Claim is one request's wish to have a key, and later its right to it.
type Claim struct {
	// Key tells the scope and the key of the request: 64 hexadecimal digits.
	Key string
	// Token is of this claim alone, so that one that lost its key cannot touch
	// what another has made of it. Letters and digits.
	Token string
	// Fingerprint tells what is asked for: 64 hexadecimal digits.
	Fingerprint string
}

// Entry is what [Store.Begin] finds.
type Entry struct {
	State State
	// Fingerprint is that of the claim that holds the key or has held it. Not
	// needed where State is Taken.
	Fingerprint string
	// Answer is what [Finish] has stored, where State is Done.
	Answer []byte
}

// Action is what becomes of a key that a claim holds.
type Action int

// The actions.
const (
	// Renew holds the key for another while.
	Renew Action = iota + 1
	// Release makes the key free.
	Release
	// Finish stores an answer.
	Finish
)

// Change is what [Store.Settle] does.
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
	// ErrLost says that another claim has taken the key, or that a key to be
	// renewed is held no more.
	ErrLost = errors.New("the idempotency key is held no more")
	// ErrUnusable is wrapped around an error that another try cannot cure, such
	// as a table that is missing. All others but ErrLost are tried again.
	ErrUnusable = errors.New("the store of idempotency keys cannot be used")
)

// Store keeps keys. Each call is atomic, and times are measured by the store's
// own clock: callers hand over durations only.
//
// Calls are repeated when their answer got lost, so they must bear it: Begin
// with the token that holds the key is Taken again, with a new lease, Finish
// with the token of the answer stores it again, and Release of a key that is free
// is no error. Package storetest has these rules as tests.
type Store interface {
	// Begin takes the key of the claim for the time of lease if it is free, and
	// else says what is known of it. A key whose lease or answer has run out is
	// free.
	Begin(ctx context.Context, c Claim, lease time.Duration) (Entry, error)
	// Settle changes a key that the claim holds. Where another claim has it, or
	// has answered, nothing is changed and the error wraps [ErrLost]. Renew of a
	// key that the store has forgotten is ErrLost too; Finish of one stores the
	// answer, because nobody has given another.
	Settle(ctx context.Context, c Claim, change Change) error
}
