// Package message turns events into the messages that brokers and HTTP
// endpoints take: the payload as it is, or a CloudEvent.
//
// All three forms carry the event's id, so that a consumer can drop
// repeated events, and the event's own headers, among them the traceparent of W3C
// Trace Context.
package message

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
	"github.com/notifyd/notifyd/internal/wire"
)

// The names of the headers in the form [handlers.FormatPayload]. They are lower case with
// dashes because each transport leaves such names alone. An event's own header
// whose name begins with notifyd-, in any spelling, is not sent: consumers
// rely on these names.
const (
	HeaderID            = "notifyd-id" // delivery.Event.DedupeID
	HeaderType          = "notifyd-type"
	HeaderAggregateType = "notifyd-aggregate-type"
	HeaderAggregateID   = "notifyd-aggregate-id"
	HeaderTime          = "notifyd-time"   // RFC 3339, UTC
	HeaderOutbox        = "notifyd-outbox" // delivery.Event.Outbox, where it has a name
)

// The names of the headers of a reported dead letter in the form [handlers.FormatPayload]: see [delivery.DeadLetter]. The attributes of
// CloudEvents have the same names without notifyd and dashes, such as deaddestination.
const (
	HeaderDeadDestination = "notifyd-dead-destination"
	HeaderDeadError       = "notifyd-dead-error"
	HeaderDeadClass       = "notifyd-dead-class"
	HeaderDeadAttempts    = "notifyd-dead-attempts"
	HeaderDeadSince       = "notifyd-dead-since" // RFC 3339, UTC
	HeaderDeadTime        = "notifyd-dead-time"  // RFC 3339, UTC
	HeaderDeadReplay      = "notifyd-dead-replay"
)

// The content types of bodies.
const (
	contentJSON        = delivery.ContentTypeJSON
	contentCloudEvents = "application/cloudevents+json"
)

// defaultSource is the CloudEvents attribute "source" unless set.
const defaultSource = "/notifyd"

// WithDefaults returns a copy with the defaults filled in: Source only with
// CloudEvents, and a form only without a body.
func WithDefaults(c handlers.Message) handlers.Message {
	if c.Body != "" {
		c.ContentType = cmp.Or(c.ContentType, contentJSON)
		return c
	}
	c.Format = cmp.Or(c.Format, handlers.FormatPayload)
	if c.Format != handlers.FormatPayload {
		c.Source = cmp.Or(c.Source, defaultSource)
	}
	return c
}

// Validate returns all mistakes at once, joined, each as a *handlers.FieldError.
func Validate(c handlers.Message) error { return errors.Join(checkFormat(c), checkBody(c)) }

func checkFormat(c handlers.Message) error {
	switch c.Format {
	case "", handlers.FormatPayload:
		if c.Source != "" {
			return field.Errorf("cloudevents_source", "has no effect with format: payload: take it out, or set format: %s",
				handlers.FormatCloudEventsBinary)
		}
		return nil
	case handlers.FormatCloudEventsBinary, handlers.FormatCloudEventsStructured:
		return checkSource(c.Source)
	default:
		return field.Errorf("format", "must be %s, %s or %s",
			handlers.FormatPayload, handlers.FormatCloudEventsBinary, handlers.FormatCloudEventsStructured)
	}
}

// Header is one header of a message. Names are not empty, and no two headers of
// a message have the same one. Names and values are UTF-8 without NUL bytes;
// See also [Binding.HTTPFields].
type Header struct{ Name, Value string }

// Message is an event, ready to be sent.
type Message struct {
	// Body is the payload itself, or a JSON object around it. It must not be
	// changed.
	Body []byte
	// ContentType is the media type of Body.
	ContentType string
	// Headers are in a fixed order: those about the event first, then the
	// event's own by name. The content type is not among them.
	Headers []Header

	at   time.Time // of the event encoded last, by EncodeInto
	text string    // of at
}

// Binding describes how a transport writes the attributes of CloudEvents in
// binary mode. Its zero value writes them without a prefix.
type Binding struct {
	// Prefix stands before the names of attributes: "ce_" for Kafka, "ce-" for
	// HTTP and NATS, "cloudEvents_" for AMQP.
	Prefix string
	// PercentEncode encodes the values as the bindings for HTTP and NATS ask:
	// space, quote, percent and everything outside of printable ASCII.
	PercentEncode bool
	// HTTPFields keeps headers to the rules of HTTP: of names that differ by
	// case only the first in the order of bytes is sent, names that are not
	// valid tokens are not sent, and control characters in values become
	// spaces.
	HTTPFields bool
}

// Kafka returns the binding for Kafka. All bindings follow the
// specification 1.0.2.
func Kafka() Binding { return Binding{Prefix: "ce_"} }

// AMQP returns the binding for AMQP. The specification is for AMQP 1.0; its
// application properties are the headers of AMQP 0.9.1.
func AMQP() Binding { return Binding{Prefix: "cloudEvents_"} }

// HTTP returns the binding for HTTP, and for NATS, which is the same.
func HTTP() Binding { return Binding{Prefix: "ce-", PercentEncode: true, HTTPFields: true} }

// Encoder encodes events. It is safe for concurrent use.
type Encoder struct {
	format  handlers.Format
	source  string
	binding Binding

	body        *tmpl.Template // nil for a form
	contentType string         // of body
	json        bool           // it is JSON
}

// New returns an encoder for cfg, or the mistakes in it.
func New(cfg handlers.Message, binding Binding) (*Encoder, error) {
	if err := Validate(cfg); err != nil {
		return nil, err
	}

	body, err := bodyTemplate(cfg)
	if err != nil {
		return nil, err
	}

	cfg = WithDefaults(cfg)
	e := &Encoder{
		format:      cfg.Format,
		source:      cfg.Source,
		binding:     binding,
		body:        body,
		contentType: cfg.ContentType,
		json:        isJSON(cfg.ContentType),
	}

	if e.source == "" {
		e.source = defaultSource
	}

	return e, nil
}

// Encode returns the message for ev, with the body of its form: see also [Encoder.Render]. It always succeeds; a
// message of the forms [handlers.FormatPayload] and [handlers.FormatCloudEventsBinary] shares its body with ev.
func (e *Encoder) Encode(ev *delivery.Event) Message {
	switch e.format {
	case handlers.FormatCloudEventsStructured:
		return Message{Body: e.structured(ev), ContentType: contentCloudEvents, Headers: e.own(nil, ev)}
	case handlers.FormatCloudEventsBinary:
		return Message{Body: ev.Payload, ContentType: contentType(ev), Headers: e.own(e.attributeHeaders(ev), ev)}
	default:
		return Message{Body: ev.Payload, ContentType: contentType(ev), Headers: e.own(describe(ev), ev)}
	}
}

// EncodeInto is Encode for many events: it overwrites m and uses the memory of its
// headers again. In the form [handlers.FormatPayload] it allocates next to nothing.
func (e *Encoder) EncodeInto(m *Message, ev *delivery.Event) {
	if e.format == handlers.FormatCloudEventsStructured || e.format == handlers.FormatCloudEventsBinary {
		*m = e.Encode(ev)
		return
	}
	if m.text == "" || !m.at.Equal(ev.CreatedAt) { // the events of a transaction have the same
		m.at = ev.CreatedAt
		m.text = timestamp(ev)
	}
	m.Body = ev.Payload
	m.ContentType = contentType(ev)
	m.Headers = e.own(appendDescription(m.Headers[:0], ev, m.text), ev)
}

// contentType is the content type of the payload.
func contentType(ev *delivery.Event) string { return cmp.Or(ev.ContentType, contentJSON) }

// describe returns the fields of an event except its payload.
func describe(ev *delivery.Event) []Header {
	return appendDescription(make([]Header, 0, 5+len(ev.Headers)), ev, timestamp(ev))
}

func appendDescription(all []Header, ev *delivery.Event, at string) []Header {
	all = append(all, Header{HeaderID, ev.DedupeID()}, Header{HeaderType, ev.Type})

	if ev.AggregateType != "" {
		all = append(all, Header{HeaderAggregateType, ev.AggregateType})
	}
	if ev.AggregateID != "" {
		all = append(all, Header{HeaderAggregateID, ev.AggregateID})
	}
	if at != "" {
		all = append(all, Header{HeaderTime, at})
	}
	if ev.Outbox != "" {
		all = append(all, Header{HeaderOutbox, ev.Outbox})
	}

	return appendDeadLetter(all, ev.DeadLetter)
}

// appendDeadLetter describes a dead letter; nil has no headers.
func appendDeadLetter(all []Header, d *delivery.DeadLetter) []Header {
	if d == nil {
		return all
	}

	all = append(all,
		Header{HeaderDeadDestination, d.Destination},
		Header{HeaderDeadError, d.Error},
		Header{HeaderDeadClass, d.Class},
		Header{HeaderDeadAttempts, strconv.Itoa(d.Attempts)},
		Header{HeaderDeadSince, rfc3339(d.Since)},
		Header{HeaderDeadTime, rfc3339(d.At)})

	if d.Replay > 0 {
		all = append(all, Header{HeaderDeadReplay, strconv.Itoa(d.Replay)})
	}

	return slices.DeleteFunc(all, func(h Header) bool { return h.Value == "" })
}

// own adds the event's own headers, but for those whose names are taken, and
// makes all of them fit for the transport.
func (e *Encoder) own(all []Header, ev *delivery.Event) []Header {
	taken := len(all)
	var names []string
	if len(ev.Headers) > 0 { // sorting none allocates as well
		names = slices.Sorted(maps.Keys(ev.Headers))
	}

	for _, name := range names {
		if !e.sendable(name) {
			continue
		}

		value := ev.Headers[name]
		name = whole(name)
		same := func(h Header) bool { return h.Name == name }
		fold := func(h Header) bool { return strings.EqualFold(h.Name, name) }

		switch {
		// The names that consumers rely on must not appear in another spelling either.
		case slices.ContainsFunc(all[:taken], fold), slices.ContainsFunc(all, same):
		case e.binding.HTTPFields && slices.ContainsFunc(all, fold):
		default:
			all = append(all, Header{name, value})
		}
	}

	for i := range all {
		all[i].Value = whole(all[i].Value)
		if e.binding.HTTPFields {
			all[i].Value = strings.Map(printable, all[i].Value)
		}
	}

	return all
}

// sendable reports whether an event's own header may be sent under its name. Headers
// that describe the body belong to the message, and the body is not encoded. An event
// must not use notifyd's names in any form: a consumer would take such a header for a
// statement of notifyd, or of CloudEvents, about the event.
func (e *Encoder) sendable(name string) bool {
	switch lower := strings.ToLower(name); {
	case lower == "", folded(lower) == "content-type", folded(lower) == "content-encoding":
		return false
	case IsOwn(lower):
		return lower == wire.UnreadableHeaders
	case e.binding.Prefix == "" && e.format == handlers.FormatCloudEventsBinary && slices.Contains(attributeNames(), lower):
		return false
	case e.binding.HTTPFields:
		return strings.IndexFunc(name, notInToken) < 0
	default:
		return true
	}
}

// IsOwn reports whether a name, in any spelling, begins as the headers that notifyd sets: those about the event, and the
// attributes of CloudEvents in any of the bindings.
func IsOwn(name string) bool {
	name = folded(strings.ToLower(name))
	for _, prefix := range []string{"notifyd-", "ce-", "cloudevents-", "cloudevents:"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// folded returns a name as gateways to HTTP know it, for which "_" is "-".
func folded(name string) string { return strings.ReplaceAll(name, "_", "-") }

// notInToken reports whether r may not stand in the name of an HTTP header: see
// RFC 9110, section 5.6.2.
func notInToken(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
}

// printable returns a space for a control character.
func printable(r rune) rune {
	if r < ' ' || r == 0x7f {
		return ' '
	}
	return r
}

// whole returns s as UTF-8 without NUL.
func whole(s string) string {
	const replacement = "\uFFFD"
	return strings.ReplaceAll(strings.ToValidUTF8(s, replacement), "\x00", replacement)
}

// maxYear is the last year that RFC 3339 can write.
const maxYear = 9999

// timestamp is the time of an event.
func timestamp(ev *delivery.Event) string { return rfc3339(ev.CreatedAt) }

// rfc3339 returns "" for a zero time, or one that cannot be written.
func rfc3339(t time.Time) string {
	t = t.UTC()
	if t.IsZero() || t.Year() < 0 || t.Year() > maxYear {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}
