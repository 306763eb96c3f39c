package kafka

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/delivery"
)

// Check connects with a separate client, authenticates, asks for the topic if the topic is the same for every event, and
// connects to the brokers that lead its partitions. It implements delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	link := newLink(h.cfg)
	client, err := kgo.NewClient(append(slices.Clone(h.options), kgo.WithHooks(link), kgo.RequestRetries(0))...)
	if err != nil {
		return h.describe(err)
	}
	defer client.Close()

	within, cancel := context.WithTimeoutCause(ctx, h.cfg.DeliveryTimeout, errTimeout)
	defer cancel()

	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{}

	for _, topic := range []string{h.encoder.fixedTopic, h.cfg.PositionsTopic} {
		if topic == "" {
			continue
		}
		asked := kmsg.NewMetadataRequestTopic()
		asked.Topic = new(topic)
		request.Topics = append(request.Topics, asked)
	}

	answer, err := request.RequestWith(within, client)
	if err != nil {
		return h.describe(link.explain(err))
	}

	for _, topic := range answer.Topics {
		if topic.Topic == nil || *topic.Topic != h.encoder.fixedTopic {
			continue // of the positions: see checkPositions
		}

		err := kerr.ErrorForCode(topic.ErrorCode)
		isFinal := err != nil && !kerr.IsRetriable(err)
		isMissing := err == kerr.UnknownTopicOrPartition && !h.cfg.AllowAutoTopicCreation //nolint:errorlint // the codes are values
		if isFinal || isMissing {
			return h.describe(err)
		}
	}

	if err := checkLeaders(within, client, answer, h.encoder.fixedTopic != ""); err != nil {
		return h.describe(link.explain(err))
	}

	if h.cfg.ExactlyOnce || h.cfg.Transactional {
		if err := checkTransactions(within, client); err != nil {
			return h.describe(link.explain(err))
		}
	}

	if h.cfg.ExactlyOnce {
		if err := h.checkPositions(within, client); err != nil {
			return h.describe(link.explain(err))
		}
	}

	if err := h.checkRegistry(within); err != nil {
		return h.describe(err)
	}

	return nil
}

// checkTransactions asks a broker whether it knows the requests of transactions. Clusters that speak the protocol of Kafka
// may lack them: Event Hubs has them in some tiers.
func checkTransactions(ctx context.Context, client *kgo.Client) error {
	answer, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, needed := range []kmsg.Key{kmsg.InitProducerID, kmsg.AddPartitionsToTxn, kmsg.EndTxn} {
		known := func(k kmsg.ApiVersionsResponseApiKey) bool { return k.ApiKey == int16(needed) }
		if !slices.ContainsFunc(answer.ApiKeys, known) {
			return fmt.Errorf("%w: a broker does not know the request %s", errNoTransactions, needed.Name())
		}
	}
	return nil
}

// DescribeCheck implements delivery.CheckDescriber.
func (h *Handler) DescribeCheck() (tested, untested string) {
	switch {
	case h.encoder.fixedTopic == "":
		tested = "the connection to each broker and the credentials if there are any"
		untested = "the topics, which depend on the event, and the right to write to them"
	case h.cfg.AllowAutoTopicCreation:
		tested = "the connection and the credentials if there are any"
		untested = "the topic, which the broker may create, and the right to write to it"
	default:
		tested = "the connection, the credentials if there are any, that the topic exists, and that its leaders can be reached"
		untested = "the right to write to it"
	}

	switch {
	case h.registry == nil:
		return tested, untested
	case h.encoder.schemas.fixed(h.encoder.fixedTopic) == schemaRef{}:
		return tested + "; that the schema registry answers", untested + "; the schemas, which depend on the event"
	default:
		return tested + "; that the schema registry has the schema", untested + "; that payloads are as it says"
	}
}

// MaxBytes is the largest record that is sent. It implements delivery.Sizer.
func (h *Handler) MaxBytes() int {
	if h.encoder.message.Renders() {
		return 0 // the size of the payload says nothing about the body
	}
	return h.cfg.MaxMessageBytes
}

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
	_ delivery.Sizer          = (*Handler)(nil)
)
