package redis

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// fieldName returns the name that a stream's entry has for a header. The headers of
// the form "payload" have short names here: an entry holds nothing else to keep
// them apart from, but the event's own headers, and those give way.
func fieldName(header string) string {
	switch header {
	case message.HeaderID:
		return "id"
	case message.HeaderType:
		return "type"
	case message.HeaderAggregateType:
		return "aggregate_type"
	case message.HeaderAggregateID:
		return "aggregate_id"
	case message.HeaderTime:
		return "time"
	case headerContentType:
		return fieldContentType
	case message.HeaderOutbox:
		return "outbox"
	case message.HeaderDeadDestination, message.HeaderDeadError, message.HeaderDeadClass, message.HeaderDeadAttempts,
		message.HeaderDeadSince, message.HeaderDeadTime, message.HeaderDeadReplay:
		return strings.ReplaceAll(strings.TrimPrefix(header, "notifyd-"), "-", "_")
	default:
		return header
	}
}

// headerContentType stands for the content type among the headers: an event has no header of that name.
const (
	headerContentType = "content-type"
	fieldContentType  = "content_type"
)

// parseTemplate parses the stream or the channel. It returns nil if neither
// is set.
func parseTemplate(c Config) (*tmpl.Template, error) {
	path := "stream"
	text := c.Stream
	if text == "" {
		path = "channel"
		text = c.Channel
	}
	if text == "" {
		return nil, nil //nolint:nilnil // form complains
	}
	t, err := tmpl.RedisKey.Parse(path, text)
	if err != nil {
		return nil, field.Errorf(path, "%w", err)
	}
	return t, nil
}

// encoder makes commands of events.
type encoder struct {
	message  *message.Encoder
	key      *tmpl.Template
	fixed    string // the stream or channel, "" if it is made of the event
	what     string // "stream" or "channel"
	body     string // the field with the body
	head     []any  // of XADD, between the key and the fields
	maxBytes int
	script   *script // nil: copies are added

	attributes bool // there are fields that are attributes of CloudEvents
}

func newEncoder(cfg Config) (*encoder, error) {
	key, err := parseTemplate(cfg)
	if err != nil {
		return nil, err
	}

	m, err := message.New(cfg.Message, message.Binding{})
	if err != nil {
		return nil, err
	}

	e := &encoder{
		message:    m,
		key:        key,
		attributes: cfg.Format == handlers.FormatCloudEventsBinary,
		what:       "stream",
		body:       cfg.PayloadField,
		maxBytes:   cfg.MaxMessageBytes,
	}

	if cfg.Channel != "" {
		e.what = "channel"
	}

	if cfg.MaxLen > 0 {
		e.head = append(e.head, "maxlen", "~", cfg.MaxLen)
	}
	e.head = append(e.head, "*")

	if cfg.Deduplicate > 0 {
		e.script = &script{goredis.NewScript(deduplicate), cfg.Deduplicate}
	}

	if name, ok := key.Constant(); ok {
		e.fixed = name
	}

	return e, nil
}

// taken reports whether an event's own header may not be a field of that name, in any spelling,
// because readers would take it for notifyd's: the body, or the names of fieldName. Some of those names are
// attributes of CloudEvents as well, which an event cannot choose.
func (e *encoder) taken(name string) bool {
	switch strings.ToLower(name) {
	case "id", "type", "time":
		return !e.attributes
	case "aggregate_type", "aggregate_id", fieldContentType:
		return true
	default:
		return strings.EqualFold(name, e.body)
	}
}

// command is the command for one event.
type command struct {
	event int // its place in the batch
	key   string
	id    string // to recognise a copy by; "" without a script
	args  []any
}

// command makes the command for ev. An error is permanent, and the event's
// fault.
func (e *encoder) command(i int, ev *delivery.Event) (command, error) {
	var data *tmpl.Data
	if e.fixed == "" || e.message.Renders() {
		var err error
		data, err = tmpl.NewData(ev)
		if err != nil {
			return command{}, err
		}
	}

	key := e.fixed
	if key == "" {
		var err error
		key, err = e.render(data)
		if err != nil {
			return command{}, err
		}
	}

	m := e.message.Encode(ev)
	if err := e.message.Render(&m, ev, data); err != nil {
		return command{}, err
	}

	size := len(key) + len(m.Body)
	c := command{event: i, key: key}
	if e.what == "channel" {
		c.args = []any{"publish", key, m.Body}
	} else {
		c.args = append(c.args, "xadd", key)
		c.args = append(c.args, e.head...)

		if e.message.Raw(ev) { // without the content type, readers would take the body for JSON
			m.Headers = append(m.Headers, message.Header{Name: e.typeField(), Value: m.ContentType})
		}
		c.args, size = e.fields(c.args, m, size)
	}

	if e.script != nil {
		c.id = uniqueID(ev)
		if n := len(c.args); n > maxArgs {
			return command{}, fmt.Errorf("the entry has %d fields, more than deduplicate can add, %d", n/2-1, maxArgs/2-1)
		}
	}

	if size > e.maxBytes {
		return command{}, fmt.Errorf("the event has %d bytes, more than max_message_bytes of %d", size, e.maxBytes)
	}

	return c, nil
}

func (e *encoder) render(data *tmpl.Data) (string, error) {
	key, err := e.key.Render(data)
	if err != nil {
		return "", err
	}
	if key == "" {
		return "", fmt.Errorf("the %s made of this event is empty", e.what)
	}
	return key, nil
}

// typeField is the field of an entry with the content type of a body that is not JSON.
func (e *encoder) typeField() string {
	if e.attributes {
		return "datacontenttype"
	}
	return headerContentType
}

// fields appends the fields of an entry: those about the event, the
// event's own headers, but for those whose names are taken, and the body. A name
// comes once, or readers that make a map of the entry would differ about it.
func (e *encoder) fields(args []any, m message.Message, size int) ([]any, int) {
	names := append(make([]string, 0, len(m.Headers)+1), e.body)
	for _, h := range m.Headers {
		name := fieldName(h.Name)
		if taken := name == h.Name && e.taken(name); !taken && !slices.Contains(names, name) {
			names = append(names, name)
			args = append(args, name, h.Value)
			size += len(name) + len(h.Value)
		}
	}
	return append(args, e.body, m.Body), size + len(e.body)
}

// group is the commands of a batch for one key, in order.
type group struct {
	key      string
	commands []command
}

// groups splits a batch by key. Order is kept within a key only.
func groups(all []command) []group {
	var out []group
	place := make(map[string]int)
	for _, c := range all {
		at, ok := place[c.key]
		if !ok {
			at = len(out)
			place[c.key] = at
			out = append(out, group{key: c.key})
		}
		out[at].commands = append(out[at].commands, c)
	}
	return out
}

var errNoSubscribers = errors.New("the channel has no subscriber (require_subscribers)")
