package mqtt

import (
	"crypto/pbkdf2"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/privateserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

const password = "correct-horse/battery@staple"

// secured is a broker with an administrator, and with ann, who may do what docs/destinations/mqtt.md asks for.
func secured(t *testing.T) *privateserver.Server {
	t.Helper()
	dir := t.TempDir()
	passwords := testenv.WriteFile(t, filepath.Join(dir, "passwords"), hashed(t, "admin", "admin")+hashed(t, "ann", password))
	rights := testenv.WriteFile(t, filepath.Join(dir, "rights"), "user admin\ntopic readwrite #\n\nuser ann\ntopic write t\ntopic write o/#\n")
	return broker(t, "allow_anonymous false\npassword_file "+passwords+"\nacl_file "+rights+
		"\nmax_packet_size 20000\nretain_available false\npersistence true")
}

// hashed returns a line of the broker's file of passwords.
func hashed(t *testing.T, user, secret string) string {
	t.Helper()
	const iterations, length = 101, 64
	salt := []byte("twelve bytes")
	key, err := pbkdf2.Key(sha512.New, secret, salt, iterations, length)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("%s:$7$%d$%s$%s\n", user, iterations, encode(salt), encode(key))
}

func TestSuite(t *testing.T) {
	t.Parallel()
	s := secured(t)
	admin := subscribe(t, s.Addr(), "#", func(c *paho.Connect) {
		c.Username, c.UsernameFlag, c.Password, c.PasswordFlag = "admin", true, []byte("admin"), true
	})
	keep(t, s)
	proxy := handlertest.StartProxy(t, s.Addr())
	with := func(tb testing.TB, change ...func(*Config)) *Handler {
		tb.Helper()
		cfg := deliverytest.Changed(Config{
			Servers: []string{"mqtt://" + proxy.Addr()}, Username: "ann", Password: handlers.NewSecret(password),
			Topic: "t", AckTimeout: patience,
		}, change...)
		h, err := New(cfg)
		if err != nil {
			tb.Fatal(err)
		}
		return h
	}
	large := func(id int64) *delivery.Event {
		e := events(id)[0]
		e.Payload = json.RawMessage(`"` + strings.Repeat("x", 30_000) + `"`)
		return e
	}
	handlertest.Run(t, handlertest.Destination{
		Open:     func(tb testing.TB) delivery.Handler { tb.Helper(); return with(tb) },
		Received: func(testing.TB) []int64 { return admin.ids() },
		Message: func(_ testing.TB, id int64) (body []byte, contentType string) {
			for _, m := range admin.all() {
				if m.Properties.User.Get("notifyd-id") == strconv.FormatInt(id, 10) {
					body, contentType = m.Payload, m.Properties.ContentType
				}
			}
			return body, contentType
		},
		Rejected: large,
		Network:  proxy,
		Stop: func(tb testing.TB) {
			tb.Helper()
			if err := s.Kill(tb.Context()); err != nil {
				tb.Fatal(err)
			}
		},
		Start: func(tb testing.TB) {
			tb.Helper()
			if err := s.Start(tb.Context()); err != nil {
				tb.Fatal(err)
			}
			testenv.Await(tb, "the subscriber is back", func() bool { admin.await(); return true })
		},
		Secrets: []string{password, password + "!"},
		Ordered: true,
		// The second event of an aggregate waits for the first one's answer, so that a batch does not arrive as long as
		// answers are held back.
		Prompt: 2 * time.Second,
		Cases:  cases(with),
	})
}

// fault is one line of the table: what the broker can be brought to say, and what becomes of the event.
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
	payload := func(text string) func(*delivery.Event) {
		return func(e *delivery.Event) { e.Payload = json.RawMessage(text) }
	}
	header := func(value string) func(*delivery.Event) { return func(e *delivery.Event) { e.Headers["x"] = value } }
	return []fault{
		{"a topic that is not ours", to("other"), nil, destination, false, "allow the user"},
		{"the topic of one event is not ours", to("other/{{ .Event.ID }}"), nil, event, false, "allow the user"},
		{"too large for the broker", nil, payload(`"` + strings.Repeat("x", 30_000) + `"`), event, true, "maximum packet size of 20000 bytes"},
		{"a header that is too long", nil, header(strings.Repeat("x", 66_000)), event, true, "65535"},
		{"unsafe characters in a header", nil, header("a\tb\x01\u0085\ufdd0\uffff\U0001ffff\x7f"), 0, false, ""},
		{"no retained messages there", func(c *Config) { c.Retain = true }, nil, destination, false, "set retain: false"},
		{"a level out of an event", to("o/{{ .Payload.v }}"), payload(`{"v": "a/b"}`), event, true, "must be one level"},
		{"a wildcard out of an event", to("o/{{ .Payload.v }}"), payload(`{"v": "#"}`), event, true, "must be one level"},
		{"an empty level out of an event", to("o/{{ .Payload.v }}"), payload(`{"v": ""}`), event, true, "empty level"},
		{"a topic of the broker out of an event", to("{{ .Payload.v }}"), payload(`{"v": "$SYS"}`), event, true, "must not begin with $"},
		{"an unsafe character out of an event", to("o/{{ .Payload.v }}"), payload(`{"v": "a\uffff"}`), event, true, "control characters"},
		{"not in the event", to("o/{{ .Payload.nope }}"), nil, event, true, "nope"},
		{"a wrong password", func(c *Config) { c.Password = handlers.NewSecret(password + "!") }, nil, destination, false, "check username"},
		{"no user", func(c *Config) { c.Username, c.Password = "", handlers.Secret{} }, nil, destination, false, "check username"},
		{"no TLS there", func(c *Config) { c.Servers[0] = strings.Replace(c.Servers[0], "mqtt:", "mqtts:", 1) }, nil, destination, false, "mqtts://"},
		{"no server there", func(c *Config) { c.Servers = []string{"mqtt://localhost:1"} }, nil, destination, false, "refused"},
	}
}

// cases are the faults, for the suite.
func cases(with func(testing.TB, ...func(*Config)) *Handler) (all []handlertest.Case) {
	for _, f := range faults() {
		all = append(all, handlertest.Case{
			Name: f.name, Class: f.class, Permanent: f.permanent, Text: f.text,
			Unclear: f.class == delivery.ClassEvent && !f.permanent, // a topic that is made of the event
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
