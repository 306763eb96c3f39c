package nats

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/privateserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

const password = "correct-horse/battery@staple"

// secured is a server with an administrator, and with ann, who may do what
// docs/destinations/nats.md asks for.
func secured(t *testing.T) (s *privateserver.Server, js jetstream.JetStream) {
	t.Helper()
	s = testenv.OwnNATS(t, `
max_payload: 100000
accounts {
  A { jetstream: enabled, users: [
    {user: admin, password: admin}
    {user: ann, password: "`+password+`", permissions: {
      publish: [s, "o.>", full, "persubject.>", small, many, missing, "$JS.API.STREAM.NAMES"], subscribe: "_INBOX.>"}}
  ] }
  B { users: [{user: bob, password: "`+password+`"}] }
}`)
	_, js = client(t, s.Addr(), natsgo.UserInfo("admin", "admin"))
	return s, js
}

func TestConformance(t *testing.T) {
	t.Parallel()
	s, js := secured(t)
	newStream(t, js, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	proxy := handlertest.StartProxy(t, s.Addr())
	with := func(tb testing.TB, change ...func(*Config)) *Handler {
		tb.Helper()
		cfg := Config{
			Servers: []string{"nats://" + proxy.Addr()}, Username: "ann", Password: handlers.NewSecret(password),
			Subject: "s", AckTimeout: patience,
		}
		for _, f := range change {
			f(&cfg)
		}
		h, err := New(cfg)
		if err != nil {
			tb.Fatal(err)
		}
		return h
	}
	var got []int64
	handlertest.Run(t, handlertest.Destination{
		Open: func(tb testing.TB) delivery.Handler { tb.Helper(); return with(tb) },
		Received: func(tb testing.TB) []int64 {
			tb.Helper()
			got = writtenSince(tb, js, "S", got)
			return got
		},
		Message: func(tb testing.TB, id int64) (body []byte, contentType string) {
			tb.Helper()
			for _, m := range stored(tb, js, "S", 1) {
				if m.Header.Get("notifyd-id") == strconv.FormatInt(id, 10) {
					body, contentType = m.Data, m.Header.Get(headerContentType)
				}
			}
			return body, contentType
		},
		Rejected: func(id int64) *delivery.Event {
			e := events(id)[0]
			e.Payload = json.RawMessage(`"` + strings.Repeat("x", 100_000) + `"`)
			return e
		},
		Network: proxy,
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
		},
		Secrets: []string{password, password + "!"},
		Ordered: true,
		// The second event of an aggregate waits for the first one's answer, so
		// that a batch does not arrive as long as answers are held back.
		Prompt: 2 * time.Second,
		Cases:  cases(t, js, with),
	})
}
