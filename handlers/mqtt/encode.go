package mqtt

import (
	"errors"
	"fmt"

	"github.com/eclipse/paho.golang/packets"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// qos is at least once, with an acknowledgement.
const qos = 1

// maxBody keeps a packet below 256 MiB, the protocol's limit.
const maxBody = 250 << 20

// encoder makes packets of events.
type encoder struct {
	message  *message.Encoder
	topic    *tmpl.Template
	template string
	fixed    string // the topic, "" if it is made of the event
	retain   bool
}

func newEncoder(cfg Config) (*encoder, error) {
	topic, err := parseTopic(cfg)
	if err != nil {
		return nil, err
	}

	// The binding of CloudEvents for MQTT 5 names user properties as the attributes, and has the media type in the
	// property Content Type.
	m, err := message.New(cfg.Message, message.Binding{})
	if err != nil {
		return nil, err
	}

	e := &encoder{message: m, topic: topic, template: cfg.Topic, retain: cfg.Retain}
	if name, ok := topic.Constant(); ok {
		e.fixed = name
	}
	return e, nil
}

// packet makes the packet for ev, without its identifier. An error is permanent, and the event's fault.
func (e *encoder) packet(ev *delivery.Event) (*packets.Publish, error) {
	var data *tmpl.Data
	var err error

	if e.fixed == "" || e.message.Renders() {
		data, err = tmpl.NewData(ev)
		if err != nil {
			return nil, err
		}
	}

	topic := e.fixed
	if topic == "" {
		topic, err = e.topic.Render(data)
		if err != nil {
			return nil, err
		}

		if err := checkMade(topic, e.template); err != nil {
			return nil, fmt.Errorf("the topic made of this event %w", err)
		}
	}

	m := e.message.Encode(ev)
	if err := e.message.Render(&m, ev, data); err != nil {
		return nil, err
	}

	properties := &packets.Properties{ContentType: safe(m.ContentType)}
	tooLong := len(properties.ContentType) > maxText
	for _, h := range m.Headers {
		user := packets.User{Key: safe(h.Name), Value: safe(h.Value)}
		tooLong = tooLong || len(user.Key) > maxText || len(user.Value) > maxText
		properties.User = append(properties.User, user)
	}

	switch {
	case tooLong:
		return nil, errors.New("a header has more than 65535 bytes, which MQTT cannot carry")
	case len(m.Body) > maxBody:
		return nil, errors.New("the body has more than 250 MiB, which MQTT cannot carry")
	}
	return &packets.Publish{Topic: topic, Properties: properties, Payload: m.Body, QoS: qos, Retain: e.retain}, nil
}
