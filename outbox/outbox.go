// Package outbox writes events into outbox_events inside the caller's own
// transaction, so that the business change and its event are committed
// together or not at all.
//
// It imports the standard library only: an application that writes events depends
// on no driver and on nothing of the relay.
package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"
	"time"
	"unicode/utf8"
)

// maxTypeBytes keeps event types readable in metrics and logs, and within an
// index entry; the table checks it too.
const maxTypeBytes = 255

// maxNameBytes bounds the values in an index: together with the type, an entry
// stays below the 2704 bytes that PostgreSQL allows.
const maxNameBytes = 1024

// maxHeaderBytes bounds the headers as the table stores them; the table checks it too.
const maxHeaderBytes = 64 << 10

// Event is an event to write. Type and Payload are mandatory.
type Event struct {
	// Type routes the event, "order.created" for example: up to 255 bytes, without white
	// space and without '*', which is a wildcard in routes.
	Type string
	// Payload is the event itself. A json.RawMessage is stored byte for byte, and
	// so is a []byte, which needs a ContentType: Avro, Protobuf, an image. Any other
	// value is encoded with encoding/json.
	Payload any
	// ContentType is the media type of the payload, such as "application/x-protobuf":
	// printable ASCII, up to 255 bytes. A payload that is not a []byte is JSON, and
	// its type must be JSON too, such as "application/vnd.acme.order+json". For such a
	// payload, an empty ContentType means application/json.
	ContentType string
	// AggregateType and AggregateID name the subject of the event, "order" and "1042" for
	// example, up to 1024 bytes each. Both or neither.
	AggregateType string
	AggregateID   string
	// Headers travel with the event. Names are like those of HTTP: letters,
	// digits and !#$%&'*+-.^_`|~ . Together up to 64 KiB as JSON.
	Headers map[string]string
	// IdempotencyKey lets at most one event of its type with this key be
	// inserted: a second one fails with a unique violation (SQLSTATE 23505),
	// which aborts the transaction. Up to 1024 bytes. Empty: no such check.
	IdempotencyKey string
	// IgnoreDuplicate skips the event, without an error, if an event of its type has
	// its IdempotencyKey already. The transaction stays usable. The setting needs a
	// key, and all events of a call must have the same setting. See [Write].
	IgnoreDuplicate bool
	// AvailableAt delays the delivery until that time, to the microsecond and
	// up to the year 9999. Zero: deliver at once.
	AvailableAt time.Time
}

// ErrInvalid is wrapped by every error about an event that was refused before
// anything was sent to the database.
var ErrInvalid = errors.New("invalid event")

// content is a payload in the form in which it is stored: JSON in text, or other bytes in raw if
// text is nil.
type content struct {
	text json.RawMessage
	raw  []byte
}

// encode checks e and returns its payload.
func (e *Event) encode() (content, error) {
	var c content
	raw, isBytes := e.Payload.([]byte)
	var err error
	if isBytes && e.ContentType != "" {
		c.raw = raw
	} else {
		c.text, err = encodePayload(e.Payload)
	}

	if err := errors.Join(err, e.checkContentType(isBytes), checkType(e.Type), e.checkAggregate(), checkHeaders(e.Headers),
		e.checkKey(), checkTime(e.AvailableAt)); err != nil {
		return content{}, err
	}

	return c, nil
}

// checkContentType makes the table's checks of the content type before
// anything is sent.
func (e *Event) checkContentType(isBytes bool) error {
	if e.ContentType == "" {
		return nil
	}

	kind, _, err := mime.ParseMediaType(e.ContentType)
	isPrintable := e.ContentType[0] != ' ' &&
		!strings.ContainsFunc(e.ContentType, func(r rune) bool { return r < ' ' || r >= 0x7f })

	switch {
	case len(e.ContentType) > maxTypeBytes:
		return fmt.Errorf("content type %.20q... has %d bytes, at most %d are allowed", e.ContentType, len(e.ContentType), maxTypeBytes)
	case err != nil, !strings.Contains(kind, "/"), !isPrintable:
		return fmt.Errorf("content type %q is no media type such as application/x-protobuf, in printable ASCII", e.ContentType)
	case !isBytes && kind != "application/json" && !strings.HasSuffix(kind, "+json"):
		return fmt.Errorf("content type %q is not that of JSON: give the payload as a []byte", e.ContentType)
	}
	return nil
}

func encodePayload(payload any) (json.RawMessage, error) {
	switch p := payload.(type) {
	case nil:
		return nil, errors.New(`payload is missing: use json.RawMessage("null") if that is meant`)
	case json.RawMessage:
		if !json.Valid(p) || !utf8.Valid(p) {
			return nil, errors.New("payload is not valid JSON in UTF-8")
		}
		return p, nil
	case []byte:
		return nil, errors.New("payload is a []byte: convert it to json.RawMessage if it is JSON, or set the content type")
	default:
		text, err := json.Marshal(p)
		if err != nil {
			return nil, fmt.Errorf("payload cannot be encoded: %w", err)
		}

		if !utf8.Valid(text) { // a json.RawMessage or json.Marshaler inside it
			return nil, errors.New("payload is not valid JSON in UTF-8")
		}
		return text, nil
	}
}

func checkType(name string) error {
	switch {
	case name == "":
		return errors.New(`type is empty: name what has happened, such as "order.created"`)
	case len(name) > maxTypeBytes:
		return fmt.Errorf("type %.20q... has %d bytes, at most %d are allowed", name, len(name), maxTypeBytes)
	case strings.ContainsAny(name, "* \t\r\n\v\f"):
		return fmt.Errorf("type %q contains white space or '*'", name)
	}
	return checkText("type", name)
}

func (e *Event) checkAggregate() error {
	if (e.AggregateType == "") != (e.AggregateID == "") {
		return errors.New("aggregate type and aggregate id belong together: set both or neither")
	}
	return errors.Join(checkName("aggregate type", e.AggregateType), checkName("aggregate id", e.AggregateID))
}

func (e *Event) checkKey() error {
	if e.IgnoreDuplicate && e.IdempotencyKey == "" {
		return errors.New("ignore duplicate without an idempotency key: set a key, nothing is a duplicate without one")
	}
	return checkName("idempotency key", e.IdempotencyKey)
}

func checkHeaders(headers map[string]string) error {
	const punctuation = len(`"": "", `)
	var errs []error
	size := 0

	for name, value := range headers {
		size += punctuation + len(name) + len(value)
		if !isToken(name) {
			errs = append(errs, fmt.Errorf("header name %.40q is not a token: use letters, digits and !#$%%&'*+-.^_`|~", name))
		}
		if !isText(value) { // the value may be a secret, and is not shown
			errs = append(errs, fmt.Errorf("value of header %.40q is not UTF-8 text without zero bytes", name))
		}
	}

	if size > maxHeaderBytes {
		errs = append(errs, fmt.Errorf("headers have %d bytes, at most %d are allowed: put data into the payload", size, maxHeaderBytes))
	}

	return errors.Join(errs...)
}

func checkName(what, s string) error {
	if len(s) > maxNameBytes {
		return fmt.Errorf("%s %.20q... has %d bytes, at most %d are allowed", what, s, len(s), maxNameBytes)
	}
	return checkText(what, s)
}

func checkText(what, s string) error {
	if !isText(s) {
		return fmt.Errorf("%s %.40q is not UTF-8 text without zero bytes", what, s)
	}
	return nil
}

// isText reports whether PostgreSQL can store s in a text or jsonb column. A
// check here spares the caller an aborted transaction.
func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// checkTime allows the years that every client can read.
func checkTime(t time.Time) error {
	if year := t.UTC().Year(); year < 1 || year > 9999 {
		return fmt.Errorf("available at a time in the year %d: use the years 1 to 9999", year)
	}
	return nil
}

// isToken reports whether s is a token of RFC 9110, section 5.6.2.
func isToken(s string) bool {
	for _, r := range []byte(s) {
		isLetter := r|0x20 >= 'a' && r|0x20 <= 'z'
		isDigit := r >= '0' && r <= '9'
		if !isLetter && !isDigit && !bytes.ContainsRune([]byte("!#$%&'*+-.^_`|~"), rune(r)) {
			return false
		}
	}
	return s != ""
}
