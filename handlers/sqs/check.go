package sqs

import (
	"context"
	"errors"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/notifyd/notifyd/delivery"
)

// Check asks for the queue's ARN, which takes credentials and a queue that exists.
// A policy that allows sending and not asking passes. It implements
// delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	queue, err := h.queueURL(ctx)
	if err != nil {
		return err
	}
	rctx, cancel := h.requestContext(ctx)
	defer cancel()
	_, err = h.client.GetQueueAttributes(rctx, &awssqs.GetQueueAttributesInput{
		QueueUrl: aws.String(queue), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn},
	})
	if err == nil || isAccessDenied(err) {
		return nil
	}
	return h.judge(ctx, rctx, err)
}

// isAccessDenied reports whether SQS accepts the credentials and refuses the question.
func isAccessDenied(err error) bool {
	var api smithy.APIError
	op := innermost(err)
	return errors.As(err, &api) && op != nil && op.Service() == awssqs.ServiceID && strings.Contains(api.ErrorCode(), "AccessDenied")
}

// DescribeCheck implements delivery.CheckDescriber.
func (*Handler) DescribeCheck() (tested, untested string) {
	return "the credentials, and that the queue exists if the policy allows asking", "the right to send"
}

// MaxBytes is the limit of SQS. It implements delivery.Sizer.
func (h *Handler) MaxBytes() int {
	if h.encoder.message.Renders() {
		return 0 // the size of the payload says nothing about the body
	}
	return maxBytes
}

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
	_ delivery.Sizer          = (*Handler)(nil)
)
