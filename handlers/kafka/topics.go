package kafka

import (
	"errors"
	"math"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// refusedFor is how long a topic that was found missing or denied counts as such without another request.
	refusedFor = 2 * time.Second
	// maxRefused bounds the remembered topics: a template may make another one of each event.
	maxRefused = 1000
)

// refusedTopics remembers topics that were found missing or denied, where topics are made of events. Records of such a topic
// must not reach the client with others: the client waits for seconds for a missing topic, and a transaction fails for all
// its records. The zero value is empty.
type refusedTopics struct {
	mu    sync.Mutex
	known map[string]refusedTopic
}

type refusedTopic struct {
	err   error
	until time.Time // then the cluster is asked again
}

// get returns the last refusal of a topic, or the zero value.
func (k *refusedTopics) get(name string) refusedTopic {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known[name]
}

// note remembers an answer about a topic. A nil error forgets the topic.
func (k *refusedTopics) note(name string, err error, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		delete(k.known, name)
		return
	}

	if k.known == nil {
		k.known = make(map[string]refusedTopic)
	}

	_, again := k.known[name]
	if !again && len(k.known) >= maxRefused {
		k.makeRoomLocked(now)
	}

	k.known[name] = refusedTopic{err, now.Add(refusedFor)}
}

// makeRoomLocked removes the expired topics, or any topic if none has expired.
func (k *refusedTopics) makeRoomLocked(now time.Time) {
	var last string
	for name, topic := range k.known {
		if !now.Before(topic.until) {
			delete(k.known, name)
		}
		last = name
	}
	if len(k.known) >= maxRefused {
		delete(k.known, last)
	}
}

// permitted fails the records of topics that do not exist or that this user may not write, where topics are made of events,
// and returns the others. It asks for topics that the client has not written yet. A broker that does not tell is taken to
// permit.
func (k *refusedTopics) permitted(p *producer, b *batch, todo []int) []int {
	if b.h.encoder.fixedTopic != "" {
		return todo
	}

	refused := k.ask(p, b, todo)
	if len(refused) == 0 {
		return todo
	}

	left := make([]int, 0, len(todo))
	for _, i := range todo {
		if err := refused[p.records[i].Topic]; err != nil {
			b.fail(i, err)
			continue
		}
		left = append(left, i)
	}

	return left
}

// ask returns the refused topics among those of todo, with the reasons.
func (k *refusedTopics) ask(p *producer, b *batch, todo []int) (refused map[string]error) {
	now := time.Now()
	before := make(map[string]error) // the last answers about topics that need another request
	for _, i := range todo {
		name := p.records[i].Topic
		_, asked := before[name]
		if p.known[name] || asked || refused[name] != nil {
			continue
		}

		last := k.get(name)
		if !now.Before(last.until) {
			before[name] = last.err
			continue
		}
		if refused == nil {
			refused = make(map[string]error)
		}
		refused[name] = last.err
	}
	if len(before) == 0 {
		return refused
	}

	request := kmsg.NewPtrMetadataRequest()
	request.IncludeTopicAuthorizedOperations = true
	request.AllowAutoTopicCreation = p.cfg.AllowAutoTopicCreation
	for name := range before {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = new(name)
		request.Topics = append(request.Topics, topic)
	}
	answer, err := request.RequestWith(b.ctx, p.client)
	if err != nil {
		return refused // the error shows when the records are sent
	}

	for i := range answer.Topics {
		topic := &answer.Topics[i]
		if topic.Topic == nil {
			continue
		}
		name := *topic.Topic
		err := refusalOf(topic)
		isMaking := errors.Is(err, kerr.UnknownTopicOrPartition) && p.cfg.AllowAutoTopicCreation && before[name] == nil
		if isMaking {
			continue // the client waits for it, once
		}

		k.note(name, err, now)
		if err == nil {
			continue
		}

		if refused == nil {
			refused = make(map[string]error)
		}
		refused[name] = err
	}

	return refused
}

// refusalOf returns why nothing can be written to a topic, nil if that is not known.
func refusalOf(topic *kmsg.MetadataResponseTopic) error {
	const write = 1 << kmsg.ACLOperationWrite
	err := kerr.ErrorForCode(topic.ErrorCode)
	tells := topic.AuthorizedOperations != math.MinInt32
	switch {
	case isTopic(err):
		return err
	case err == nil && tells && topic.AuthorizedOperations&write == 0:
		return kerr.TopicAuthorizationFailed
	default:
		return nil
	}
}

// noteFailed remembers the topics of records that failed because of their topics, which were made of events.
func (k *refusedTopics) noteFailed(b *batch, todo []int) {
	if b.errs == nil || b.h.encoder.fixedTopic != "" {
		return
	}

	now := time.Now()
	for _, i := range todo {
		err := b.errs[i]
		if !isTopic(err) {
			continue
		}

		name := b.p.records[i].Topic
		delete(b.p.known, name)
		k.note(name, err, now)
	}
}

// isBlind reports whether all records of a transaction, of several topics, failed over the rights to a topic. A broker that
// refuses a topic to a transaction refuses all topics, with the same error: it does not tell which one is at fault.
func isBlind(b *batch, todo []int) bool {
	if b.h.encoder.fixedTopic != "" || b.p.topics(todo) < 2 {
		return false
	}
	for _, i := range todo {
		if !errors.Is(b.failure(i), kerr.TopicAuthorizationFailed) {
			return false
		}
	}
	return true
}
