package message

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/field"
)

// checkSource wants a URI reference without the blanks that url.Parse lets pass.
func checkSource(source string) error {
	if source == "" {
		return nil
	}

	for _, r := range source {
		// RFC 3986, appendix A, allows no others; url.Parse accepts more.
		if r <= ' ' || r >= 0x7f || strings.ContainsRune("\"<>\\^`{|}", r) {
			return field.Errorf("cloudevents_source", "must be a URI reference such as /shop/orders, in printable ASCII without blanks")
		}
	}

	if _, err := url.Parse(source); err != nil {
		return field.Errorf("cloudevents_source", "must be a URI reference such as /shop/orders: %w", err)
	}

	return nil
}

// attribute is one attribute of a CloudEvent. Those of notifyd are strings, URI
// references or timestamps, which are written alike.
type attribute struct{ name, value string }

// attributes returns the attributes in the order of the specification, with
// the extensions for partitioning, tracing and aggregates behind them.
// An attribute must not be empty, and the SDKs reject blanks alone, so missing values
// are left out.
// See https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md.
func (e *Encoder) attributes(ev *delivery.Event) []attribute {
	all := make([]attribute, 0, 12)
	add := func(name, value string) {
		if strings.TrimSpace(value) != "" {
			all = append(all, attribute{name, allowed(value)})
		}
	}

	add("specversion", "1.0")
	add("id", ev.DedupeID())
	add("source", e.source)
	add("type", ev.Type)
	if hasData(ev) {
		add("datacontenttype", contentType(ev))
	}

	add("subject", ev.AggregateID)
	add("time", timestamp(ev))
	add("partitionkey", ev.AggregateID)
	add("aggregatetype", ev.AggregateType)

	if parent := ev.Headers["traceparent"]; parent != "" { // tracestate means nothing without it
		add("traceparent", parent)
		add("tracestate", ev.Headers["tracestate"])
	}

	for _, h := range appendDeadLetter(nil, ev.DeadLetter) {
		add(deadAttribute(h.Name), h.Value)
	}

	return all
}

// deadAttribute returns the attribute for a header of a dead letter: names of attributes have no dashes.
func deadAttribute(header string) string {
	return strings.ReplaceAll(strings.TrimPrefix(header, "notifyd-"), "-", "")
}

// attributeNames are the names of all attributes that an event can have.
func attributeNames() []string {
	return []string{
		"specversion", "id", "source", "type", "datacontenttype", "subject", "time", "partitionkey", "aggregatetype",
		"traceparent", "tracestate",
		"deaddestination", "deaderror", "deadclass", "deadattempts", "deadsince", "deadtime", "deadreplay",
	}
}

// allowed replaces characters that the type String of CloudEvents, section 3.1, does
// not allow: control characters, noncharacters of Unicode, and invalid UTF-8.
func allowed(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r < ' ', r >= 0x7f && r <= 0x9f, r >= 0xfdd0 && r <= 0xfdef, r&0xfffe == 0xfffe:
			return utf8.RuneError
		default:
			return r // U+FFFD for a byte that is not UTF-8
		}
	}, s)
}

// attributeHeaders writes the attributes as headers, without the content
// type: each transport has a separate place for it.
func (e *Encoder) attributeHeaders(ev *delivery.Event) []Header {
	attributes := e.attributes(ev)
	all := make([]Header, 0, len(attributes)+len(ev.Headers))
	for _, a := range attributes {
		if a.name == "datacontenttype" {
			continue
		}

		value := a.value
		if e.binding.PercentEncode {
			value = percentEncode(value)
		}
		all = append(all, Header{e.binding.Prefix + a.name, value})
	}
	return all
}

// hasData reports whether an event has data. A payload of zero bytes that is not JSON is data too: a Protobuf message
// of defaults is empty.
func hasData(ev *delivery.Event) bool { return len(ev.Payload) > 0 || !ev.IsJSON() }

// structured writes the JSON format. A payload that is JSON goes into it byte for byte, because
// encoding/json would compact it. Any other goes into it as binary data; so does one that is only called
// JSON: it would spoil the message otherwise.
// See https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md.
func (e *Encoder) structured(ev *delivery.Event) []byte {
	body := make([]byte, 0, len(ev.Payload)+512)
	body = append(body, '{')
	for _, a := range e.attributes(ev) {
		body = append(body, '"')
		body = append(body, a.name...)
		body = append(body, `":`...)
		body = appendJSONString(body, a.value)
		body = append(body, ',')
	}

	switch {
	case !hasData(ev):
		body[len(body)-1] = '}' // in place of the last comma
		return body
	case ev.IsJSON() && json.Valid(ev.Payload) && utf8.Valid(ev.Payload):
		body = append(body, `"data":`...)
		body = append(body, ev.Payload...)
	default:
		body = append(body, `"data_base64":"`...)
		body = base64.StdEncoding.AppendEncode(body, ev.Payload)
		body = append(body, '"')
	}

	return append(body, '}')
}

const hexDigits = "0123456789ABCDEF"

// appendJSONString appends s as JSON writes it. Unlike encoding/json it leaves
// <, > and & alone. s holds no control characters: see [allowed].
func appendJSONString(to []byte, s string) []byte {
	to = append(to, '"')
	for i := range len(s) {
		if c := s[i]; c == '"' || c == '\\' {
			to = append(to, '\\')
		}
		to = append(to, s[i])
	}
	return append(to, '"')
}

// percentEncode encodes the characters that the HTTP binding, section 3.1.3.2, names:
// space, double quote, percent, and all outside of printable ASCII.
func percentEncode(s string) string {
	plain := true
	for i := range len(s) {
		if mustEncode(s[i]) {
			plain = false
			break
		}
	}
	if plain {
		return s
	}

	out := make([]byte, 0, len(s)+16)
	for i := range len(s) {
		if c := s[i]; mustEncode(c) {
			out = append(out, '%', hexDigits[c>>4], hexDigits[c&0xf])
		} else {
			out = append(out, c)
		}
	}

	return string(out)
}

func mustEncode(c byte) bool {
	isPrintable := c > ' ' && c < 0x7f
	return !isPrintable || c == '"' || c == '%'
}
