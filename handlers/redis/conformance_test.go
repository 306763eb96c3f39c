package redis

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestConformance has a server that writes to its disk before it answers, and
// wants a password.
func TestConformance(t *testing.T) {
	t.Parallel()
	conform(t, func(*Config) {}, "~s", "~o:*", "+xadd", "+multi", "+exec")
}

// TestDeduplicateConformance is the same with a script: what comes again is in the stream once.
func TestDeduplicateConformance(t *testing.T) {
	t.Parallel()
	rights := append(strings.Fields(strings.ReplaceAll(scriptRights, "key", "s")), "~o:*", "~{o:*}:notifyd*")
	cl := conform(t, func(c *Config) { c.Deduplicate = 10_000 }, rights...)
	got := written(t, cl, "s")
	slices.Sort(got)
	if once := slices.Compact(slices.Clone(got)); !slices.Equal(got, once) {
		t.Errorf("%d of %d entries are copies", len(got)-len(once), len(got))
	}
}

// conform runs the suite for a user with these rights.
func conform(t *testing.T, settings func(*Config), rights ...string) *goredis.Client {
	t.Helper()
	const password = "correct-horse/battery@staple"
	s := testenv.OwnRedis(t, append([]string{"--user", "ann", "on", ">" + password}, rights...)...)
	cl := client(t, s.Addr())
	proxy := handlertest.StartProxy(t, s.Addr())
	url := "redis://ann:correct-horse%2Fbattery%40staple@" + proxy.Addr()
	with := func(tb testing.TB, change ...func(*Config)) *Handler {
		tb.Helper()
		cfg := Config{URL: handlers.NewSecret(url), Stream: "s", ReadTimeout: 20 * time.Second}
		settings(&cfg)
		for _, f := range change {
			f(&cfg)
		}
		h, err := New(cfg)
		if err != nil {
			tb.Fatal(err)
		}
		return h
	}
	large := func(id int64) *delivery.Event {
		e := events(id)[0]
		e.Payload = json.RawMessage(`"` + strings.Repeat("x", 2000) + `"`)
		return e
	}
	handlertest.Run(t, handlertest.Destination{
		Open: func(tb testing.TB) delivery.Handler {
			tb.Helper()
			return with(tb, func(c *Config) { c.MaxMessageBytes = 1500 })
		},
		Received: func(tb testing.TB) []int64 { tb.Helper(); return written(tb, cl, "s") },
		Message: func(tb testing.TB, id int64) (body []byte, contentType string) {
			tb.Helper()
			entries, err := cl.XRange(tb.Context(), "s", "-", "+").Result()
			if err != nil {
				tb.Fatal(err)
			}
			for _, e := range entries {
				if e.Values["id"] == strconv.FormatInt(id, 10) {
					contentType, _ = e.Values["content_type"].(string) // none for JSON
					text, _ := e.Values["payload"].(string)
					body, contentType = []byte(text), cmp.Or(contentType, delivery.ContentTypeJSON)
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
		},
		Secrets: []string{password, password + "!"},
		Ordered: true,
		Cases:   cases(t, s, with),
	})
	return cl
}
