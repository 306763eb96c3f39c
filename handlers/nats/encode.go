package nats

import (
	"fmt"
	"strconv"
	"strings"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// headerContentType is where the binding of CloudEvents for NATS has the media
// type. The form "payload" has it as well.
const headerContentType = "Content-Type"

// ownPrefix begins the headers that NATS itself interprets. An event must not have
// them: Nats-Rollup alone would delete everything else in a stream.
const ownPrefix = "Nats-"

// encoder makes messages of events.
type encoder struct {
	message *message.Encoder
	subject *tmpl.Template
	fixed   string // the subject, "" if it is made of the event
	stream  string
	plain   bool // mode: core
}

func newEncoder(cfg Config) (*encoder, error) {
	subject, err := parseSubject(cfg)
	if err != nil {
		return nil, err
	}

	m, err := message.New(cfg.Message, message.HTTP())
	if err != nil {
		return nil, err
	}

	e := &encoder{message: m, subject: subject, stream: cfg.Stream, plain: cfg.Mode == ModeCore}
	if name, ok := subject.Constant(); ok {
		e.fixed = name
	}

	return e, nil
}

// msg makes the message for ev. An error is permanent, and the event's
// fault.
func (e *encoder) msg(ev *delivery.Event) (*natsgo.Msg, error) {
	var data *tmpl.Data
	var err error

	if e.fixed == "" || e.message.Renders() {
		data, err = tmpl.NewData(ev)
		if err != nil {
			return nil, err
		}
	}

	subject := e.fixed
	if subject == "" {
		subject, err = e.subject.Render(data)
		if err != nil {
			return nil, err
		}

		if err := checkSubject(subject); err != nil {
			return nil, fmt.Errorf("the subject made of this event %w", err)
		}
	}

	m := e.message.Encode(ev)
	if err := e.message.Render(&m, ev, data); err != nil {
		return nil, err
	}

	// Names are kept as they are, which a map's own methods do not: NATS knows its
	// names in one case only.
	header := natsgo.Header{headerContentType: {m.ContentType}}
	for _, h := range m.Headers {
		if mayHave(h.Name) {
			header[h.Name] = []string{oneLine(h.Value)}
		}
	}

	if !e.plain {
		header[jetstream.MsgIDHeader] = []string{msgID(ev)}
	}
	if e.stream != "" {
		header[jetstream.ExpectedStreamHeader] = []string{e.stream}
	}

	return &natsgo.Msg{Subject: subject, Header: header, Data: m.Body}, nil
}

// mayHave reports whether a message may have an event's header of that name.
func mayHave(name string) bool {
	isMark := func(r rune) bool { return r <= ' ' || r == ':' || r >= 0x7f }
	isValid := name != "" && !strings.ContainsFunc(name, isMark)
	if !isValid || strings.EqualFold(name, headerContentType) { // notifyd sets the content type itself
		return false
	}

	return len(name) < len(ownPrefix) || !strings.EqualFold(name[:len(ownPrefix)], ownPrefix)
}

// oneLine keeps a value from ending its line, and with it the header.
func oneLine(value string) string {
	return strings.NewReplacer("\r\n", " ", "\r", " ", "\n", " ").Replace(value)
}

// msgID is the id by which the stream recognises duplicates. The time tells apart the events
// of two databases that share a stream, and those of one before and after it was
// emptied: their ids begin at 1 again, and an event that is taken for another's
// duplicate is lost.
func msgID(ev *delivery.Event) string {
	return ev.Destination + "-" + ev.DedupeID() + "-" + strconv.FormatInt(ev.CreatedAt.UnixMicro(), 36)
}
