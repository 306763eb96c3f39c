package pubsub

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// The limits of Pub/Sub. See https://cloud.google.com/pubsub/quotas#resource_limits.
const (
	maxMessages   = 1000       // in one request
	maxBytes      = 10_000_000 // of one message, and of one request
	maxAttributes = 100
	maxName       = 256  // bytes of an attribute's name
	maxValue      = 1024 // bytes of its value
	maxKey        = 1024 // bytes of an ordering key
	// overhead is the JSON around a message's parts, and around an attribute's.
	overhead = 64
)

// attributeContentType is set if the body is more than the payload.
const attributeContentType = "content-type"

// entry is a message as the REST API takes it. []byte is in base64.
type entry struct {
	Data       []byte            `json:"data,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Key        string            `json:"orderingKey,omitempty"`

	size int // in the request, about
}

// encoder makes entries of events. It is safe for concurrent use.
type encoder struct {
	message *message.Encoder
	key     *tmpl.Template // nil for the aggregate id
}

func newEncoder(cfg Config) (*encoder, error) {
	// https://github.com/googleapis/google-cloudevents/blob/main/docs/spec/pubsub.md
	m, err := message.New(cfg.Message, message.Binding{Prefix: "ce-"})
	if err != nil {
		return nil, err
	}
	key, err := parseKey(cfg)
	if err != nil {
		return nil, err
	}
	return &encoder{message: m, key: key}, nil
}

// encode makes the entry for an event. Its errors are about the event: another
// attempt would end the same way.
func (e *encoder) encode(ev *delivery.Event) (*entry, error) {
	m := e.message.Encode(ev)
	if err := e.message.Render(&m, ev, nil); err != nil {
		return nil, err
	}

	out := &entry{Data: m.Body, Attributes: attributes(m)}
	if len(out.Data) == 0 && len(out.Attributes) == 0 {
		return nil, errors.New("the message is empty: Pub/Sub requires data or an attribute")
	}

	if len(out.Data) > maxBytes {
		return nil, fmt.Errorf("the message has %d bytes: Pub/Sub takes %d", len(out.Data), maxBytes)
	}

	key, err := e.keyOf(ev)
	if err != nil {
		return nil, err
	}

	out.Key = fit(key)
	out.size = base64.StdEncoding.EncodedLen(len(out.Data)) + len(out.Key) + overhead
	for name, value := range out.Attributes {
		out.size += len(name) + len(value) + overhead
	}

	return out, nil
}

func (e *encoder) keyOf(ev *delivery.Event) (string, error) {
	if e.key == nil {
		return ev.AggregateID, nil
	}
	data, err := tmpl.NewData(ev)
	if err != nil {
		return "", err
	}
	return e.key.Render(data)
}

// attributes turns headers into attributes. It omits headers that Pub/Sub does
// not accept: an error would make a dead letter of an event that can be
// understood without them. The first attributes are about the event.
func attributes(m message.Message) map[string]string {
	all := make(map[string]string, len(m.Headers)+1)
	if m.ContentType != "" && m.ContentType != "application/json" {
		all[attributeContentType] = m.ContentType
	}
	for _, h := range m.Headers {
		if len(all) < maxAttributes && isAttribute(h) {
			all[h.Name] = h.Value
		}
	}
	return all
}

func isAttribute(h message.Header) bool {
	return len(h.Name) <= maxName && len(h.Value) <= maxValue && !strings.HasPrefix(strings.ToLower(h.Name), "goog")
}

// fit makes an ordering key of s that Pub/Sub takes: s itself, or a hash of s.
func fit(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxKey {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}
