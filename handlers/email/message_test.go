package email

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

func TestMailHasWhatTheTemplatesSay(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	cfg := config(s)
	cfg.From = `"Shop, {{ .Headers.tenant }}" <shop@example.com>`
	cfg.To = List{`{{ address .Payload.name .Payload.email }}`, "b@example.com, c@example.com,"}
	cfg.Cc, cfg.Bcc, cfg.ReplyTo = List{"d@example.com", "b@example.com"}, List{"hidden@example.com"}, "help@example.com"
	cfg.Subject = "Grüße,\n  {{ .Payload.name }}"
	cfg.HTML = "<p>{{ .Payload.name }}</p>"
	cfg.Text = "Dear {{ .Payload.name }}\n.\nlast line"
	cfg.Headers = map[string]string{"X-Total": `{{ money .Payload.total "EUR" }}`, "X-None": `{{ get .Payload "no" | default "" }}`}
	m, p := deliverOne(t, deliverytest.Open(t, New, cfg), s, event(`{"email":"ada@example.com","name":"<Ada>","total":1999}`))

	if want := []string{"ada@example.com", "b@example.com", "c@example.com", "d@example.com", "hidden@example.com"}; m.From != "shop@example.com" || !slices.Equal(m.To, want) {
		t.Errorf("envelope: %s -> %v", m.From, m.To)
	}
	for name, want := range map[string]string{
		"From": `"Shop, acme" <shop@example.com>`, "To": `"<Ada>" <ada@example.com>, <b@example.com>, <c@example.com>`,
		"Cc": "<d@example.com>", "Bcc": "", "Reply-To": "<help@example.com>", "X-Total": "19.99 EUR", "X-None": "",
		"Auto-Submitted": "auto-generated", "X-Notifyd-Event-Id": "42", "X-Notifyd-Event-Type": "order.created",
		"Message-Id": "<notifyd.42.welcome-mail@example.com>", "User-Agent": "", "X-Mailer": "",
	} {
		if got := p.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if _, err := p.Header.Date(); err != nil {
		t.Errorf("Date: %v", err)
	}
	if p.Subject != "Grüße, <Ada>" || p.Text != "Dear <Ada>\n.\nlast line" || p.HTML != "<p>&lt;Ada&gt;</p>" {
		t.Errorf("got %q, %q, %q", p.Subject, p.Text, p.HTML)
	}
	if p.MediaType != "multipart/alternative" || !slices.Equal(p.Parts, []string{"text/plain", "text/html"}) {
		t.Errorf("got %s of %v", p.MediaType, p.Parts)
	}
}

// TestTraceOfAMail: the mail names its trace, unless headers set another.
func TestTraceOfAMail(t *testing.T) {
	t.Parallel()
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for name, headers := range map[string]map[string]string{
		trace: nil, "": {"TRACEPARENT": `{{ get .Headers "none" | default "" }}`}, "own": {"traceparent": "own"},
	} {
		s := testenv.Mail(t, smtpsink.Options{})
		cfg := config(s)
		cfg.Headers = headers
		e := event(ada)
		e.Headers["traceparent"] = trace
		if _, p := deliverOne(t, deliverytest.Open(t, New, cfg), s, e); p.Header.Get("Traceparent") != name || len(p.Header["Traceparent"]) > 1 {
			t.Errorf("with %v: %q, want %q", headers, p.Header["Traceparent"], name)
		}
	}
}

func TestOneBodyIsOnePart(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	dir := t.TempDir()
	writeFile(t, dir, "mail.txt", []byte("text of {{ .Payload.name }}"))
	writeFile(t, dir, "mail.html", []byte("<b>{{ .Payload.name }}</b>"))
	text, html := config(s), config(s)
	text.Templates, text.Text = ".", "mail.txt"
	html.Templates, html.Text, html.HTML = ".", "", "mail.html"
	if _, p := deliverOne(t, deliverytest.Open(t, New, text, handlers.WithBaseDir(dir)), s, event(ada)); p.MediaType != "text/plain" || p.Text != "text of Ada" {
		t.Errorf("got %+v", p)
	}
	if _, p := deliverOne(t, deliverytest.Open(t, New, html, handlers.WithBaseDir(dir)), s, event(ada)); p.MediaType != "text/html" || p.HTML != "<b>Ada</b>" {
		t.Errorf("got %+v", p)
	}
}

func TestMessageIDIsTheSameForEveryAttempt(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	cfg := config(s)
	cfg.MessageIDDomain = "id.example.net"
	h := deliverytest.Open(t, New, cfg)
	s.Fail(smtpsink.Fault{Stage: smtpsink.DataEnd, Drop: true})
	e := event(ada)
	if err := h.Deliver(testenv.Within(t, patience), e); deliverytest.Class(err) != "unclear-retry" {
		t.Fatalf("got %v", err)
	}
	again := *e
	again.Attempt = 2
	_, p := deliverOne(t, h, s, &again)
	first, err := s.Mails()[0].Parse()
	if err != nil || first.MessageID != p.MessageID || p.MessageID != "<notifyd.42.welcome-mail@id.example.net>" {
		t.Errorf("got %q and %q, %v", first.MessageID, p.MessageID, err)
	}
}

// TestHeadersCannotBeInjected puts line ends and more wherever a payload can
// reach: either nothing is sent, or it stays inside of its header.
func TestHeadersCannotBeInjected(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	known := []string{
		"Auto-Submitted", "Content-Transfer-Encoding", "Content-Type", "Date", "From", "Message-Id", "Mime-Version",
		"Reply-To", "Subject", "To", "Traceparent", "X-Extra", "X-Notifyd-Event-Id", "X-Notifyd-Event-Type",
	}
	for _, evil := range []string{
		"a\r\nBcc: evil@example.com", "a\nX-Evil: 1", "a\rX-Evil: 1", "a\r\n\r\nbody", "a\r\n.\r\nMAIL FROM:<x@y.z>",
		"a\x00b", "a\u2028X-Evil: 1", "a\u0085X-Evil: 1", strings.Repeat(" ", 500) + "X-Evil: 1", "a" + strings.Repeat(" ", 400) + strings.Repeat("b", 71),
		"=?UTF-8?q?a=0D=0AX-Evil:_1?=", strings.Repeat("x", 5000), "a" + strings.Repeat(" ", 74), "\xff\xfe",
	} {
		payload, err := json.Marshal(map[string]string{"v": evil, "email": "ada@example.com"})
		if err != nil {
			t.Fatal(err)
		}
		for what, set := range map[string]func(c *Config, e *delivery.Event){
			"trace":    func(_ *Config, e *delivery.Event) { e.Headers["traceparent"] = evil },
			"subject":  func(c *Config, _ *delivery.Event) { c.Subject = "x{{ .Payload.v }}" },
			"header":   func(c *Config, _ *delivery.Event) { c.Headers = map[string]string{"X-Extra": "{{ .Payload.v }}"} },
			"to":       func(c *Config, _ *delivery.Event) { c.To = List{"{{ .Payload.v }} <a@example.com>"} },
			"to email": func(c *Config, _ *delivery.Event) { c.To = List{"a@example.com{{ .Payload.v }}"} },
			"to name":  func(c *Config, _ *delivery.Event) { c.To = List{"{{ address .Payload.v .Payload.email }}"} },
			"reply to": func(c *Config, _ *delivery.Event) { c.ReplyTo = "{{ .Payload.v }} <a@example.com>" },
			"from":     func(c *Config, _ *delivery.Event) { c.From = "{{ .Payload.v }} <a@example.com>" },
			"quoted":   func(c *Config, _ *delivery.Event) { c.To = List{"\"{{ .Payload.v }}\"@example.com"} },
			"type":     func(_ *Config, e *delivery.Event) { e.Type = evil },
			"dest":     func(_ *Config, e *delivery.Event) { e.Destination = evil },
			"text":     func(c *Config, _ *delivery.Event) { c.Text = "{{ .Payload.v }}" },
		} {
			cfg, e := config(s), event(string(payload))
			cfg.Text = "body"
			set(&cfg, e)
			h := deliverytest.Open(t, New, cfg)
			before := len(s.Mails())
			err := h.Deliver(testenv.Within(t, patience), e)
			if err != nil {
				if refusal := deliverytest.Class(err); refusal != "permanent" && refusal != "unclear-permanent" || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s %q: %s: %v", what, evil, deliverytest.Class(err), err)
				}
				continue
			}
			m := s.Mails()[before]
			p, err := m.Parse()
			if err != nil {
				t.Errorf("%s %q: %v\n%s", what, evil, err, m.Data)
				continue
			}
			for name := range maps.Keys(p.Header) {
				if !slices.Contains(known, name) {
					t.Errorf("%s %q: header %q\n%s", what, evil, name, m.Data)
				}
			}
			if len(m.To) != 1 || (what != "text" && p.Text != "body") {
				t.Errorf("%s %q: to %v, text %q", what, evil, m.To, p.Text)
			}
			head, _, _ := bytes.Cut(m.Data, []byte("\r\n\r\n"))
			for line := range bytes.SplitSeq(head, []byte("\r\n")) {
				if len(line) > 998 || len(bytes.TrimSpace(line)) == 0 || bytes.ContainsAny(line, "\r\n\x00") {
					t.Errorf("%s %q: line %.100q", what, evil, line)
				}
			}
		}
	}
}

// TestNoValueAddsARecipient, neither in a name nor in an address.
func TestNoValueAddsARecipient(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	for _, evil := range []string{"a@example.com, evil@example.org", "a@example.com,evil@example.org", "x <evil@example.org>, y", `x" <evil@example.org>, "y`, "a@example.com;evil@example.org"} {
		payload, err := json.Marshal(map[string]any{"name": "x", "v": evil, "email": "ada@example.com", "list": []string{"b@example.com", evil}})
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{"{{ .Payload.v }}", "{{ .Payload.v }} <{{ .Payload.email }}>", `"{{ .Payload.v }}" <{{ .Payload.email }}>`, `{{ join "," .Payload.list }}`, "{{ .Payload.v }}@example.com"} {
			for name, cfg := range map[string]func(c *Config){
				"to": func(c *Config) { c.To = List{to} }, "cc": func(c *Config) { c.Cc = List{to} }, "bcc": func(c *Config) { c.Bcc = List{to} },
				"reply_to": func(c *Config) { c.ReplyTo = to }, "from": func(c *Config) { c.From = to },
			} {
				c := config(s)
				cfg(&c)
				err := deliverytest.Open(t, New, c).Deliver(testenv.Within(t, patience), event(string(payload)))
				if deliverytest.Class(err) != "permanent" || strings.Contains(err.Error(), "evil") {
					t.Errorf("%s: %s of %q: %s: %v", name, to, evil, deliverytest.Class(err), err)
				}
			}
		}
	}
	if n := len(s.Mails()); n != 0 {
		t.Errorf("%d mails were sent", n)
	}
}

func TestBadEventsAreDeadAtOnce(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	for payload, want := range map[string]string{
		`{"name":"secret"}`:                           `template "to", line 1, at {{ .Payload.email }}`,
		`{"email":null,"name":"secret"}`:              `template "to", line 1, at {{ .Payload.email }}: `,
		`{"email":"","name":"secret"}`:                "no recipient: to: {{ .Payload.email }} yields none",
		`{"email":"secret","name":"x"}`:               `template "to" is not an e-mail address`,
		`{"email":"a@example.com"}`:                   `template "text", line 1, at {{ .Payload.name }}`,
		`{"email":"a@example.com\nb@c.d","name":"x"}`: "line end",
		`secret`: "not JSON",
	} {
		err := deliverytest.Open(t, New, config(s)).Deliver(testenv.Within(t, patience), event(payload))
		if deliverytest.Class(err) != "permanent" || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %s: %v", payload, deliverytest.Class(err), err)
		}
	}
	many := `{"name":"x","emails":["a@example.com","a@example.com","a@example.com"]}`
	listed := config(s)
	listed.To = List{`{{ join "," .Payload.emails }}`}
	if m, _ := deliverOne(t, deliverytest.Open(t, New, listed), s, event(many)); len(m.To) != 1 {
		t.Errorf("the same recipient %d times", len(m.To))
	}
	var list []string
	for i := range maxRecipients + 1 {
		list = append(list, strings.Repeat("a", i/50+1)+strings.Repeat("b", i%50)+"@example.com")
	}
	payload, err := json.Marshal(map[string]any{"name": "x", "emails": list})
	if err != nil {
		t.Fatal(err)
	}
	err = deliverytest.Open(t, New, listed).Deliver(testenv.Within(t, patience), event(string(payload)))
	if deliverytest.Class(err) != "permanent" || !strings.Contains(err.Error(), "100 is the limit") {
		t.Errorf("got %v", err)
	}
	if n := s.Accepted(); n != 1 {
		t.Errorf("%d connections for events that cannot be sent", n)
	}
}
