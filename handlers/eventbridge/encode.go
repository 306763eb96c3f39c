package eventbridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/awsapi"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// The limits of PutEvents. See
// https://docs.aws.amazon.com/eventbridge/latest/APIReference/API_PutEvents.html.
const (
	maxEntries = 10
	// maxBytes is below 1 MB, of one event and of one request.
	maxBytes      = 1_000_000 - 1
	maxDetailType = 128 // characters
	timeSize      = 14  // as EventBridge counts a time
)

// templates holds the parsed templates of a Config, nil where the Config
// has no template.
type templates struct {
	source, detailType *tmpl.Template
	resources          []*tmpl.Template
}

func newTemplates(cfg Config) (templates, error) {
	var t templates
	var errs []error
	parse := func(kind tmpl.Kind, setting, text string) *tmpl.Template {
		parsed, err := awsapi.Template(kind, setting, text)
		errs = append(errs, err)
		return parsed
	}

	t.source = parse(tmpl.EventSource, "source", cfg.Source)
	t.detailType = parse(tmpl.Key, "detail_type", cfg.DetailType)

	for i, text := range cfg.Resources {
		if parsed := parse(tmpl.Key, resource(i), text); parsed != nil {
			t.resources = append(t.resources, parsed)
		}
	}

	return t, errors.Join(errs...)
}

// encoder makes entries of events. It is safe for concurrent use.
type encoder struct {
	bus     string
	message *message.Encoder
	templates
}

func newEncoder(cfg Config) (*encoder, error) {
	m, err := message.New(cfg.Message, message.Kafka()) // CloudEvents defines no binding for EventBridge
	if err != nil {
		return nil, err
	}
	t, err := newTemplates(cfg)
	if err != nil {
		return nil, err
	}
	return &encoder{bus: cfg.EventBus, message: m, templates: t}, nil
}

// encode makes the entry for an event, and returns its size. Its errors are about the event: another
// attempt would end the same way.
func (e *encoder) encode(ev *delivery.Event) (types.PutEventsRequestEntry, int, error) {
	in, err := e.entry(ev)
	if err != nil {
		return in, 0, err
	}

	size := len(*in.Source) + len(*in.DetailType) + len(*in.Detail)
	for _, r := range in.Resources {
		size += len(r)
	}

	if in.Time != nil {
		size += timeSize
	}

	if size > maxBytes {
		return in, 0, fmt.Errorf("the event has %d bytes with its resources: EventBridge takes %d", size, maxBytes)
	}

	return in, size, nil
}

func (e *encoder) entry(ev *delivery.Event) (in types.PutEventsRequestEntry, err error) {
	data, err := tmpl.NewData(ev)
	if err != nil {
		return in, err
	}

	m := e.message.Encode(ev)
	if err := e.message.Render(&m, ev, data); err != nil {
		return in, err
	}

	if !isObject(m.Body) {
		return in, errors.New("the detail is not a JSON object: set body, or format: cloudevents_structured, which " +
			"puts one around the payload")
	}

	source, err := e.source.Render(data)
	if err != nil {
		return in, err
	}

	detailType := ev.Type
	if e.detailType != nil {
		detailType, err = e.detailType.Render(data)
		if err != nil {
			return in, err
		}
	}

	switch {
	case source == "":
		return in, errors.New(`template "source" yields nothing: fix the event, or the template`)
	case detailType == "":
		return in, errors.New(`template "detail_type" yields nothing: fix the event, or the template`)
	case len([]rune(detailType)) > maxDetailType:
		return in, fmt.Errorf("the detail-type has more than the %d characters that EventBridge takes: set detail_type", maxDetailType)
	}

	in = types.PutEventsRequestEntry{
		EventBusName: aws.String(e.bus),
		Source:       aws.String(source),
		DetailType:   aws.String(detailType),
		Detail:       aws.String(string(m.Body)),
	}

	if !ev.CreatedAt.IsZero() {
		in.Time = aws.Time(ev.CreatedAt.UTC().Truncate(time.Second)) // it keeps no more
	}

	in.Resources, err = e.resourcesOf(m, data)
	return in, err
}

// resourcesOf returns the resources of the event, and then its headers, as name:value: an event
// of EventBridge has no other place for them, and consumers need the id. The type and the time
// have separate fields.
func (e *encoder) resourcesOf(m message.Message, data *tmpl.Data) ([]string, error) {
	var all []string
	for _, t := range e.resources {
		text, err := t.Render(data)
		if err != nil {
			return nil, err
		}

		if message.IsOwn(text) {
			return nil, fmt.Errorf("template %q yields a resource that begins like notifyd's own: they are about the event", t.Name())
		}

		if text != "" {
			all = append(all, text)
		}
	}

	for _, h := range m.Headers {
		if h.Name != message.HeaderType && h.Name != message.HeaderTime {
			all = append(all, h.Name+":"+h.Value)
		}
	}

	return all, nil
}

// isObject reports whether a text is one JSON object.
func isObject(text []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")) && json.Valid(text)
}

// preview lays an entry out for people.
func preview(in types.PutEventsRequestEntry) string {
	fields := []message.Header{
		{Name: "event bus", Value: *in.EventBusName}, {Name: "source", Value: *in.Source}, {Name: "detail-type", Value: *in.DetailType},
	}
	if in.Time != nil {
		fields = append(fields, message.Header{Name: "time", Value: in.Time.Format(time.RFC3339)})
	}
	for _, r := range in.Resources {
		fields = append(fields, message.Header{Name: "resource", Value: r})
	}
	return message.Preview(fields, []byte(*in.Detail))
}
