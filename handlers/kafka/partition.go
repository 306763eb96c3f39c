package kafka

import (
	"errors"
	"fmt"
	"maps"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// chosen is a partitioner that leaves records in the partition that their event names.
type chosen struct{ kgo.TopicPartitioner }

// RequiresConsistency implements kgo.TopicPartitioner: a chosen partition counts among all partitions, also those without a
// leader.
func (c chosen) RequiresConsistency(r *kgo.Record) bool {
	return r.Partition >= 0 || c.TopicPartitioner.RequiresConsistency(r)
}

// Partition implements kgo.TopicPartitioner.
func (c chosen) Partition(r *kgo.Record, n int) int {
	if r.Partition >= 0 {
		return int(r.Partition)
	}
	return c.TopicPartitioner.Partition(r, n)
}

// PartitionByBackup implements kgo.TopicBackupPartitioner.
func (c chosen) PartitionByBackup(r *kgo.Record, n int, backup kgo.TopicBackupIter) int {
	inner, ok := c.TopicPartitioner.(kgo.TopicBackupPartitioner)
	if r.Partition >= 0 || !ok {
		return c.Partition(r, n)
	}
	return inner.PartitionByBackup(r, n, backup)
}

var _ kgo.TopicBackupPartitioner = chosen{}

// partitionError is the failure of an event whose topic lacks the partition. Where topic and partition are the same for all
// events, none is at fault.
type partitionError struct{ chosen, has int32 }

// Error names both numbers.
func (e *partitionError) Error() string {
	return fmt.Sprintf("the topic has no partition %d: it has %d, numbered from 0", e.chosen, e.has)
}

// placed fails the records whose partition their topic does not have, and returns the others. It asks for the partitions
// of a topic when a record has a higher number than any before: the topic may have grown. A client that knows fewer
// partitions is replaced.
func placed(b *batch, todo []int) []int {
	p := b.p
	if p.client == nil { // with exactly_once, after a fault
		return todo
	}

	request := kmsg.NewPtrMetadataRequest()
	asked := make(map[string]bool)
	for _, i := range todo {
		r := &p.records[i]
		if r.Partition < p.counts[r.Topic] || asked[r.Topic] {
			continue
		}

		asked[r.Topic] = true
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = new(r.Topic)
		request.Topics = append(request.Topics, topic)
	}

	if len(asked) > 0 {
		counts, grown, err := countPartitions(b, request)
		switch {
		case err != nil:
			return todo // the error shows when the records are sent
		case grown && b.exact != nil:
			p.close()
			b.failAll(todo, &lostError{errGrown})
			return nil
		case grown:
			p.close()
			if err := p.ready(b.ctx); err != nil {
				b.failAll(todo, err)
				return nil
			}
		}

		p.counts = counts
	}

	_, isConstant := b.h.encoder.partition.Constant()
	isOwn := !isConstant || b.h.encoder.fixedTopic == ""
	left := make([]int, 0, len(todo))

	for _, i := range todo {
		r := &p.records[i]
		has, known := p.counts[r.Topic]
		if !known || r.Partition < has {
			left = append(left, i)
			continue
		}

		err := error(&partitionError{r.Partition, has})
		if isOwn {
			err = &eventError{err, outcome.Unclear, noPartition}
		}
		b.fail(i, err)
	}

	return left
}

// noPartition is the cure of a partitionError.
const noPartition = "add partitions to the topic, or correct partition"

// errGrown is the failure of records with exactly_once: their client knows fewer partitions than the topic has.
var errGrown = errors.New("the topic has more partitions than before")

// countPartitions asks for the partitions of topics, and returns the numbers of all topics. grown reports that a topic has more than
// before: only another client learns of them at once.
func countPartitions(b *batch, request *kmsg.MetadataRequest) (counts map[string]int32, grown bool, err error) {
	answer, err := request.RequestWith(b.ctx, b.p.client)
	if err != nil {
		return nil, false, err
	}

	counts = maps.Clone(b.p.counts)
	for _, topic := range answer.Topics {
		if topic.Topic == nil || topic.ErrorCode != 0 {
			continue
		}

		has := int32(len(topic.Partitions)) //nolint:gosec // a topic has thousands at most
		before, known := counts[*topic.Topic]
		grown = grown || known && before < has
		counts[*topic.Topic] = has
	}

	return counts, grown, nil
}
