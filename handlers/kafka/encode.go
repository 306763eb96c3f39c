package kafka

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// headerContentType is the name that the Kafka protocol binding of CloudEvents,
// section 3.1 and 3.2, gives the header with the media type of the value. The
// form "payload" has it as well.
const headerContentType = "content-type"

// templates are the parsed templates of a [Config].
type templates struct {
	topic *tmpl.Template
	key   *tmpl.Template // nil: the event's aggregate id
	// partition is nil if the key decides.
	partition *tmpl.Template

	schemas *subjects // nil without a registry
}

func parseTemplates(c Config) (templates, error) {
	var t templates
	var errs []error
	parse := func(kind tmpl.Kind, path, text string) *tmpl.Template {
		if text == "" {
			return nil
		}

		parsed, err := kind.Parse(path, text)
		if err != nil {
			errs = append(errs, field.Errorf(path, "%w", err))
			return nil
		}
		return parsed
	}

	t.topic = parse(tmpl.KafkaTopic, "topic", c.Topic)
	t.key = parse(tmpl.Key, "key", c.Key)
	t.partition = parse(tmpl.Checked, "partition", c.Partition)

	if t.partition != nil {
		if text, ok := t.partition.Constant(); ok {
			if _, err := partitionOf(text); err != nil {
				errs = append(errs, field.Errorf("partition", "%w", err))
			}
		}
	}

	errs = append(errs, checkConstant(t.topic, "topic", checkTopic))
	if r := c.SchemaRegistry.withDefaults(); r != nil {
		t.schemas = &subjects{
			subject: parse(tmpl.RegistrySubject, "schema_registry.subject", r.Subject),
			version: parse(tmpl.Checked, "schema_registry.version", r.Version),
		}
		errs = append(errs,
			checkConstant(t.schemas.subject, "schema_registry.subject", checkSubject),
			checkConstant(t.schemas.version, "schema_registry.version", checkVersion))
	}

	return t, errors.Join(errs...)
}

// encoder makes records of events.
type encoder struct {
	message    *message.Encoder
	topic, key *tmpl.Template
	schemas    *subjects // nil without a registry
	fixedTopic string    // "" if it is made of the event
	byID       bool      // the key is the aggregate id
	positions  string    // the topic of the positions, "" without exactly_once
	maxBytes   int
	partition  *tmpl.Template // nil if the key decides
	tombstones bool
}

// errPositions is the failure of an event that would go among the positions, where its record might be taken for one.
var errPositions = errors.New("the topic made of this event is that of the positions")

// errInternal is the failure of an event that would go into a topic of Kafka itself.
var errInternal = errors.New("the topic made of this event begins with __: such topics are Kafka's own")

func isInternal(topic string) bool { return strings.HasPrefix(topic, "__") }

func newEncoder(cfg Config) (*encoder, error) {
	t, err := parseTemplates(cfg)
	if err != nil {
		return nil, err
	}

	m, err := message.New(cfg.Message, message.Kafka())
	if err != nil {
		return nil, err
	}

	e := &encoder{
		message:    m,
		topic:      t.topic,
		key:        t.key,
		schemas:    t.schemas,
		byID:       t.key == nil,
		positions:  cfg.PositionsTopic,
		maxBytes:   cfg.MaxMessageBytes,
		partition:  t.partition,
		tombstones: cfg.Tombstones,
	}

	if name, ok := t.topic.Constant(); ok {
		e.fixedTopic = name
	}

	return e, nil
}

// scratch is memory that records point into. It serves one batch after the other.
type scratch struct {
	message message.Message
	headers []kgo.RecordHeader
	bytes   []byte
}

func (s *scratch) reset() { s.headers, s.bytes = s.headers[:0], s.bytes[:0] }

// add copies a text and returns the copy, which stays as it is when the scratch
// grows.
func (s *scratch) add(text string) []byte {
	from := len(s.bytes)
	s.bytes = append(s.bytes, text...)
	return s.bytes[from:len(s.bytes):len(s.bytes)]
}

// record fills r with the record for ev. Its value is the event's payload itself
// where the format allows, and no schema goes before it. No retry cures an error, but for one of
// header.
func (e *encoder) record(r *kgo.Record, ev *delivery.Event, s *scratch, header headerFunc) error {
	v := view{ev: ev}
	topic, key, err := e.address(&v)
	if err != nil {
		return err
	}

	m := &s.message
	e.message.EncodeInto(m, ev)
	if !e.tombstones || !isNull(ev) { // a template may need fields, which null lacks
		if err := e.message.Render(m, ev, v.data); err != nil {
			return err
		}
	}

	r.Partition, err = e.choose(&v)
	if err != nil {
		return err
	}

	tombstone := e.tombstones && isNull(ev)

	r.Topic = topic
	r.Value = m.Body
	switch {
	case tombstone && key == "":
		return errKeyless
	case tombstone:
		r.Value = nil
	case header != nil:
		r.Value, err = e.withSchema(m.Body, topic, &v, header)
		if err != nil {
			return err
		}
	case r.Value == nil:
		r.Value = []byte{} // no bytes are data, and nil would be a tombstone
	}

	if key != "" {
		r.Key = s.add(key)
	}

	from := len(s.headers)
	if !tombstone { // which has nothing of any type
		s.headers = append(s.headers, kgo.RecordHeader{Key: headerContentType, Value: s.add(m.ContentType)})
	}

	for _, h := range m.Headers {
		if h.Name != headerContentType { // notifyd sets it itself
			s.headers = append(s.headers, kgo.RecordHeader{Key: h.Name, Value: s.add(h.Value)})
		}
	}

	r.Headers = s.headers[from:len(s.headers):len(s.headers)]

	if n := size(r); n > e.maxBytes {
		return fmt.Errorf("the record has %d bytes, more than max_message_bytes of %d", n, e.maxBytes)
	}

	return nil
}

// errKeyless is the failure of a tombstone that could delete nothing.
var errKeyless = errors.New("a tombstone needs a key: give the event an aggregate id, or set key")

// isNull reports whether the payload is JSON null. A payload of zero bytes is data, such as a Protobuf message of defaults.
func isNull(ev *delivery.Event) bool {
	return ev.IsJSON() && string(bytes.TrimSpace(ev.Payload)) == "null"
}

// byKey is the partition of a record whose key decides.
const byKey = -1

// choose returns the partition that the template makes of the event; byKey for none.
func (e *encoder) choose(v *view) (int32, error) {
	if e.partition == nil {
		return byKey, nil
	}

	text, err := v.render(e.partition)
	if err != nil {
		return 0, err
	}

	text = strings.TrimSpace(text)
	if text == "" {
		return byKey, nil
	}

	n, err := partitionOf(text)
	if err != nil {
		return 0, fmt.Errorf("the partition made of this event %w", err)
	}

	return n, nil
}

// partitionOf parses the number of a partition. The error does not repeat the text, which may come from a payload.
func partitionOf(text string) (int32, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, errors.New("must be a number from 0 to 2147483647")
	}
	return int32(n), nil
}

// withSchema returns a body behind the header that names its schema.
func (e *encoder) withSchema(body []byte, topic string, v *view, header headerFunc) ([]byte, error) {
	ref, err := e.schemas.ref(topic, v)
	if err != nil {
		return nil, err
	}
	first, err := header(ref)
	if err != nil {
		return nil, err
	}
	return slices.Concat(first, body), nil
}

// view is an event as templates see it.
type view struct {
	ev   *delivery.Event
	data *tmpl.Data // nil if none had to look
}

func (v *view) render(t *tmpl.Template) (string, error) {
	if text, ok := t.Constant(); ok {
		return text, nil
	}
	if v.data == nil {
		data, err := tmpl.NewData(v.ev)
		if err != nil {
			return "", err
		}
		v.data = data
	}
	return t.Render(v.data)
}

// address returns topic and key.
func (e *encoder) address(v *view) (topic, key string, err error) {
	topic = e.fixedTopic
	key = v.ev.AggregateID
	if topic == "" {
		topic, err = v.render(e.topic)
		if err != nil {
			return "", "", err
		}

		if err := checkTopic(topic); err != nil {
			return "", "", fmt.Errorf("the topic made of this event %w", err)
		}

		if isInternal(topic) && !isInternal(e.topic.Source()) {
			return "", "", errInternal
		}
		if topic == e.positions {
			return "", "", errPositions
		}
	}

	if !e.byID {
		key, err = v.render(e.key)
	}

	return topic, key, err
}

// size is roughly the size of a record: key, value and headers, and the lengths
// before them.
func size(r *kgo.Record) int {
	const lengths, perHeader = 32, 4
	n := lengths + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += perHeader + len(h.Key) + len(h.Value)
	}
	return n
}
