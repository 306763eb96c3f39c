// Package tmpl renders text and HTML from an event.
//
// A template is Go's text/template, or html/template where the result is HTML,
// over three values:
//
//	.Event     ID, Type, AggregateType, AggregateID, CreatedAt, Attempt, Replay, DedupeID, Destination, Outbox, and
//	           DeadLetter, which is nil unless the event reports a dead letter of another destination
//	.Payload   the decoded JSON; a number keeps its original text. Of an event that is not JSON it is an error
//	.Headers   the event's headers
//
// A path to a missing value or to null is an error: a mail that greets "<no value>" is
// worse than no mail. Where a value may be absent, use get:
// {{ get .Payload "user.name" | default "friend" }}.
//
// Templates come from the operator's configuration and are trusted; payloads are not. Each action ends with the escaping, or
// the refusal, that the [Kind] of the template has: a printed value stays in its place.
// Neither can make a template run or grow without end, see [MaxOutput], [MaxSteps], [MaxTime] and [MaxValues], and
// no error repeats a value from the payload.
package tmpl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

const (
	// MaxOutput is the limit of the result of one template, in bytes.
	// Mail servers commonly refuse messages of more than 10 MiB, and Gmail
	// shows about 100 KiB of one: 1 MiB is far from both.
	MaxOutput = 1 << 20
	// MaxSteps bounds one execution: each piece of text, each printed value and each
	// iteration of a range is a step. A table of 5,000 rows with 20 columns has
	// about 200,000.
	MaxSteps = 500_000
	// MaxTime bounds one execution. Steps have about the same cost, unless each reads the whole payload.
	MaxTime = 10 * time.Second
	// MaxValues is the limit of the values of a payload that a template uses. A value of three bytes of text takes up to
	// 300 bytes of memory once it is decoded.
	MaxValues = 100_000
)

// Template is one parsed template. It is safe for concurrent use.
type Template struct {
	name     string
	kind     Kind
	constant bool
	text     string
	calls    map[string]bool // the names that it calls, directly or not

	// plain executes templates without a locale.
	plain *instance
	// copy returns another instance. Functions read the locale of their instance, so an instance serves one locale at a time.
	copy   func() (*instance, error)
	copies sync.Pool // of *instance
}

// instance is an executable template and the locale of its functions.
type instance struct {
	exec func(w io.Writer, data any) error
	now  *current
}

// Event is .Event in a template.
type Event struct {
	ID            int64
	Type          string
	AggregateType string
	AggregateID   string
	CreatedAt     time.Time
	Attempt       int
	Replay        int
	DedupeID      string // the key by which receivers drop duplicates: delivery.Event's
	Destination   string
	Outbox        string // its name, where a daemon has many
	DeadLetter    *delivery.DeadLetter
}

// Data is the dot of a template. It may be used for any number of templates, but
// not concurrently with a change.
type Data struct {
	Event   Event
	Headers map[string]string

	locale  Locale              // nil for none
	payload func() (any, error) // nil for none
}

// Locale formats values for a language.
type Locale interface {
	// Money formats an amount, a decimal number with all digits of its currency.
	Money(amount, currency string) string
	// Number formats a decimal number with all its digits, or fails.
	Number(text string) (string, error)
	// Date formats a time by a layout of package time. The layouts short and long are the formats of the language.
	Date(layout string, t time.Time) string
}

// SetLocale sets the language of the functions money, number and date.
func (d *Data) SetLocale(l Locale) { d.locale = l }

// Payload returns the decoded payload, for .Payload. The first call decodes it. It fails if the content type is not JSON, or
// the payload has more than [MaxValues]. Templates that do not use .Payload still work.
func (d *Data) Payload() (any, error) {
	if d.payload == nil {
		return nil, nil
	}
	return d.payload()
}

// MapPayload replaces the decoded payload by f's result.
func (d *Data) MapPayload(f func(payload any) any) {
	before := d.payload
	if before == nil {
		return
	}
	d.payload = sync.OnceValues(func() (any, error) {
		payload, err := before()
		if err != nil {
			return nil, err
		}
		return f(payload), nil
	})
}

// NewData returns the data of e. It returns an error if the payload is JSON by its content type, and not valid.
func NewData(e *delivery.Event) (*Data, error) {
	d := &Data{
		Event: Event{
			ID:            e.ID,
			Type:          e.Type,
			AggregateType: e.AggregateType,
			AggregateID:   e.AggregateID,
			CreatedAt:     e.CreatedAt,
			Attempt:       e.Attempt,
			Replay:        e.Replay,
			DedupeID:      e.DedupeID(),
			Destination:   e.Destination,
			Outbox:        e.Outbox,
			DeadLetter:    e.DeadLetter,
		},
		Headers: e.Headers,
	}

	if !e.IsJSON() {
		d.payload = func() (any, error) {
			return nil, funcErrorf("the payload is not JSON, but %s: put what the template needs into headers, or "+
				"route such events to a destination that takes bytes", e.ContentType)
		}
		return d, nil
	}

	if !json.Valid(e.Payload) {
		return nil, invalid(e.Payload)
	}

	d.payload = sync.OnceValues(func() (any, error) { return decode(e.Payload) })
	return d, nil
}

// invalid returns why a payload is not valid JSON. The decoder's error can quote the payload, so it is not wrapped.
func invalid(payload []byte) error {
	dec := json.NewDecoder(bytes.NewReader(payload))
	var value json.RawMessage
	if err := dec.Decode(&value); err != nil {
		return fmt.Errorf("the payload is not JSON (near byte %d)", dec.InputOffset())
	}
	return fmt.Errorf("the payload has more than one JSON value (at byte %d)", dec.InputOffset())
}

// decode decodes a valid payload.
func decode(payload []byte) (value any, err error) {
	if at := tooManyValues(payload); at > 0 {
		return nil, funcErrorf("the payload has more than %d values (at byte %d): put what the template needs into "+
			"headers, or write smaller events", MaxValues, at)
	}

	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.UseNumber()

	if err := dec.Decode(&value); err != nil {
		return nil, funcErrorf("the payload is not JSON (near byte %d)", dec.InputOffset())
	}

	return value, nil
}

// tooManyValues returns where a payload exceeds MaxValues, or 0.
func tooManyValues(payload []byte) int {
	values := 1
	inText := false

	for i := 0; i < len(payload); i++ {
		switch c := payload[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c == ',', c == '[', c == '{': // each precedes a value, but for empty lists and objects
			values++
			if values > MaxValues {
				return i
			}
		}
	}

	return 0
}

// Name returns the name that the template was parsed with.
func (t *Template) Name() string { return t.name }

// Source returns the text that the template was parsed from.
func (t *Template) Source() string { return t.text }

// Calls reports whether the template calls another one by that name, directly or not.
func (t *Template) Calls(name string) bool { return t.calls[name] }

// Constant reports whether the template has no actions, so that its result is the
// same for every event, and returns that result.
func (t *Template) Constant() (string, bool) { return t.text, t.constant }

// Render executes the template. The error names the template and the field.
func (t *Template) Render(d *Data) (string, error) {
	w := limitWriter{until: time.Now().Add(MaxTime)}
	if err := t.execute(&w, d); err != nil {
		return "", execError(t.name, err)
	}
	if !t.kind.rule().segments {
		return w.buf.String(), nil
	}

	out, err := segments(w.buf.String(), t.kind == URL)
	if err != nil {
		return "", execError(t.name, err)
	}
	return out, nil
}

// execute runs the instance that writes in the locale of d.
func (t *Template) execute(w io.Writer, d *Data) error {
	if d.locale == nil {
		return t.plain.exec(w, d)
	}

	one, ok := t.copies.Get().(*instance)
	if !ok {
		var err error
		one, err = t.copy()
		if err != nil {
			return err
		}
	}
	defer t.copies.Put(one)

	one.now.locale = d.locale
	return one.exec(w, d)
}

// limitWriter holds the result and stops the template at [MaxOutput], [MaxSteps] or [MaxTime]. Every step of a template ends in a
// Write, even an empty one: see prepare.
type limitWriter struct {
	buf   bytes.Buffer
	steps int
	until time.Time
}

// stepsUntimed is how many steps a template takes before it reads the clock: most templates take fewer.
const stepsUntimed = 100

func (w *limitWriter) Write(p []byte) (int, error) {
	w.steps++
	if w.steps > MaxSteps {
		return 0, funcErrorf("it takes more than %d steps: range over fewer elements", MaxSteps)
	}
	if w.steps > stepsUntimed && time.Now().After(w.until) {
		return 0, funcErrorf("it takes more than %v: do not read the whole payload for each element of a range", MaxTime)
	}
	if w.buf.Len()+len(p) > MaxOutput {
		return 0, funcErrorf("its result has more than %d bytes: shorten it, or send a link", MaxOutput)
	}
	return w.buf.Write(p)
}
