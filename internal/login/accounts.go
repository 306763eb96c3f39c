package login

import (
	"context"
	"sync"
)

// Accounts shares refusals between the parts of a program that log in with the same credentials. A server counts the failures of an
// account, and not of a part. The zero value is ready, and safe for concurrent use.
type Accounts struct {
	mu  sync.Mutex
	all map[string]*account
}

// account holds the results of logins with one set of credentials.
type account struct {
	Gate
	turn     chan struct{} // capacity 1: the right to log in until a login was accepted
	accepted chan struct{} // closed while the last login was accepted; guarded by Accounts.mu
}

// maxAccounts bounds memory: temporary passwords are new credentials each.
const maxAccounts = 256

type key struct{}

// With returns a context in which logins share refusals.
func With(ctx context.Context, a *Accounts) context.Context { return context.WithValue(ctx, key{}, a) }

// Shared runs connect with the [Accounts] of ctx: one login at a time until one was accepted, and none after a refusal until the next one
// is due, which it returns in place of connect's error. isRefusal reports whether an error of connect is a refusal of the credentials.
func Shared(ctx context.Context, who string, isRefusal func(error) bool, connect func() error) error {
	all, _ := ctx.Value(key{}).(*Accounts)
	if all == nil {
		return connect()
	}

	a, accepted := all.of(who)
	select {
	case <-accepted:
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	if err := a.Refusal(who); err != nil {
		return err
	}

	err := connect()
	switch {
	case err == nil:
		a.Accepted()
		all.set(a, true)
	case isRefusal(err):
		a.Refused(who, err)
		all.set(a, false)
	}

	return err
}

// of returns the account of some credentials, and a channel that is closed once a login was accepted.
func (s *Accounts) of(who string) (a *account, accepted <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()

	a = s.all[who]
	if a != nil {
		return a, a.accepted
	}
	if s.all == nil || len(s.all) >= maxAccounts {
		s.all = make(map[string]*account)
	}

	a = &account{turn: make(chan struct{}, 1), accepted: make(chan struct{})}
	s.all[who] = a

	return a, a.accepted
}

// set records whether the last login was accepted. An acceptance lets all that wait log in at once.
func (s *Accounts) set(a *account, accepted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	select {
	case <-a.accepted:
		if !accepted {
			a.accepted = make(chan struct{})
		}
	default:
		if accepted {
			close(a.accepted)
		}
	}
}
