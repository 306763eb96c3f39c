package email

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestAttachments: each source of a content arrives byte for byte, with its name and type.
func TestAttachments(t *testing.T) {
	t.Parallel()
	sink := testenv.Mail(t, smtpsink.Options{})
	content := make([]byte, 70_000)
	for i := range content {
		content[i] = byte(i * 7)
	}
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte("from " + r.URL.Path)) }))
	t.Cleanup(source.Close)

	dir := t.TempDir()
	writeFile(t, dir, "terms.pdf", content)
	cfg := config(sink)
	cfg.HTML = `<img src="cid:logo">`
	cfg.Attachments = []Attachment{
		{File: "terms.pdf"},
		{File: "terms.pdf", Name: "logo.png", ContentID: "logo"},
		{Base64: "docs.0.pdf", Name: "Rechnung {{ .Payload.name }}.pdf", Type: "application/x-pdf"},
		{Base64: "docs.1.pdf", Name: "missing.pdf", Optional: true},
		{Bytes: true, Name: "event.json"},
		{URL: source.URL + "/{{ .Payload.name }}", Name: "../a\\b.unknown"},
		{URL: `{{ get .Payload "link" | default "" }}`, Hosts: []string{"files.example.com"}, Name: "x", Optional: true},
	}
	h := deliverytest.Open(t, New, cfg, handlers.WithBaseDir(dir))

	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
		payload := fmt.Sprintf(`{"email":"ada@example.com","name":"für Ada","docs":[{"pdf":%q}]}`, encoding.EncodeToString(content))
		_, p := deliverOne(t, h, sink, event(payload))

		want := []smtpsink.File{
			{Name: "logo.png", Type: "image/png", ContentID: "logo", Data: content},
			{Name: "terms.pdf", Type: "application/pdf", Data: content},
			{Name: "Rechnung für Ada.pdf", Type: "application/x-pdf", Data: content},
			{Name: "event.json", Type: "application/json", Data: []byte(payload)},
			{Name: ".._a_b.unknown", Type: "application/octet-stream", Data: []byte("from /für Ada")},
		}
		isSame := func(a, b smtpsink.File) bool {
			return a.Name == b.Name && a.Type == b.Type && a.ContentID == b.ContentID && bytes.Equal(a.Data, b.Data)
		}
		if !slices.EqualFunc(p.Files, want, isSame) {
			for _, f := range p.Files {
				t.Errorf("%s %s %s, %d bytes", f.Name, f.Type, f.ContentID, len(f.Data))
			}
		}
		if p.Text != "Dear für Ada" || p.HTML != cfg.HTML {
			t.Errorf("bodies %q, %q", p.Text, p.HTML)
		}
	}

	mail, err := h.Preview(event(`{"email":"a@example.com","name":"Ada","docs":[{"pdf":"eA=="}]}`))
	for _, want := range []string{"[70000 bytes]", "[1 bytes]", "[fetched from 127.0.0.1:"} {
		if err != nil || !strings.Contains(mail, want) {
			t.Errorf("%v: no %s in the preview\n%s", err, want, mail)
		}
	}
}

// TestAttachmentsOfFolder: with a folder of templates, files are those of the folder, and of no other place.
func TestAttachmentsOfFolder(t *testing.T) {
	t.Parallel()
	sink := testenv.Mail(t, smtpsink.Options{})
	cfg := placed(sink, shop())
	cfg.Attachments = []Attachment{{File: "logo.png", ContentID: "logo"}}
	_, p := deliverOne(t, deliverytest.Open(t, New, cfg), sink, event(fmt.Sprintf(buyer, "")))
	if len(p.Files) != 1 || string(p.Files[0].Data) != "\x89PNG {{" || p.Files[0].ContentID != "logo" {
		t.Errorf("files %+v", p.Files)
	}

	dir := t.TempDir()
	writeFile(t, dir, "secret.pem", []byte("secret"))
	writeFile(t, dir, "mail/placed.txt", []byte("t"))
	cfg = config(sink)
	cfg.Templates, cfg.Text = "mail", "placed.txt"
	for _, name := range []string{"none.png", "../secret.pem", dir + "/secret.pem"} {
		cfg.Attachments = []Attachment{{File: name}}
		_, err := New(cfg, handlers.WithBaseDir(dir))
		deliverytest.WantText(t, err, "attachments.0.file: cannot be read in templates")
	}
}

// TestBadAttachments: what an event has not, or has wrong, is the event's fault.
func TestBadAttachments(t *testing.T) {
	t.Parallel()
	sink := testenv.Mail(t, smtpsink.Options{})
	for name, c := range map[string]struct {
		attachment Attachment
		payload    string
		want       string
	}{
		"absent":      {Attachment{Base64: "pdf"}, `{}`, "the payload has no pdf"},
		"null":        {Attachment{Base64: "pdf"}, `{"pdf":null}`, "the payload has no pdf"},
		"empty":       {Attachment{Base64: "pdf"}, `{"pdf":""}`, "the payload has no pdf"},
		"an object":   {Attachment{Base64: "pdf", Optional: true}, `{"pdf":{}}`, "the payload's pdf is no text in base64"},
		"no base64":   {Attachment{Base64: "pdf"}, `{"pdf":"p4ssw0rd!"}`, "the payload's pdf is not base64"},
		"cut":         {Attachment{Base64: "pdf"}, `{"pdf":"YWJjZ"}`, "the payload's pdf is not base64"},
		"too large":   {Attachment{Base64: "pdf"}, `{"pdf":"` + strings.Repeat("AAAA", 400) + `"}`, "more than 1000 bytes together"},
		"bytes":       {Attachment{Bytes: true}, `{"a":"` + strings.Repeat("x", 1000) + `"}`, "more than 1000 bytes together"},
		"no name":     {Attachment{Bytes: true, Name: `{{ get .Payload "n" | default "" }}`}, `{}`, "yields no name"},
		"other host":  {Attachment{URL: "{{ .Payload.u }}", Hosts: []string{"a.example"}}, `{"u":"https://a.example.evil.example/"}`, `the host "a.example.evil.example"`},
		"other port":  {Attachment{URL: "{{ .Payload.u }}", Hosts: []string{"a.example"}}, `{"u":"https://a.example:22/"}`, `the host "a.example:22"`},
		"user":        {Attachment{URL: "{{ .Payload.u }}", Hosts: []string{"a.example"}}, `{"u":"https://a.example@evil.example/"}`, "must not hold a user"},
		"file scheme": {Attachment{URL: "{{ .Payload.u }}", Hosts: []string{"a.example"}}, `{"u":"file:///etc/passwd"}`, "must begin with https"},
		"no URL":      {Attachment{URL: "{{ .Payload.u }}", Hosts: []string{"a.example"}}, `{"u":""}`, "is empty"},
	} {
		cfg := config(sink)
		cfg.To, cfg.Text, cfg.MaxAttachmentBytes = List{"a@example.com"}, "t", 1000
		if c.attachment.Name == "" {
			c.attachment.Name = "x.pdf"
		}
		cfg.Attachments = []Attachment{c.attachment}
		err := deliverytest.Open(t, New, cfg).Deliver(t.Context(), event(c.payload))
		if deliverytest.Class(err) != "permanent" || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "p4ssw0rd") {
			t.Errorf("%s: %s: %v", name, deliverytest.Class(err), err)
		}
	}
}

// TestFetchFails: a source that cannot be reached is an outage, and no fault of the event. The URL's path may be a secret.
func TestFetchFails(t *testing.T) {
	t.Parallel()
	sink := testenv.Mail(t, smtpsink.Options{})
	stopped := httptest.NewServer(http.NotFoundHandler())
	stopped.Close()

	var code atomic.Int64
	hang := make(chan struct{})
	reached := make(chan struct{})
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch c := int(code.Load()); c {
		case 0: // the answer has more bytes than are allowed
			_, _ = w.Write(make([]byte, 2000))
		case 1: // the connection breaks within the content
			w.Header().Set("Content-Length", "900")
			_, _ = w.Write(make([]byte, 100))
		case 2:
			select {
			case reached <- struct{}{}:
			case <-hang:
			}
			<-hang
		default:
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(c)
		}
	}))
	t.Cleanup(source.Close)
	t.Cleanup(func() { close(hang) })

	for _, c := range []struct {
		code  int
		url   string
		class string
		text  string
	}{
		{0, source.URL, "permanent", "more than 1000 bytes together"},
		{1, source.URL, "unavailable", "unexpected EOF"},
		{2, source.URL, "unavailable", "fetch_timeout"},
		{302, source.URL, "unavailable", "redirects are not followed"},
		{404, source.URL, "unavailable", "HTTP 404"}, // the same URL for every event
		{404, source.URL + "/{{ .Event.ID }}", "unclear-permanent", "HTTP 404"},
		{403, source.URL, "unavailable", "let url have a token"},
		{429, source.URL, "throttled", "HTTP 429"},
		{500, source.URL, "unclear-retry", "HTTP 500"},
		{503, source.URL, "unavailable", "HTTP 503"},
		{0, stopped.URL, "unavailable", "connection refused"},
	} {
		code.Store(int64(c.code))
		cfg := config(sink)
		cfg.MaxAttachmentBytes, cfg.FetchTimeout = 1000, 5*time.Second
		if c.code == 2 {
			cfg.FetchTimeout = 50 * time.Millisecond
		}
		link := c.url
		if !strings.Contains(link, "{{") {
			link += "/p4ssw0rd"
		}
		cfg.Attachments = []Attachment{{URL: link, Name: "x.pdf"}}
		err := deliverytest.Open(t, New, cfg).Deliver(t.Context(), event(ada))
		if deliverytest.Class(err) != c.class || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "p4ssw0rd") {
			t.Errorf("%d at %s: %s, want %s: %v", c.code, link, deliverytest.Class(err), c.class, err)
		}
	}

	// An attempt that ends is neither's fault.
	code.Store(2)
	cfg := config(sink)
	cfg.Attachments = []Attachment{{URL: source.URL, Name: "x.pdf"}}
	ctx, cancel := context.WithCancel(t.Context())
	h := deliverytest.Open(t, New, cfg)
	go func() {
		<-reached
		cancel()
	}()
	if err := h.Deliver(ctx, event(ada)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if n := len(sink.Mails()); n > 0 {
		t.Errorf("%d mails were sent without their attachment", n)
	}
}

// TestRoomForAttachments: a mail waits until its attachments fit beside those of others, or its delivery ends. A mail of any size
// has room alone.
func TestRoomForAttachments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &Handler{room: semaphore.NewWeighted(maxRoom), cfg: Config{MaxAttachmentBytes: maxRoom / 2}}
		small := []*part{{size: 1}}
		fetched := []*part{{size: 1}, {from: &url.URL{}}}
		huge := []*part{{size: maxRoom}, {size: 1}}

		leave := entered(t, h, huge)
		entered(t, h, nil)() // a mail without attachments
		over := errors.New("over")
		ctx, cancel := context.WithCancelCause(t.Context())
		result := make(chan error)
		go func() {
			_, err := h.enter(ctx, small)
			result <- err
		}()
		synctest.Wait()
		select {
		case err := <-result:
			t.Fatalf("a mail has entered beside a huge one: %v", err)
		default:
		}
		cancel(over)
		if err := <-result; !errors.Is(err, over) {
			t.Errorf("got %v", err)
		}

		leave()
		entered(t, h, fetched)
		entered(t, h, small)
		if h.room.TryAcquire(maxRoom / 2) {
			t.Error("content that is not fetched yet has no room")
		}
	})
}

func entered(t *testing.T, h *Handler, parts []*part) (leave func()) {
	t.Helper()
	leave, err := h.enter(t.Context(), parts)
	if err != nil {
		t.Fatal(err)
	}
	return leave
}

// TestRoomIsLeft, also by a mail that could not be sent.
func TestRoomIsLeft(t *testing.T) {
	t.Parallel()
	sink := testenv.Mail(t, smtpsink.Options{})
	sink.Fail(smtpsink.Fault{Stage: smtpsink.Rcpt, Match: "nobody@", Code: 550, Text: "5.1.1 no such user", Times: smtpsink.Always})
	cfg := config(sink)
	cfg.Attachments = []Attachment{{Bytes: true, Name: "event.json"}}
	h := deliverytest.Open(t, New, cfg)
	deliverOne(t, h, sink, event(ada))
	deliverytest.WantClass(t, h.Deliver(t.Context(), event(`{"email":"nobody@example.com","name":"n"}`)), "permanent")
	if !h.room.TryAcquire(maxRoom) {
		t.Error("a mail keeps its room")
	}
}

// FuzzAttachment: a name and a content of an event make a mail that is read again, or are refused.
func FuzzAttachment(f *testing.F) {
	for _, name := range []string{"invoice.pdf", "../../x", "für \"Ada\".pdf", "\u202egpj.exe", strings.Repeat("ü", 150) + ".pdf", "\xff", "a\r\nBcc: b@example.com", "=?utf-8?q?a?="} {
		f.Add(name, "JVBERi0xLjQ=")
	}
	cfg := Config{
		Host: "127.0.0.1", TLS: TLSNone, From: "a@example.com", To: List{"b@example.com"}, Subject: "s", Text: "t",
		Attachments: []Attachment{{Base64: "pdf", Name: "{{ .Payload.name }}"}},
	}
	h, err := New(cfg)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = h.Close() })

	f.Fuzz(func(t *testing.T, name, content string) {
		payload, err := json.Marshal(map[string]string{"name": name, "pdf": content})
		if err != nil {
			t.Fatal(err)
		}
		msg, parts, err := h.build(event(string(payload)))
		if err != nil {
			return
		}
		setParts(msg, parts, (*part).file)
		var mail bytes.Buffer
		if _, err := msg.WriteTo(&mail); err != nil {
			t.Fatal(err)
		}
		parsed, err := smtpsink.Mail{Data: mail.Bytes()}.Parse()
		if err != nil {
			t.Fatalf("%v\n%s", err, mail.Bytes())
		}
		hasBcc := parsed.Header.Get("Bcc") != ""
		if len(parsed.Files) != 1 || parsed.Files[0].Name != parts[0].name || len(parsed.Files[0].Data) != parts[0].size || hasBcc {
			t.Errorf("%q became %+v\n%s", name, parsed.Files, mail.Bytes())
		}
	})
}
