package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/internal/sleep"
)

// The topic of the positions is compacted, and its first partition holds all positions: a record
// for each transaction of each shard. The last record of a shard counts.

const (
	// positionsSegment is the size of the topic's segments, in bytes. The segment that is written is
	// not compacted, and a new owner may have to read it.
	positionsSegment = 16 << 20
	// positionsReplicas is how many brokers keep the topic, where there are as many.
	positionsReplicas = 3
	// lookBack is how many records a new owner reads first: its last one is nearly always among them.
	lookBack = 10_000
	// markSuffix makes the key of the record by which a new owner finds the end of earlier
	// commits.
	markSuffix = "/opened"
)

// partitioner puts positions into the first partition of their topic, and records with a chosen partition into that. It
// leaves the rest to the other partitioner.
type partitioner struct {
	kgo.Partitioner

	positions string
	chosen    bool // records may have a partition
}

// ForTopic implements kgo.Partitioner.
func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	if topic == p.positions {
		return kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
			return func(*kgo.Record, int) int { return 0 }
		}).ForTopic(topic)
	}
	if p.chosen {
		return chosen{p.Partitioner.ForTopic(topic)}
	}
	return p.Partitioner.ForTopic(topic)
}

// topicError is an error about the topic of the positions.
type topicError struct {
	topic, cure string
	error
}

func (e *topicError) Error() string {
	return fmt.Sprintf("topic %s, which keeps the positions: %v (%s)", e.topic, e.error, e.cure)
}

func (e *topicError) Unwrap() error { return e.error }

// makeTopic is the command by which a person makes the topic.
func (p *producer) makeTopic() string {
	return fmt.Sprintf("make it: kafka-topics.sh --bootstrap-server %s --create --topic %s --partitions 1 "+
		"--replication-factor %d --config cleanup.policy=compact --config segment.bytes=%d",
		p.cfg.brokers()[0], p.cfg.PositionsTopic, positionsReplicas, positionsSegment)
}

// ensurePositions makes the topic of the positions where it is missing.
func (p *producer) ensurePositions(ctx context.Context) error {
	found, brokers, err := lookForTopic(ctx, p.client, p.cfg.PositionsTopic)
	if err != nil || found {
		return err
	}

	request := kmsg.NewPtrCreateTopicsRequest()
	request.TimeoutMillis = int32(requestTimeout.Milliseconds()) //nolint:gosec // 10 s

	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic = p.cfg.PositionsTopic
	topic.NumPartitions = 1
	topic.ReplicationFactor = int16(min(brokers, positionsReplicas)) //nolint:gosec // 3 at most
	configs := map[string]string{"cleanup.policy": "compact", "segment.bytes": strconv.Itoa(positionsSegment)}

	for name, value := range configs {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name = name
		c.Value = &value
		topic.Configs = append(topic.Configs, c)
	}

	request.Topics = append(request.Topics, topic)
	answer, err := request.RequestWith(ctx, p.client)
	if err != nil {
		return err
	}

	for i := range answer.Topics {
		err := kerr.ErrorForCode(answer.Topics[i].ErrorCode)
		switch {
		case err == nil, errors.Is(err, kerr.TopicAlreadyExists):
		default:
			return &topicError{p.cfg.PositionsTopic, p.makeTopic(), fmt.Errorf("it is missing, and could not be made: %w", err)}
		}
	}

	return nil
}

// lookForTopic returns whether a topic exists, and how many brokers there are.
func lookForTopic(ctx context.Context, client *kgo.Client, name string) (found bool, brokers int, err error) {
	request := kmsg.NewPtrMetadataRequest()
	asked := kmsg.NewMetadataRequestTopic()
	asked.Topic = &name
	request.Topics = append(request.Topics, asked)
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return false, 0, err
	}

	for i := range answer.Topics {
		switch err := kerr.ErrorForCode(answer.Topics[i].ErrorCode); {
		case err == nil, kerr.IsRetriable(err) && !errors.Is(err, kerr.UnknownTopicOrPartition):
			return true, len(answer.Brokers), nil
		case !errors.Is(err, kerr.UnknownTopicOrPartition):
			return false, 0, &topicError{name, "allow WRITE, READ and DESCRIBE on it", err}
		}
	}

	return false, len(answer.Brokers), nil
}

// mark commits a separate record, and returns its offset. The first request of the transaction
// fences earlier producers with the same id, and ends the transactions that they have left open.
// The offset is above all records that they have committed.
func (p *producer) mark(ctx context.Context, id string) (offset int64, err error) {
	if err := p.client.BeginTransaction(); err != nil {
		return 0, err
	}

	record := &kgo.Record{Topic: p.cfg.PositionsTopic, Key: []byte(id + markSuffix), Value: []byte(`{}`)}
	answer := make(chan error, 1)
	//nolint:contextcheck // a record on its way is not cancelled
	p.client.Produce(&tag{}, record, func(_ *kgo.Record, err error) { answer <- err })

	if err := p.client.Flush(ctx); err != nil {
		return 0, err
	}

	if failed := <-answer; failed != nil {
		cure := "allow WRITE, READ and DESCRIBE on it, and on the transactional id " + id
		return 0, &topicError{p.cfg.PositionsTopic, cure, failed}
	}

	if err := p.end(ctx, kgo.TryCommit); err != nil {
		return 0, err
	}

	return record.Offset, nil
}

// readPosition returns the last position of the shard that was committed before the record at the
// given offset, or nil if no position was committed.
func (p *producer) readPosition(ctx context.Context, id string, before int64) ([]byte, error) {
	from := max(0, before-lookBack)
	position, err := p.readFrom(ctx, kgo.NewOffset().At(from), id, before)
	if err == nil && position == nil && from > 0 {
		position, err = p.readFrom(ctx, kgo.NewOffset().AtStart(), id, before)
	}
	return position, err
}

// readFrom waits for open transactions of other shards: records behind an open transaction become
// visible only when the transaction has ended.
func (p *producer) readFrom(ctx context.Context, from kgo.Offset, id string, before int64) (position []byte, err error) {
	topic := p.cfg.PositionsTopic
	// A session of fetches would cost a short read of one partition more than it saves.
	client, err := kgo.NewClient(append(slices.Clone(p.common), kgo.DisableFetchSessions(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: from}}), kgo.FetchIsolationLevel(kgo.ReadCommitted()))...)
	if err != nil {
		return nil, err
	}
	defer client.Close()

	for {
		fetched := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}

		for _, e := range fetched.Errors() {
			return nil, &topicError{topic, "allow READ on it", e.Err}
		}

		for records := fetched.RecordIter(); !records.Done(); {
			r := records.Next()
			if r.Offset >= before {
				return position, nil
			}
			if string(r.Key) == id {
				position = r.Value
			}
		}
	}
}

// checkPositions asks whether the cluster has transactions, and whether the topic of the positions
// is as it must be. A missing one is made later.
func (h *Handler) checkPositions(ctx context.Context, client *kgo.Client) error {
	id := h.cfg.TransactionalID
	if id == "" {
		id = defaultTxnPrefix
	}

	if err := findCoordinator(ctx, client, id); err != nil {
		return fmt.Errorf("transactions with the id %s...: %w", id, err)
	}

	topic := h.cfg.PositionsTopic
	found, _, err := lookForTopic(ctx, client, topic)
	if err != nil || !found {
		return err
	}

	return checkCompacted(ctx, client, topic)
}

const (
	// coordinatorTries and coordinatorPause bound the wait for a cluster that has yet to make the
	// topic of its transactions: the cluster makes the topic at the first request.
	coordinatorTries = 20
	coordinatorPause = 250 * time.Millisecond
)

// findCoordinator asks which broker keeps the transactions with an id.
func findCoordinator(ctx context.Context, client *kgo.Client, id string) error {
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorType = 1
	find.CoordinatorKey = id
	find.CoordinatorKeys = []string{id}
	for n := 1; ; n++ {
		answer, err := find.RequestWith(ctx, client)
		if err != nil {
			return err
		}

		code := answer.ErrorCode
		for i := range answer.Coordinators {
			code = answer.Coordinators[i].ErrorCode
		}

		err = kerr.ErrorForCode(code)
		if err == nil || !kerr.IsRetriable(err) || n == coordinatorTries {
			return err
		}

		if !sleep.For(ctx, coordinatorPause) {
			return err
		}
	}
}

// checkCompacted requires a topic that keeps the last record of each key. It reports nothing to a
// user who may not read the settings of topics.
func checkCompacted(ctx context.Context, client *kgo.Client, topic string) error {
	request := kmsg.NewPtrDescribeConfigsRequest()
	resource := kmsg.NewDescribeConfigsRequestResource()
	resource.ResourceType = kmsg.ConfigResourceTypeTopic
	resource.ResourceName = topic
	resource.ConfigNames = []string{"cleanup.policy"}
	request.Resources = append(request.Resources, resource)
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}

	for i := range answer.Resources {
		for _, c := range answer.Resources[i].Configs {
			if c.Name == "cleanup.policy" && c.Value != nil && !strings.Contains(*c.Value, "compact") {
				return &topicError{
					topic, "kafka-configs.sh --alter --entity-type topics --entity-name " + topic + " --add-config cleanup.policy=compact",
					fmt.Errorf("its cleanup.policy is %s: positions would be deleted", *c.Value),
				}
			}
		}
	}

	return nil
}
