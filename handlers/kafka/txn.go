package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
)

// transact writes records in a transaction: all of them, or none. A client whose
// transaction could not be ended is let go of; the next one takes over its
// transactional id, which aborts the transaction and fences records still on
// their way.
func (p *producer) transact(b *batch, todo []int) {
	if err := p.client.BeginTransaction(); err != nil {
		p.close()
		b.failAll(todo, err)
		return
	}
	p.send(b, todo)
	reason := b.firstError(todo)
	if reason == nil {
		err := p.client.EndTransaction(b.ctx, kgo.TryCommit)
		switch {
		case err == nil:
			return
		case b.ctx.Err() != nil:
			err = errUndecided // it may be committed
		}
		p.close()
		b.failAll(todo, err)
		return
	}
	p.abort(b, reason)
	for _, i := range todo {
		if b.errs[i] == nil {
			b.fail(i, reason) // one that is about a record is tried again without it
		}
	}
}

// abort ends the transaction that reason has spoilt.
func (p *producer) abort(b *batch, reason error) {
	p.suspect = p.suspect || !isContent(reason)
	if b.ctx.Err() != nil || isFatal(reason) {
		p.close() // there is no time to wait for a broker that did not answer before
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, endWithin)
	defer cancel()
	if err := p.client.EndTransaction(ctx, kgo.TryAbort); err != nil {
		p.close()
	}
}

// firstError returns the most informative error of todo: a fault of a record before
// those of records that were not tried because of it.
func (b *batch) firstError(todo []int) (first error) {
	if b.errs == nil {
		return nil
	}
	for _, i := range todo {
		if err := b.errs[i]; err != nil && (first == nil || isContent(first) && !isContent(err)) {
			first = err
		}
	}
	return first
}
