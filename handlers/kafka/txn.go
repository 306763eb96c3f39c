package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
)

// transact writes records in a transaction: all of them, or none. If the
// transaction could not be ended, transact drops the client; the next one takes
// over its transactional id, which aborts the transaction and fences records
// still on their way.
func (p *producer) transact(b *batch, todo []int) {
	if err := p.client.BeginTransaction(); err != nil {
		p.close()
		b.failAll(todo, err)
		return
	}

	p.send(b, todo)
	reason := b.firstError(todo)
	if reason == nil {
		err := p.end(b.ctx, kgo.TryCommit)
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

	others := reason // of a record: it is tried again without the record
	isBlind := isBlind(b, todo)
	if isBlind {
		p.close() // the next client asks for the rights to all topics
	} else {
		b.h.refused.noteFailed(b, todo)
	}

	if b.ownTopic(reason) {
		others = &spoiltError{reason}
	}

	for _, i := range todo {
		if b.errs[i] == nil || isBlind {
			b.fail(i, others)
		}
	}
}

// end ends a transaction whose records are all answered. EndTransaction asks only the partitions that the client
// has stored whether there is anything to end. Records to a topic that is new to the client may be answered before
// its partitions are stored (kgo, storePartitionsUpdate): such a transaction would be aborted, or left open, and
// EndTransaction would return nil. AbortBufferedRecords takes the lock under which they are stored, and as no record
// is left it aborts none.
func (p *producer) end(ctx context.Context, try kgo.TransactionEndTry) error {
	if err := p.client.AbortBufferedRecords(ctx); err != nil {
		return err
	}
	return p.client.EndTransaction(ctx, try)
}

// spoiltError is the failure of a record whose transaction was aborted for another record, or for a topic that may
// be another record's. It does not wrap the reason, which decides nothing about this record.
type spoiltError struct{ reason error }

// Error names the reason.
func (e *spoiltError) Error() string { return "the transaction was aborted: " + e.reason.Error() }

// topics counts the topics of records.
func (p *producer) topics(todo []int) int {
	names := make(map[string]bool)
	for _, i := range todo {
		names[p.records[i].Topic] = true
	}
	return len(names)
}

// abort ends the transaction that reason has spoilt.
func (p *producer) abort(b *batch, reason error) {
	p.unchecked = p.unchecked || !isContent(reason)
	if b.ctx.Err() != nil || isFatal(reason) {
		p.close() // too late to wait for a broker that did not answer before
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, endWithin)
	defer cancel()
	if err := p.end(ctx, kgo.TryAbort); err != nil {
		p.close()
	}
}

// firstError returns the most informative error of todo: a fault of a record rather
// than the errors of records that were not tried because of it.
func (b *batch) firstError(todo []int) (first error) {
	if b.errs == nil {
		return nil
	}

	for _, i := range todo {
		err := b.errs[i]
		if err == nil {
			continue
		}
		if first == nil || isContent(first) && !isContent(err) {
			first = err
		}
	}

	return first
}
