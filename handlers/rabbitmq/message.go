package rabbitmq

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// maxPriority is the largest priority of the protocol; queues have x-max-priority.
const maxPriority = 255

// maxExpiration is the limit of RabbitMQ's timers, in milliseconds.
const maxExpiration = 1<<32 - 1

// amqpMarks are the characters that an exchange of the type "topic" interprets.
const amqpMarks = ".*#"

// templates are the settings that may depend on the event; nil if not set.
type templates struct{ exchange, routingKey, priority, expiration *tmpl.Template }

// parseTemplates returns the mistakes joined, each a [*handlers.FieldError].
func parseTemplates(c Config) (*templates, error) {
	var ts templates
	var errs []error
	for _, s := range []struct {
		kind interface {
			Parse(name, text string) (*tmpl.Template, error)
		}
		name, text string
		to         **tmpl.Template
		check      func(string) error
	}{
		{tmpl.Levels(amqpMarks), "exchange", c.Exchange, &ts.exchange, check(name)},
		{tmpl.Levels(amqpMarks), "routing_key", c.RoutingKey, &ts.routingKey, check(name)},
		{tmpl.Checked, "message_priority", c.MessagePriority, &ts.priority, check(priority)},
		{tmpl.Checked, "expiration", c.Expiration, &ts.expiration, check(expiration)},
	} {
		if s.text == "" {
			continue
		}

		t, err := s.kind.Parse(s.name, s.text)
		if err != nil {
			errs = append(errs, field.Errorf(s.name, "%w", err))
			continue
		}

		if text, constant := t.Constant(); constant {
			if err := s.check(text); err != nil {
				errs = append(errs, field.Errorf(s.name, "%w", err))
			}
		}

		*s.to = t
	}

	return &ts, errors.Join(errs...)
}

// check keeps only the error of a parser.
func check[T any](parse func(string) (T, error)) func(string) error {
	return func(s string) error {
		_, err := parse(s)
		return err
	}
}

// outgoing is an event in the form in which it is published.
type outgoing struct {
	exchange, key string
	publishing    amqp.Publishing
	header        int  // bytes that the frame with the properties takes, at most
	delayed       bool // an exchange of the type x-delayed-message keeps it for a while
}

// encoder turns events into messages. It is safe for concurrent use.
type encoder struct {
	cfg      Config
	body     *message.Encoder
	tmpl     *templates
	needData bool // a template has to look at the event
}

func newEncoder(cfg Config, ts *templates) (*encoder, error) {
	body, err := message.New(cfg.Message, message.AMQP())
	if err != nil {
		return nil, err
	}
	e := &encoder{cfg: cfg, body: body, tmpl: ts}
	e.needData = body.Renders()
	for _, t := range []*tmpl.Template{ts.exchange, ts.routingKey, ts.priority, ts.expiration} {
		e.needData = e.needData || depends(t)
	}
	return e, nil
}

// depends reports whether a setting is different for different events.
func depends(t *tmpl.Template) bool {
	if t == nil {
		return false
	}
	_, constant := t.Constant()
	return !constant
}

// encode returns the message for e. Its errors are about e, or about a template
// that does not fit e.
func (c *encoder) encode(e *delivery.Event) (*outgoing, error) {
	var data *tmpl.Data
	if c.needData {
		var err error
		data, err = tmpl.NewData(e)
		if err != nil {
			return nil, err
		}
	}

	m := c.body.Encode(e)
	if err := c.body.Render(&m, e, data); err != nil {
		return nil, err
	}

	if len(m.Body) > c.cfg.MaxMessageBytes {
		return nil, fmt.Errorf("the message has %d bytes, more than the %d of max_message_bytes", len(m.Body), c.cfg.MaxMessageBytes)
	}

	out := &outgoing{key: e.Type, publishing: amqp.Publishing{
		ContentType:  m.ContentType,
		DeliveryMode: amqp.Persistent,
		MessageId:    e.DedupeID(),
		Type:         e.Type,
		Timestamp:    e.CreatedAt,
		AppId:        c.cfg.AppID,
		Body:         m.Body,
		Headers:      make(amqp.Table, len(m.Headers)),
	}}

	if c.cfg.Transient {
		out.publishing.DeliveryMode = amqp.Transient
	}

	const properties = 6 * (1 + maxShort) // all that are not headers, at their longest
	out.header = properties
	for _, h := range m.Headers {
		if routes(h.Name) {
			continue
		}

		if len(h.Name) > maxShort {
			return nil, fmt.Errorf("the name of a header has %d bytes: RabbitMQ takes %d", len(h.Name), maxShort)
		}

		if h.Name == delayHeader {
			out.delayed = isDelay(h.Value)
		}
		out.publishing.Headers[h.Name] = h.Value
		out.header += 1 + len(h.Name) + 1 + 4 + len(h.Value)
	}

	return out, c.render(out, data)
}

// routes reports whether RabbitMQ takes a header for more keys to route a message by. It closes the
// channel where the value is not a list, and notifyd sends no lists.
func routes(name string) bool { return name == "CC" || name == "BCC" }

func (c *encoder) render(out *outgoing, data *tmpl.Data) error {
	var err error
	out.exchange, err = render(c.tmpl.exchange, data, "", name)
	if err != nil {
		return err
	}

	if err := checkExchange(c.tmpl.exchange, out.exchange); err != nil {
		return err
	}

	out.key, err = render(c.tmpl.routingKey, data, out.key, name)
	if err != nil {
		return err
	}

	if depends(c.tmpl.routingKey) && hasEmptyWord(out.key) {
		return fmt.Errorf("template %q: its result has an empty word: no dot at either end, and no two in a row", c.tmpl.routingKey.Name())
	}

	out.publishing.Priority, err = render(c.tmpl.priority, data, 0, priority)
	if err != nil {
		return err
	}

	out.publishing.Expiration, err = render(c.tmpl.expiration, data, "", expiration)
	return err
}

// render returns the parsed result of a template, or unset without a
// template.
func render[T any](t *tmpl.Template, data *tmpl.Data, unset T, parse func(string) (T, error)) (T, error) {
	if t == nil {
		return unset, nil
	}

	text, constant := t.Constant()
	if !constant {
		var err error
		text, err = t.Render(data)
		if err != nil {
			return unset, err
		}
	}

	v, err := parse(text)
	if err != nil {
		return unset, fmt.Errorf("template %q: %w", t.Name(), err)
	}

	return v, nil
}

// name is an exchange or a routing key.
func name(s string) (string, error) {
	if len(s) > maxShort {
		return "", fmt.Errorf("its result has %d bytes: RabbitMQ takes %d", len(s), maxShort)
	}
	if !utf8.ValidString(s) {
		return "", errors.New("its result is not UTF-8")
	}
	return s, nil
}

// checkExchange returns an error if an event has chosen an exchange of the broker itself: the default exchange reaches every
// queue.
func checkExchange(t *tmpl.Template, exchange string) error {
	if !depends(t) {
		return nil
	}
	isOwn := strings.HasPrefix(exchange, "amq.") && !strings.HasPrefix(t.Source(), "amq.")
	if exchange == "" || isOwn {
		return fmt.Errorf("template %q: its result is empty or begins with amq.: such exchanges are the broker's own", t.Name())
	}
	return nil
}

// hasEmptyWord reports whether a routing key has a word between its dots that is empty. The empty key has no words.
func hasEmptyWord(key string) bool {
	return key != "" && slices.Contains(strings.Split(key, "."), "")
}

func priority(s string) (uint8, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("its result must be a whole number from 0 to %d", maxPriority)
	}
	return uint8(n), nil
}

// expiration returns milliseconds, as the protocol writes them, of a duration
// or of milliseconds.
func expiration(s string) (string, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return "", nil
	}
	if ms, err := strconv.ParseUint(s, 10, 32); err == nil {
		return strconv.FormatUint(ms, 10), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d.Milliseconds() > maxExpiration {
		return "", errors.New("its result must be a duration such as 30s, or milliseconds, from 0 to 49 days")
	}
	return strconv.FormatInt(d.Milliseconds(), 10), nil
}
