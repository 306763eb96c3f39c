package awsapi

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// The limits that SQS and SNS share. See
// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html
// and https://docs.aws.amazon.com/sns/latest/dg/sns-message-attributes.html. A message of SNS may have more
// attributes than ten, and a queue behind it gets it only without.
const (
	MaxMessages   = 10      // in one request
	MaxMessage    = 1 << 20 // bytes of body and attributes
	maxAttributes = 10
	maxNameLength = 256 // of an attribute's name
	maxIDLength   = 128 // of group and deduplication ids
)

// FIFO is the end of the name of a queue or topic that is a FIFO one.
const FIFO = ".fifo"

// The attributes that have no header behind them.
const (
	// attributeContentType is set if the body is not JSON, or more than the payload.
	attributeContentType = "content-type"
	// attributeEncoding marks a body in base64, with the name and the value of MIME: SQS takes only text.
	attributeEncoding = "content-transfer-encoding"
	encodingBase64    = "base64"
	// attributeMore holds a JSON object with the headers that have no attribute
	// of their own.
	attributeMore = "notifyd-headers"
	// StringType is the data type of all attributes. It counts for the size.
	StringType = "String"
)

// Message is one for SQS or SNS, ready to be sent.
type Message struct {
	Body           string
	Attributes     []message.Header
	Group, DedupID string // "" for none
	Size           int
}

// MessageEncoder makes messages of events. It is safe for concurrent use.
type MessageEncoder struct {
	service string
	message *message.Encoder
	group   *tmpl.Template // nil: see groupOf
	fifo    bool
}

// NewMessageEncoder returns an encoder for the service of that name, SQS or SNS. group is the setting
// group_id. Each error is a [*handlers.FieldError].
func NewMessageEncoder(service string, cfg handlers.Message, group string, fifo bool) (*MessageEncoder, error) {
	m, err := message.New(cfg, message.Kafka()) // CloudEvents defines no binding for SQS or SNS
	if err != nil {
		return nil, err
	}
	t, err := Template(tmpl.Key, "group_id", group)
	if err != nil {
		return nil, err
	}
	return &MessageEncoder{service: service, message: m, group: t, fifo: fifo}, nil
}

// Template returns the template of the setting, nil if it is empty. The error is a [*handlers.FieldError].
func Template(kind tmpl.Kind, setting, text string) (*tmpl.Template, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	t, err := kind.Parse(setting, text)
	if err != nil {
		return nil, field.Errorf(setting, "%w", err)
	}
	return t, nil
}

// Encode makes the message for an event. Its errors are about the event: another
// attempt would end the same way.
func (e *MessageEncoder) Encode(ev *delivery.Event) (*Message, error) {
	m := e.message.Encode(ev)
	if err := e.message.Render(&m, ev, nil); err != nil {
		return nil, err
	}

	out := &Message{Body: string(m.Body)}
	// Consumers rely on it, so an event cannot have it.
	m.Headers = slices.DeleteFunc(m.Headers, func(h message.Header) bool {
		return strings.EqualFold(h.Name, attributeEncoding)
	})

	if e.message.Raw(ev) {
		out.Body = base64.StdEncoding.EncodeToString(m.Body)
		m.Headers = append(m.Headers, message.Header{Name: attributeEncoding, Value: encodingBase64})
	}

	if out.Body == "" {
		return nil, fmt.Errorf("the body is empty: %s requires a character at least", e.service)
	}

	if r, ok := foreign(out.Body); ok {
		return nil, fmt.Errorf("the body holds %U, which SQS takes in no message: escape it (\\u%04x)", r, r)
	}

	out.Attributes = attributes(m)
	out.Size = len(out.Body)
	for _, a := range out.Attributes {
		out.Size += len(a.Name) + len(StringType) + len(a.Value)
	}

	if out.Size > MaxMessage {
		return nil, fmt.Errorf("the message has %d bytes with its attributes: %s takes %d", out.Size, e.service, MaxMessage)
	}

	group, err := e.groupOf(ev)
	if err != nil {
		return nil, err
	}

	out.Group = fit(group)
	if e.fifo {
		// The time keeps apart events of two outboxes that share a place and an
		// id.
		created := strconv.FormatInt(ev.CreatedAt.UnixMicro(), 36)
		out.DedupID = fit(fmt.Sprintf("%s.%s.%s", ev.DedupeID(), created, ev.Destination))
	}

	return out, nil
}

// Entry is Encode for a [Sender].
func (e *MessageEncoder) Entry(ev *delivery.Event) (m *Message, size int, err error) {
	m, err = e.Encode(ev)
	if err != nil {
		return nil, 0, err
	}
	return m, m.Size, nil
}

// MaxBytes returns the largest payload in bytes, or 0 if a template makes the body: the size
// of the payload then does not decide the size of the message.
func (e *MessageEncoder) MaxBytes() int {
	if e.message.Renders() {
		return 0
	}
	return MaxMessage
}

// Preview lays m out for people.
func (m *Message) Preview() string {
	var fields []message.Header
	if m.Group != "" {
		fields = append(fields, message.Header{Name: "group id", Value: m.Group})
	}
	if m.DedupID != "" {
		fields = append(fields, message.Header{Name: "deduplication id", Value: m.DedupID})
	}
	for _, a := range m.Attributes {
		fields = append(fields, message.Header{Name: "attribute " + a.Name, Value: a.Value})
	}
	return message.Preview(fields, []byte(m.Body))
}

func (e *MessageEncoder) groupOf(ev *delivery.Event) (string, error) {
	switch {
	case e.group != nil:
		data, err := tmpl.NewData(ev)
		if err != nil {
			return "", err
		}
		group, err := e.group.Render(data)
		if err != nil {
			return "", err
		}
		if group == "" && e.fifo {
			return "", errors.New(`template "group_id" yields nothing: fix the event, or the template`)
		}
		return group, nil
	case e.fifo:
		return cmp.Or(ev.AggregateID, ev.Type), nil
	default:
		return "", nil
	}
}

// foreign finds a character that SQS does not take:
// #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF.
func foreign(s string) (rune, bool) {
	for i, r := range s {
		switch {
		case r == utf8.RuneError:
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return rune(s[i]), true // no UTF-8
			}
		case isControl(r), r == 0xfffe, r == 0xffff:
			return r, true
		}
	}
	return 0, false
}

// isControl reports whether r is a control character that SQS takes in no message.
func isControl(r rune) bool {
	isSpace := r == '\t' || r == '\n' || r == '\r'
	return r < ' ' && !isSpace
}

// attributes turns headers into attributes, at most ten. Headers about the event come
// first, then the trace, then the other headers by name. Headers that do not fit, or
// that SQS does not accept unchanged, are combined in one attribute: no header is
// lost, and no message is refused because of a header.
func attributes(m message.Message) []message.Header {
	var all, more []message.Header
	if m.ContentType != "" && m.ContentType != "application/json" {
		all = append(all, message.Header{Name: attributeContentType, Value: m.ContentType})
	}

	headers := slices.Clone(m.Headers)
	slices.SortStableFunc(headers, func(a, b message.Header) int { return cmp.Compare(rank(a.Name), rank(b.Name)) })

	for _, h := range headers {
		if isName(h.Name) && isValue(h.Value) {
			all = append(all, h)
		} else {
			more = append(more, h)
		}
	}

	if len(all)+min(len(more), 1) > maxAttributes {
		more = append(more, all[maxAttributes-1:]...)
		all = all[:maxAttributes-1]
	}

	if len(more) > 0 {
		all = append(all, message.Header{Name: attributeMore, Value: bundle(more)})
	}

	return all
}

// rank puts the encoding of the body first, then notifyd's own headers, then the
// trace, then all others.
func rank(name string) int {
	switch {
	case name == attributeEncoding: // without it the body cannot be read
		return -1
	case strings.HasPrefix(name, "notifyd-"), strings.HasPrefix(name, "ce_"):
		return 0
	case name == "traceparent", name == "tracestate":
		return 1
	default:
		return 2
	}
}

// isName reports whether SQS takes a name for an attribute.
func isName(s string) bool {
	lower := strings.ToLower(s)
	switch {
	case s == "", len(s) > maxNameLength, s[0] == '.', s[len(s)-1] == '.', strings.Contains(s, ".."),
		strings.HasPrefix(lower, "aws."), strings.HasPrefix(lower, "amazon."), s == attributeMore:
		return false
	}

	const others = "_-."
	return !strings.ContainsFunc(s, func(r rune) bool {
		isLetter := r|0x20 >= 'a' && r|0x20 <= 'z'
		isDigit := r >= '0' && r <= '9'
		return !isLetter && !isDigit && !strings.ContainsRune(others, r)
	})
}

func isValue(s string) bool {
	_, bad := foreign(s)
	return s != "" && !bad
}

// bundle writes headers as a JSON object, with escapes for characters that
// SQS does not accept.
func bundle(headers []message.Header) string {
	object := make(map[string]string, len(headers))
	for _, h := range headers {
		object[h.Name] = h.Value
	}
	out, err := json.Marshal(object)
	if err != nil {
		return "{}" // texts can always be written
	}
	return strings.NewReplacer("\ufffe", `\ufffe`, "\uffff", `\uffff`).Replace(string(out))
}

// fit makes an id of s that SQS takes: s itself, or a hash of s if s is too long or
// has other characters than letters, digits and punctuation.
func fit(s string) string {
	if len(s) <= maxIDLength && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}
