package kafka

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
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
	others := reason // of a record: it is tried again without the record
	// A broker that refuses a topic to a transaction refuses all of it, with the same error: whose topic it is does
	// not show.
	blind := b.ownTopic(reason) && p.topics(todo) > 1 &&
		!slices.ContainsFunc(todo, func(i int) bool { return !errors.Is(b.errs[i], kerr.TopicAuthorizationFailed) })
	if blind {
		p.close() // the next client asks for the rights to all topics
	}
	if b.ownTopic(reason) {
		others = &spoiltError{reason}
	}
	for _, i := range todo {
		if b.errs[i] == nil || blind {
			b.fail(i, others)
		}
	}
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

// permitted fails the records of topics that this user may not write, where topics depend on the event, and returns
// the others: in a transaction such a record would fail all. It asks for topics that the client has not written yet.
// A broker that does not tell is taken to permit.
func (p *producer) permitted(b *batch, todo []int) []int {
	if b.h.encoder.fixedTopic != "" {
		return todo
	}
	request := kmsg.NewPtrMetadataRequest()
	request.IncludeTopicAuthorizedOperations, request.AllowAutoTopicCreation = true, false
	asked := make(map[string]bool)
	for _, i := range todo {
		if name := p.records[i].Topic; !p.known[name] && !asked[name] {
			asked[name] = true
			topic := kmsg.NewMetadataRequestTopic()
			topic.Topic = new(name)
			request.Topics = append(request.Topics, topic)
		}
	}
	if len(asked) == 0 {
		return todo
	}
	answer, err := request.RequestWith(b.ctx, p.client)
	if err != nil {
		return todo // the error shows when the records are sent
	}
	clear(asked)
	for _, topic := range answer.Topics {
		const write = 1 << kmsg.ACLOperationWrite
		mute := topic.AuthorizedOperations == math.MinInt32
		if topic.Topic != nil && (topic.ErrorCode == kerr.TopicAuthorizationFailed.Code || topic.ErrorCode == 0 && !mute && topic.AuthorizedOperations&write == 0) {
			asked[*topic.Topic] = true
		}
	}
	left := make([]int, 0, len(todo))
	for _, i := range todo {
		if asked[p.records[i].Topic] {
			b.fail(i, kerr.TopicAuthorizationFailed)
			continue
		}
		left = append(left, i)
	}
	return left
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
	if err := p.client.EndTransaction(ctx, kgo.TryAbort); err != nil {
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
		if err := b.errs[i]; err != nil && (first == nil || isContent(first) && !isContent(err)) {
			first = err
		}
	}
	return first
}
