package handlertest

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/delivery"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func marked(id int64, mark string) *delivery.Event {
	e := defaultEvent(id)
	e.Headers = map[string]string{"mark": " " + mark}
	return e
}

// destination returns a complete one for the reference handler, wrapped.
func destination(tb testing.TB, wrap func(*client) delivery.Handler) Destination {
	tb.Helper()
	server := startServer(tb)
	proxy := StartProxy(tb, server.addr)
	return Destination{
		Open:     func(testing.TB) delivery.Handler { return wrap(newClient(proxy.Addr())) },
		Received: func(testing.TB) []int64 { return server.ids() },
		Message:  server.message,
		Rejected: func(id int64) *delivery.Event { return marked(id, "bad") },
		Network:  proxy, Stop: server.stop, Start: server.start,
		Secrets: []string{testPassword}, Ordered: true,
		Log:      func() string { return "nothing\n" },
		Cases:    cases(proxy.Addr(), wrap),
		Patience: time.Minute,
	}
}

func cases(addr string, wrap func(*client) delivery.Handler) []Case {
	one := func(c *client, e *delivery.Event) func(testing.TB) error {
		return func(tb testing.TB) error {
			tb.Helper()
			tb.Cleanup(func() { _ = c.Close() })
			return wrap(c).Deliver(tb.Context(), e)
		}
	}
	stranger := newClient(addr)
	stranger.password = "wrong password"
	return []Case{
		{Name: "a good event", Provoke: one(newClient(addr), defaultEvent(1))},
		{Name: "refused", Provoke: one(newClient(addr), marked(1, "bad")), Class: delivery.ClassEvent, Permanent: true, Text: "refused"},
		{Name: "to wait", Provoke: one(newClient(addr), marked(1, "slow")), Class: delivery.ClassEvent, RetryAfter: 7 * time.Second},
		{Name: "too much", Provoke: one(newClient(addr), marked(1, "much")), Class: delivery.ClassDestination, Throttled: true, RetryAfter: 9 * time.Second},
		{Name: "wrong password", Provoke: one(stranger, defaultEvent(1)), Class: delivery.ClassDestination, Text: "wrong password"},
	}
}

// broken is the reference handler with something wrong; nil is right.
type broken struct {
	*client
	deliver func(ctx context.Context, c *client, events []*delivery.Event) []error
	close   func(c *client) error
}

func (b *broken) Deliver(ctx context.Context, e *delivery.Event) error {
	return delivery.BatchHandlerFunc(b.DeliverBatch).Deliver(ctx, e)
}

func (b *broken) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	if b.deliver == nil {
		return b.client.DeliverBatch(ctx, events)
	}
	return b.deliver(ctx, b.client, events)
}

func (b *broken) Close() error {
	if b.close == nil {
		return b.client.Close()
	}
	return b.close(b.client)
}

func correct(c *client) delivery.Handler { return &broken{client: c} }

func TestCorrectHandlerPasses(t *testing.T) {
	t.Parallel()
	Run(t, destination(t, correct))
}

// single hides the methods of a handler beside Deliver.
type single struct{ c *client }

func (s single) Deliver(ctx context.Context, e *delivery.Event) error { return s.c.Deliver(ctx, e) }
func (s single) Close() error                                         { return s.c.Close() }

func TestHandlerOfSingleEventsPasses(t *testing.T) {
	t.Parallel()
	d := destination(t, correct)
	proxy, _ := d.Network.(*Proxy)
	d.Open = func(testing.TB) delivery.Handler { return single{newClient(proxy.Addr())} }
	Run(t, d)
}

func TestWhatIsMissingIsSkipped(t *testing.T) {
	t.Parallel()
	rep := recordRun(t, Destination{
		Open: func(testing.TB) delivery.Handler {
			return delivery.HandlerFunc(func(ctx context.Context, _ *delivery.Event) error { return context.Cause(ctx) })
		},
	})
	if failed := rep.failed(); len(failed) > 0 {
		t.Errorf("failed:\n%s", rep.text(failed))
	}
	for name, missing := range map[string]string{
		bytesArrive: "no Received", batchAnswers: "not a delivery.BatchHandler", badFailsAlone: "no Rejected", answerAwaited: "no Received", lateAnswer: "no Received",
		cancelEnds: "no Received", deadlineEnds: "no Network", nobodyListens: "no Network, or Stop and Start",
		cutBeforeAnswer: "no Received", outageInStream: "no Received", restartInStream: "no Received", closeSilent: "no Network",
		closeAgain: "not an io.Closer", closeUnderway: "not an io.Closer", deliverAfter: "not an io.Closer",
		noCases: "no Cases", secretsUntold: "no Secrets",
	} {
		r := rep.tests[name]
		if r == nil || !r.skipped || !strings.Contains(r.text.String(), missing) {
			t.Errorf("%s is not skipped with %q", name, missing)
		}
	}
	if n := len(rep.skipped()); n != 17 {
		t.Errorf("%d properties are skipped, want 17: %v", n, rep.skipped())
	}
}

func TestDestinationThatCannotBe(t *testing.T) {
	t.Parallel()
	open := func(testing.TB) delivery.Handler { return nil }
	for want, d := range map[string]Destination{
		"has no Open":   {},
		"go together":   {Open: open, Stop: func(testing.TB) {}},
		"twice Prompt":  {Open: open, Patience: time.Second},
		"Open returned": {Open: open},
	} {
		rep := recordRun(t, d)
		text := rep.whole.text.String() + rep.text(rep.failed())
		if !strings.Contains(text, want) || !rep.whole.failed && len(rep.failed()) != 1 {
			t.Errorf("got %q, want %q", text, want)
		}
	}
}

func TestSecretsAreFoundInDisguise(t *testing.T) {
	t.Parallel()
	forms := disguises(testPassword)
	for _, text := range []string{
		testPassword, "x" + testPassword + "x", "amqp://me:correct%20horse%2Fbattery@host", "q=correct+horse%2Fbattery",
		"Basic " + base64.StdEncoding.EncodeToString([]byte("me:"+testPassword)), "AUTH PLAIN " + base64.StdEncoding.EncodeToString([]byte("\x00me\x00"+testPassword)),
		base64.URLEncoding.EncodeToString([]byte("user:" + testPassword + "\n")), hex.EncodeToString([]byte("k=" + testPassword)),
	} {
		if !shows(text, forms) {
			t.Errorf("not found in %q", text)
		}
		if text = redact(strings.Repeat("x", 2*maxShown)+text, forms); shows(text, forms) || !strings.Contains(text, "[secret]") || len(text) > maxShown {
			t.Errorf("redacted: %q", text)
		}
	}
	for _, text := range []string{"", "correct horse", base64.StdEncoding.EncodeToString([]byte("correct horse")), "wrong password"} {
		if shows(text, forms) {
			t.Errorf("found in %q", text)
		}
	}
}
