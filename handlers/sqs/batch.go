package sqs

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/notifyd/notifyd/delivery"
)

// batch is a call of DeliverBatch.
type batch struct {
	h       *Handler
	queue   string // its URL
	entries []*entry
	errs    []error
	blocked map[string]error // why nothing more goes to a group
}

// send sends the entries that have no error yet, in order: as many in each
// request as fit.
func (b *batch) send(ctx context.Context) {
	for next := 0; next < len(b.entries); {
		var chunk []int
		size := 0
		for ; next < len(b.entries) && len(chunk) < maxEntries; next++ {
			e := b.entries[next]
			if b.errs[next] != nil || b.isBlocked(next) {
				continue
			}
			if size += e.size; size > maxBytes {
				break
			}
			chunk = append(chunk, next)
		}
		if len(chunk) == 0 {
			continue
		}
		if err := b.request(ctx, chunk); err != nil {
			// The other entries would fail alike.
			b.fail(next, err)
			return
		}
	}
}

// isBlocked fails an entry whose group must wait for an earlier message.
func (b *batch) isBlocked(i int) bool {
	if !b.h.encoder.fifo {
		return false
	}
	err, blocked := b.blocked[b.entries[i].group]
	if blocked {
		b.errs[i] = fmt.Errorf("an earlier message of the same group has failed: %w", err)
	}
	return blocked
}

// block keeps later messages of a group back: a message that will be tried again must
// not be overtaken. A dead one is not waited for.
func (b *batch) block(i int) {
	if err := b.errs[i]; err != nil && !delivery.IsPermanent(err) {
		b.blocked[b.entries[i].group] = err
	}
}

// fail gives err to all from the entry on that have no error of their own.
func (b *batch) fail(from int, err error) {
	for i := from; i < len(b.entries); i++ {
		if b.errs[i] == nil {
			b.errs[i] = err
		}
	}
}

// request sends one request and records the answers for its messages. It returns an
// error if nothing more can be sent now.
func (b *batch) request(ctx context.Context, chunk []int) error {
	rctx, cancel := b.h.requestContext(ctx)
	defer cancel()
	out, err := b.h.client.SendMessageBatch(rctx, &awssqs.SendMessageBatchInput{
		QueueUrl: aws.String(b.queue), Entries: b.input(chunk),
	})
	if err == nil {
		b.answers(chunk, out)
		return nil
	}
	err = b.h.judge(ctx, rctx, err)
	r, isRefusal := errors.AsType[*refusal](err)
	if !isRefusal || delivery.IsUnavailable(err) || delivery.IsThrottled(err) {
		for _, i := range chunk {
			b.errs[i] = err
		}
		if isRefusal && !delivery.IsThrottled(err) {
			b.h.forget()
		}
		return err
	}
	if len(chunk) == 1 {
		b.errs[chunk[0]] = mark(r)
		b.block(chunk[0])
		return nil
	}
	// One of them is at fault: the others must not fail with it.
	for n, i := range chunk {
		if b.isBlocked(i) {
			continue
		}
		if err := b.request(ctx, chunk[n:n+1]); err != nil {
			for _, rest := range chunk[n+1:] {
				b.errs[rest] = err
			}
			return err
		}
	}
	return nil
}

func (b *batch) input(chunk []int) []types.SendMessageBatchRequestEntry {
	all := make([]types.SendMessageBatchRequestEntry, len(chunk))
	for n, i := range chunk {
		e := b.entries[i]
		in := types.SendMessageBatchRequestEntry{
			Id: aws.String(strconv.Itoa(n)), MessageBody: aws.String(e.body),
			MessageAttributes: make(map[string]types.MessageAttributeValue, len(e.attributes)),
		}
		for _, a := range e.attributes {
			in.MessageAttributes[a.Name] = types.MessageAttributeValue{DataType: aws.String(stringType), StringValue: aws.String(a.Value)}
		}
		if e.group != "" {
			in.MessageGroupId = aws.String(e.group)
		}
		if e.dedupID != "" {
			in.MessageDeduplicationId = aws.String(e.dedupID)
		}
		all[n] = in
	}
	return all
}

// errUnanswered is for a message that the answer leaves out.
var errUnanswered = errors.New("sqs: the answer names neither success nor failure of this message: maybe sent")

// answers records the answer for each message.
func (b *batch) answers(chunk []int, out *awssqs.SendMessageBatchOutput) {
	for _, i := range chunk {
		b.errs[i] = delivery.Unavailable(errUnanswered)
	}
	at := func(id *string) (int, bool) {
		n, err := strconv.Atoi(aws.ToString(id))
		if err != nil || n < 0 || n >= len(chunk) {
			return 0, false
		}
		return chunk[n], true
	}
	for _, ok := range out.Successful {
		if i, found := at(ok.Id); found {
			b.errs[i] = nil
		}
	}
	for _, failed := range out.Failed {
		if i, found := at(failed.Id); found {
			b.errs[i] = b.h.entryError(failed, len(out.Successful) > 0)
		}
	}
	for _, i := range chunk {
		b.block(i)
	}
}

// entryError judges the failure of one message. others says that the queue has taken
// other messages of the same request: then the queue works.
func (h *Handler) entryError(failed types.BatchResultErrorEntry, others bool) error { //nolint:revive // others is what the server has done
	code := aws.ToString(failed.Code)
	what, cure := faultOf(code)
	err := error(&refusal{what, h.say(code, aws.ToString(failed.Message), cure)})
	switch {
	case what == faultDestination:
		return delivery.Unavailable(err)
	case what == faultThrottled:
		return delivery.Throttled(0, err)
	case what == faultInternal || what == faultUnknown && !failed.SenderFault:
		if others {
			return err
		}
		return delivery.Unavailable(err)
	case what == faultMessage, failed.SenderFault:
		return delivery.Permanent(err)
	default:
		return err
	}
}
