package sqs

import (
	"context"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/notifyd/notifyd/handlers/internal/awsapi"
)

// begin returns the function that sends a request to the queue. It asks SQS for the
// URL of the queue if necessary.
func (h *Handler) begin(ctx context.Context) (func(context.Context, []*awsapi.Message) ([]awsapi.Answer, error), error) {
	queue, err := h.queueURL(ctx)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, messages []*awsapi.Message) ([]awsapi.Answer, error) {
		return h.send(ctx, queue, messages)
	}, nil
}

func (h *Handler) send(ctx context.Context, queue string, messages []*awsapi.Message) ([]awsapi.Answer, error) {
	out, err := h.client.SendMessageBatch(ctx, &awssqs.SendMessageBatchInput{QueueUrl: aws.String(queue), Entries: input(messages)})
	if err != nil {
		return nil, err
	}

	answers := make([]awsapi.Answer, len(messages))
	for _, ok := range out.Successful {
		awsapi.Answered(answers, ok.Id, awsapi.Answer{Taken: true})
	}

	for _, failed := range out.Failed {
		awsapi.Answered(answers, failed.Id, awsapi.Answer{Refused: &awsapi.Reason{
			Code: aws.ToString(failed.Code), Text: aws.ToString(failed.Message), Ours: failed.SenderFault,
		}})
	}

	return answers, nil
}

func input(messages []*awsapi.Message) []types.SendMessageBatchRequestEntry {
	all := make([]types.SendMessageBatchRequestEntry, len(messages))
	for n, m := range messages {
		in := types.SendMessageBatchRequestEntry{
			Id: aws.String(strconv.Itoa(n)), MessageBody: aws.String(m.Body),
			MessageAttributes: make(map[string]types.MessageAttributeValue, len(m.Attributes)),
		}

		for _, a := range m.Attributes {
			in.MessageAttributes[a.Name] = types.MessageAttributeValue{
				DataType:    aws.String(awsapi.StringType),
				StringValue: aws.String(a.Value),
			}
		}

		if m.Group != "" {
			in.MessageGroupId = aws.String(m.Group)
		}
		if m.DedupID != "" {
			in.MessageDeduplicationId = aws.String(m.DedupID)
		}

		all[n] = in
	}

	return all
}
