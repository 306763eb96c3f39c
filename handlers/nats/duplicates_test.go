package nats

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestDuplicateWindow delivers an event again, by another process, after its answer and the
// connection were lost: in the window the stream has it once, and later twice.
func TestDuplicateWindow(t *testing.T) {
	t.Parallel()
	place := testenv.NATS(t)
	_, js := client(t, place.URL)
	cfg := jetstream.StreamConfig{Name: place.Name, Subjects: []string{place.Name}, Duplicates: 10 * time.Minute}
	newStream(t, js, cfg)
	proxy := handlertest.StartProxy(t, strings.TrimPrefix(place.URL, "nats://"))
	first := open(t, "nats://"+proxy.Addr(), to(place.Name))
	deliverytest.Deliver(t, first, events(1))
	proxy.Mute()
	answer := make(chan []error, 1)
	go func() { answer <- first.DeliverBatch(t.Context(), events(2, 3, 4)) }()
	testenv.Await(t, "they are in the stream", func() bool { return len(written(t, js, place.Name)) == 4 })
	proxy.Cut()
	proxy.Heal()
	for _, err := range <-answer {
		deliverytest.WantClass(t, err, "unavailable")
	}
	second := open(t, place.URL, to(place.Name))
	deliverytest.Deliver(t, second, events(2, 3, 4, 5))
	if got := written(t, js, place.Name); !slices.Equal(got, deliverytest.UpTo(5)) {
		t.Errorf("written: %d", got)
	}
	cfg.Duplicates = 100 * time.Millisecond // the shortest
	newStream(t, js, cfg)
	testenv.Await(t, "the stream has forgotten it", func() bool {
		deliverytest.Deliver(t, second, events(5))
		return len(written(t, js, place.Name)) == 6
	})
}

// TestCheckStream has a check find the stream and what it drops, if it may ask.
func TestCheckStream(t *testing.T) {
	t.Parallel()
	s, js := secured(t)
	newStream(t, js, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Duplicates: 7 * time.Minute})
	newStream(t, js, jetstream.StreamConfig{Name: "O", Subjects: []string{"o.>"}})
	as := func(user, password string) func(*Config) {
		return func(c *Config) { c.Username, c.Password = user, handlers.NewSecret(password) }
	}
	admin := as("admin", "admin")
	for name, c := range map[string]struct {
		who, change func(*Config)
		tested      string
		err         string
	}{
		"by subject":          {admin, func(*Config) {}, "stream S, which drops a copy of an event within 7m0s", ""},
		"by name":             {admin, func(c *Config) { c.Stream, c.Subject = "O", "o.{{ .Event.Type }}" }, "stream O, which drops a copy of an event within 2m0s", ""},
		"of the event":        {admin, to("o.{{ .Event.Type }}"), "", ""},
		"may not ask":         {as("ann", password), func(*Config) {}, "", ""},
		"core":                {admin, func(c *Config) { c.Mode = ModeCore }, "", ""},
		"no stream":           {admin, to("nowhere"), "", "subject nowhere: find the stream"},
		"no such stream":      {admin, func(c *Config) { c.Stream = "MISSING" }, "", "stream not found"},
		"without a JetStream": {as("bob", password), func(*Config) {}, "", "enable JetStream"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := open(t, "nats://"+s.Addr(), c.who, c.change)
			err := h.Check(t.Context())
			if c.err != "" {
				deliverytest.WantText(t, err, c.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			tested, untested := h.DescribeCheck()
			if !strings.Contains(tested, c.tested) || strings.Contains(untested, "duplicate_window") != (c.tested == "" && h.cfg.Mode != ModeCore) {
				t.Errorf("tested %s; not tested %s", tested, untested)
			}
		})
	}
}
