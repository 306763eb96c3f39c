package kafka

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/delivery"
)

// Check connects, authenticates, and asks for the topic where it is the same for
// every event, with a client of its own. It implements delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	link := &link{}
	client, err := kgo.NewClient(append(slices.Clone(h.options), kgo.WithHooks(link), kgo.RequestRetries(0))...)
	if err != nil {
		return h.describe(err)
	}
	defer client.Close()
	within, cancel := context.WithTimeoutCause(ctx, h.cfg.DeliveryTimeout, errTimeout)
	defer cancel()
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{}
	if topic := h.encoder.fixedTopic; topic != "" {
		asked := kmsg.NewMetadataRequestTopic()
		asked.Topic = new(topic)
		request.Topics = append(request.Topics, asked)
	}
	answer, err := request.RequestWith(within, client)
	if err != nil {
		return h.describe(link.explain(err))
	}
	for _, topic := range answer.Topics {
		err := kerr.ErrorForCode(topic.ErrorCode)
		if err != nil && !kerr.IsRetriable(err) || err == kerr.UnknownTopicOrPartition && !h.cfg.AllowAutoTopicCreation { //nolint:errorlint // the codes are values
			return h.describe(err)
		}
	}
	return nil
}

// MaxBytes is the largest record that is sent. It implements delivery.Sizer.
func (h *Handler) MaxBytes() int { return h.cfg.MaxMessageBytes }

var (
	_ delivery.Checker = (*Handler)(nil)
	_ delivery.Sizer   = (*Handler)(nil)
)
