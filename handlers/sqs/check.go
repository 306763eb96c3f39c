package sqs

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

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
	return h.conn.Ask(ctx, func(ctx context.Context) error {
		_, err := h.client.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{
			QueueUrl: aws.String(queue), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn},
		})
		return err
	})
}

// DescribeCheck implements delivery.CheckDescriber.
func (*Handler) DescribeCheck() (tested, untested string) {
	return "the credentials, and that the queue exists if the policy allows asking", "the right to send"
}

// MaxBytes is the limit of SQS. It implements delivery.Sizer.
func (h *Handler) MaxBytes() int { return h.encoder.MaxBytes() }

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
	_ delivery.Sizer          = (*Handler)(nil)
)
