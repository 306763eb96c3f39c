package nats

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// fault is one line of the table: what NATS can be brought to say, and what
// becomes of the event.
type fault struct {
	name      string
	change    func(*Config)
	event     func(*delivery.Event)
	class     delivery.Class
	permanent bool
	text      string
}

func faults() []fault {
	const event, destination = delivery.ClassEvent, delivery.ClassDestination
	payload := func(n int) func(*delivery.Event) {
		return func(e *delivery.Event) { e.Payload = json.RawMessage(`"` + strings.Repeat("x", n) + `"`) }
	}
	return []fault{
		{"no stream takes the subject", to("missing"), nil, destination, false, "create a stream"},
		{"no stream takes the subject of one event", to("o.{{ .Event.Type }}"), nil, event, false, "no stream takes the subject"},
		{"a subject that is not ours", to("other"), nil, destination, false, "allow the user"},
		{"the subject of one event is not ours", to("other.{{ .Event.ID }}"), nil, event, false, "allow the user"},
		{"the stream is full", to("full"), nil, destination, false, "discards new messages"},
		{"the subject of one event is full", to("persubject.{{ .Event.ID }}"), nil, event, false, "per subject"},
		{"too large for the stream", to("small"), payload(2000), event, true, "max_msg_size"},
		{"too large for the server", nil, payload(200_000), event, true, "max_payload"},
		{"headers too large", nil, func(e *delivery.Event) { e.Headers["x"] = strings.Repeat("x", 70_000) }, event, true, "header"},
		{"another stream", func(c *Config) { c.Stream = "OTHER" }, nil, destination, false, "another stream"},
		{"another stream for one event", func(c *Config) { c.Stream, c.Subject = "OTHER", "{{ .Payload.to }}" }, func(e *delivery.Event) { e.Payload = json.RawMessage(`{"to": "s"}`) }, event, false, "another stream"},
		{"a wildcard out of an event", to("o.{{ .Payload.to }}"), func(e *delivery.Event) { e.Payload = json.RawMessage(`{"to": ">"}`) }, event, true, "must be one level"},
		{"a blank out of an event", to("o.{{ .Payload.to }}"), func(e *delivery.Event) { e.Payload = json.RawMessage(`{"to": "a b"}`) }, event, true, "must be one level"},
		{"not in the event", to("o.{{ .Payload.nope }}"), nil, event, true, "nope"},
		{"a wrong password", func(c *Config) { c.Password = handlers.NewSecret(password + "!") }, nil, destination, false, "check username"},
		{"no user", func(c *Config) { c.Username, c.Password = "", handlers.Secret{} }, nil, destination, false, "check username"},
		{"no TLS there", func(c *Config) { c.Servers[0] = strings.Replace(c.Servers[0], "nats:", "tls:", 1) }, nil, destination, false, "has no TLS"},
		{"no server there", func(c *Config) { c.Servers = []string{"nats://localhost:1"} }, nil, destination, false, "refused"},
		{"an account without JetStream", func(c *Config) { c.Username = "bob" }, nil, destination, false, "enable JetStream"},
		{"core: a subject that is not ours", func(c *Config) { c.Mode, c.Subject = ModeCore, "other" }, nil, destination, false, "allow the user"},
		{"core: the subject of one event is not ours", func(c *Config) { c.Mode, c.Subject = ModeCore, "other.{{ .Event.ID }}" }, nil, event, false, "allow the user"},
		{"core: too large for the server", func(c *Config) { c.Mode = ModeCore }, payload(200_000), event, true, "max_payload"},
	}
}

// cases are the faults, for the conformance suite.
func cases(t *testing.T, js jetstream.JetStream, with func(testing.TB, ...func(*Config)) *Handler) (all []handlertest.Case) {
	t.Helper()
	newStream(t, js, jetstream.StreamConfig{Name: "FULL", Subjects: []string{"full"}, MaxMsgs: 1, Discard: jetstream.DiscardNew})
	newStream(t, js, jetstream.StreamConfig{
		Name: "PERSUBJECT", Subjects: []string{"persubject.>"}, MaxMsgs: 100, MaxMsgsPerSubject: 1,
		Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
	})
	newStream(t, js, jetstream.StreamConfig{Name: "SMALL", Subjects: []string{"small"}, MaxMsgSize: 1000})
	for _, subject := range []string{"full", "persubject.1"} {
		if _, err := js.Publish(t.Context(), subject, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range faults() {
		all = append(all, handlertest.Case{
			Name: f.name, Class: f.class, Permanent: f.permanent, Text: f.text,
			Unclear: f.class == delivery.ClassEvent && !f.permanent, // a place that is made of the event
			Provoke: func(tb testing.TB) error {
				tb.Helper()
				change := f.change
				if change == nil {
					change = func(*Config) {}
				}
				h := with(tb, change)
				defer h.Close() //nolint:errcheck // always nil
				batch := events(1, 1, 1)
				for _, e := range batch {
					if f.event != nil {
						f.event(e)
					}
				}
				one := h.Deliver(tb.Context(), batch[0])
				for _, err := range h.DeliverBatch(tb.Context(), batch) {
					if deliverytest.Class(err) != deliverytest.Class(one) {
						tb.Errorf("alone it is %v\nin a batch %v", one, err)
					}
				}
				return one
			},
		})
	}
	return all
}

// TestStorageExceeded has an account that may not store as much as its stream.
func TestStorageExceeded(t *testing.T) {
	t.Parallel()
	s := testenv.OwnNATS(t, `accounts { A { jetstream { max_mem: 1MB, max_file: 20KB }, users: [{user: ann, password: s3cr3t}] } }`)
	login := func(c *Config) { c.Username, c.Password = "ann", handlers.NewSecret("s3cr3t") }
	_, js := client(t, "nats://ann:s3cr3t@"+s.Addr())
	newStream(t, js, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	h := open(t, "nats://"+s.Addr(), login)
	e := events(1)[0]
	e.Payload = json.RawMessage(`"` + strings.Repeat("x", 5000) + `"`)
	var err error
	for e.ID = 1; e.ID < 100 && err == nil; e.ID++ {
		err = h.Deliver(t.Context(), e)
	}
	deliverytest.WantClass(t, err, "unavailable")
	deliverytest.WantText(t, err, "no room")
}

// TestSealed has a stream that takes nothing more.
func TestSealed(t *testing.T) {
	t.Parallel()
	place := testenv.NATS(t)
	_, js := client(t, place.URL)
	cfg := jetstream.StreamConfig{Name: place.Name, Subjects: []string{place.Name}}
	newStream(t, js, cfg)
	cfg.Sealed = true
	newStream(t, js, cfg)
	for _, err := range open(t, place.URL, to(place.Name)).DeliverBatch(t.Context(), events(1, 2)) {
		deliverytest.WantClass(t, err, "unavailable")
		deliverytest.WantText(t, err, "sealed")
	}
}

// TestTimeouts has a server that keeps its connections and does not answer.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{ModeJetStream, ModeCore} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := testenv.OwnNATS(t, "")
			_, js := client(t, s.Addr())
			newStream(t, js, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
			h := open(t, "nats://"+s.Addr(), func(c *Config) {
				c.AckTimeout, c.ConnectTimeout, c.Mode = 100*time.Millisecond, 100*time.Millisecond, mode
			})
			// Connecting, or writing to a busy disk, may take longer than the timeouts.
			// The stream drops the copies.
			testenv.Await(t, "it answers", func() bool { return h.Deliver(t.Context(), events(1)[0]) == nil })
			if err := s.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			errs := h.DeliverBatch(t.Context(), events(2, 3))
			for _, err := range errs {
				deliverytest.WantClass(t, err, "unavailable")
				deliverytest.WantText(t, err, "ack_timeout")
			}
			if !h.link.isClosed() {
				t.Error("a connection that may lead nowhere is kept for later")
			}
			// Now there is no connection either.
			deliverytest.WantClass(t, h.Deliver(t.Context(), events(2)[0]), "unavailable")
			if err := s.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			testenv.Await(t, "it answers again", func() bool { return h.DeliverBatch(t.Context(), events(2, 3, 4)) == nil })
			if mode == ModeJetStream {
				if got := written(t, js, "S"); len(got) != 4 {
					t.Errorf("the copies of 2 and 3 were stored: %d", got)
				}
			}
		})
	}
}
