package email

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/emersion/go-msgauth/dkim"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

func signature(file string) []Signature {
	return []Signature{{Domain: "example.com", Selector: "shop", KeyFile: file}}
}

// signed is a configuration with a signature of each kind of key, and the DNS that publishes the keys.
type signed struct {
	dir  string
	cfg  Config
	zone map[string]string
}

func newSigned(tb testing.TB, s *smtpsink.Sink) signed {
	tb.Helper()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}

	all := signed{dir: tb.TempDir(), cfg: config(s), zone: make(map[string]string)}
	for name, key := range map[string]crypto.Signer{"rsa": rsaKey, "ed": edKey} {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			tb.Fatal(err)
		}
		writeFile(tb, all.dir, name+".pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
		all.cfg.DKIM = append(all.cfg.DKIM, Signature{Domain: "example.com", Selector: name, KeyFile: name + ".pem"})
		all.zone[name+"._domainkey.example.com"] = record(key)
	}
	all.cfg.HTML = `<p>{{ .Payload.name }}</p><img src="cid:logo">`
	all.cfg.Subject = "Grüße, {{ .Payload.name }}"
	all.cfg.ListUnsubscribe = List{"https://shop.example.com/u/{{ .Payload.email }}", "mailto:u@example.com?subject={{ .Payload.email }}"}
	writeFile(tb, all.dir, "logo.png", []byte("\x89PNG and more\r\n.\r\n"))
	all.cfg.Attachments = []Attachment{
		{File: "logo.png", ContentID: "logo"},
		{Base64: "invoice", Name: "Rechnung für {{ .Payload.name }}.pdf"},
	}
	return all
}

const withInvoice = `{"email":"ada@example.com","name":"Ada   L.","invoice":"JVBERi0xLjQKJcOkw7zDtsOfCjIgMCBvYmoK"}`

// lookup answers from the zone.
func (s signed) lookup(_ context.Context, name string) ([]string, error) {
	if text, ok := s.zone[name]; ok {
		return []string{text}, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

// TestMailsAreSigned: signatures of both kinds of keys verify, and cover what has to be covered.
func TestMailsAreSigned(t *testing.T) {
	t.Parallel()
	sink := testenv.Mail(t, smtpsink.Options{})
	s := newSigned(t, sink)
	m, p := deliverOne(t, deliverytest.Open(t, New, s.cfg, handlers.WithBaseDir(s.dir)), sink, event(withInvoice))
	if got := p.Header["Dkim-Signature"]; len(got) != 2 {
		t.Fatalf("signatures %q", got)
	}

	options := &dkim.VerifyOptions{LookupTXT: func(name string) ([]string, error) { return s.lookup(t.Context(), name) }}
	all, err := dkim.VerifyWithOptions(bytes.NewReader(m.Data), options)
	if err != nil || len(all) != 2 {
		t.Fatalf("%d verifications, %v\n%s", len(all), err, m.Data)
	}
	for _, v := range all {
		if v.Err != nil || v.Domain != "example.com" {
			t.Errorf("%s: %v\n%s", v.Domain, v.Err, m.Data)
		}
		for _, name := range []string{"From", "List-Unsubscribe", "List-Unsubscribe-Post", "Content-Type"} {
			if !slices.Contains(v.HeaderKeys, name) {
				t.Errorf("%s is not covered: %v", name, v.HeaderKeys)
			}
		}
	}

	for name, forged := range map[string]string{
		"a second sender": "From: x@example.org\r\n" + string(m.Data),
		"a new link":      strings.Replace(string(m.Data), "shop.example.com/u", "evil.example.com/u", 1),
		"another file":    strings.Replace(string(m.Data), "JVBERi0", "JVBERi1", 1),
	} {
		all, err := dkim.VerifyWithOptions(strings.NewReader(forged), options)
		if err == nil && slices.ContainsFunc(all, func(v *dkim.Verification) bool { return v.Err == nil }) {
			t.Errorf("%s: a signature still verifies", name)
		}
	}
}

// TestUnsubscribeHeaders: a value of the event stays in its place of the URL.
func TestUnsubscribeHeaders(t *testing.T) {
	t.Parallel()
	sink := testenv.Mail(t, smtpsink.Options{})
	for _, c := range []struct {
		list List
		name string
		want string
		post string
	}{
		{
			List{"https://shop.example.com/u/{{ .Payload.name }}?m=1,2", "mailto:u@example.com?subject={{ .Payload.name }}"},
			"Ada, <x>/?",
			"<https://shop.example.com/u/Ada%2C%20%3Cx%3E%2F%3F?m=1,2>, <mailto:u@example.com?subject=Ada%2C%20%3Cx%3E%2F%3F>", oneClick,
		},
		{List{"mailto:u@example.com"}, "Ada", "<mailto:u@example.com>", ""},
	} {
		cfg := config(sink)
		cfg.ListUnsubscribe, cfg.ServerSigns = c.list, true
		_, p := deliverOne(t, deliverytest.Open(t, New, cfg), sink, event(`{"email":"ada@example.com","name":"`+c.name+`"}`))
		if got := p.Header.Get("List-Unsubscribe"); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
		if got := p.Header.Get("List-Unsubscribe-Post"); got != c.post {
			t.Errorf("got %q, want %q", got, c.post)
		}
	}

	cfg := config(sink)
	cfg.ListUnsubscribe = List{"mailto:u@example.com?subject={{ .Payload.name }}"}
	err := deliverytest.Open(t, New, cfg).Deliver(t.Context(), event(`{"email":"ada@example.com","name":"`+strings.Repeat("x", maxHeader)+`"}`))
	deliverytest.WantClass(t, err, "permanent")
}

// TestAdvice: the DNS is asked as receivers ask it.
func TestAdvice(t *testing.T) {
	t.Parallel()
	sink := testenv.Mail(t, smtpsink.Options{})
	s := newSigned(t, sink)
	s.cfg.From = "Shop <shop@mail.example.com>"
	s.zone["mail.example.com"] = "v=spf1 -all"
	s.zone["_dmarc.example.com"] = "v=DMARC1; p=reject"
	h := deliverytest.Open(t, New, s.cfg, handlers.WithBaseDir(s.dir))
	h.lookup = s.lookup
	if got := h.Advise(t.Context()); len(got) > 0 {
		t.Errorf("all is published: %q", got)
	}

	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	right := s.zone["ed._domainkey.example.com"]
	s.zone["ed._domainkey.example.com"] = record(other)
	delete(s.zone, "rsa._domainkey.example.com")
	s.zone["mail.example.com"] = "google-site-verification=x"
	delete(s.zone, "_dmarc.example.com")
	got := h.Advise(t.Context())
	for _, want := range []string{
		"dkim: receivers will not verify the signature by ed._domainkey.example.com: ", "publish this TXT record there: " + right,
		"dkim: receivers will not verify the signature by rsa._domainkey.example.com: ", "v=DKIM1; k=rsa; p=",
		"spf: mail.example.com has no TXT record", "dmarc: _dmarc.mail.example.com has no TXT record",
	} {
		if !slices.ContainsFunc(got, func(text string) bool { return strings.Contains(text, want) }) {
			t.Errorf("%q\nhas no %s", got, want)
		}
	}

	h.lookup = func(context.Context, string) ([]string, error) { return nil, errors.New("network is unreachable") }
	for _, text := range h.Advise(t.Context()) {
		if !strings.Contains(text, "the DNS could not be asked for") || !strings.Contains(text, "network is unreachable") {
			t.Error(text)
		}
	}

	s.cfg.DKIM, s.cfg.ServerSigns = nil, true
	if got := deliverytest.Open(t, New, s.cfg, handlers.WithBaseDir(s.dir)).Advise(t.Context()); len(got) > 0 {
		t.Errorf("advice without a key: %q", got)
	}
	if _, ok := delivery.As[delivery.Adviser](h); !ok {
		t.Error("doctor would not find it")
	}
}

// shortKey is a key of 512 bits, which anybody can compute.
var shortKey = func() string {
	der, err := base64.StdEncoding.DecodeString("MIIBOQIBAAJBAMfk7uKjzA+RXjkW1Z4if2CyRd46Xyk+dJBUHGBvPkalh0y/tMp6PhXHU/nt0foJK80PY0HbfxYOE2GTyvrTZL0CAwEAAQJAH0aUkeVq8iyef3QxLDLdlzWNdP3REdTxy/s9DWGabtcEhR2AZciiSJcmzjrv+w3wDGKE9+0NhkcVc4CCGcdCwQIhAOpewPmG4bPOoHcxOdy80OttT1aW1FV+L97B4VI2t5BJAiEA2lemahfHrIzrqJIiTUTcf9RG1NVR0vp3zWZ59X0FmNUCIB2is6YZzypsY1APEnD+EzDh1pltYxYYabcyLuq1boq5AiABXa8C1uc+4xrOUSu5xAaFHjTbPAJpCXwaYtu8d23DiQIgBkckO06syJXynmDej4VlEId9Wix6EjYpBQ09bahbpz0=")
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: der}))
}()
