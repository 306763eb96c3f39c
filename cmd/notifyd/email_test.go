package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/emersion/go-msgauth/dkim"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestOrderMail: the daemon sends the mail of an order with its invoice, its logo and a label, and signs it. While the label cannot be
// fetched, the mail waits without a counted attempt. A reload reads a new key and a new logo.
func TestOrderMail(t *testing.T) {
	t.Parallel()
	url, sink := database(t), testenv.Mail(t, smtpsink.Options{})
	var isUp atomic.Bool
	labels := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isUp.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("label " + r.URL.Path))
	}))
	t.Cleanup(labels.Close)

	dir := t.TempDir()
	config := fmt.Sprintf(`
version: 1
database: {url: %[1]q}
log: {format: json}
destinations:
  mail:
    type: email
    host: 127.0.0.1
    port: %[2]d
    tls: none
    from: Shop <shop@example.invalid>
    to: "{{ .Payload.email }}"
    subject: "Order {{ .Payload.order }}"
    html: '<img src="cid:logo"> Thank you.'
    attachments:
      - {file: %[3]s/logo.png, content_id: logo}
      - {base64: invoice, name: "invoice {{ .Payload.order }}.pdf"}
      - {url: "%[4]s/{{ .Payload.order }}", name: label.txt}
    dkim:
      - {domain: example.invalid, selector: one, key_file: %[3]s/dkim.pem}
    list_unsubscribe: "https://shop.example.invalid/u/{{ .Payload.order }}"
routes:
  - {match: order.placed, to: mail}
`, url, sink.Port(), dir, labels.URL)
	zone := map[string]string{"one._domainkey.example.invalid": newKey(t, dir)}
	testenv.WriteFile(t, filepath.Join(dir, "logo.png"), "one")

	r := startReloadable(t, nil, config)
	publishTo(t, url, "order.placed", `{"order":"7","email":"ada@example.com","invoice":"`+base64.StdEncoding.EncodeToString([]byte("%PDF"))+`"}`)
	r.stderr.await(t, "HTTP 503")
	isUp.Store(true)
	untilDone(t, url)
	if n := query[int](t, url, `SELECT coalesce(max(attempts), 0) FROM outbox_deliveries`); n > 0 {
		t.Errorf("%d attempts were counted", n)
	}
	checkOrderMail(t, sink, 1, "one", zone)

	got := commandIn(t, nil, "doctor", "-c", r.path)
	if got.code != 0 || !strings.Contains(got.stdout, "dkim: ") || !strings.Contains(got.stdout, "one._domainkey.example.invalid") {
		t.Errorf("doctor: %+v", got)
	}

	zone["one._domainkey.example.invalid"] = newKey(t, dir)
	testenv.WriteFile(t, filepath.Join(dir, "logo.png"), "two")
	r.reloads <- struct{}{}
	r.stderr.await(t, saidDelivers)
	publishTo(t, url, "order.placed", `{"order":"7","email":"ada@example.com","invoice":"JVBERg"}`)
	untilDone(t, url)
	checkOrderMail(t, sink, 2, "two", zone)
	if code := r.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// newKey writes a key to sign with, and returns the record that publishes it.
func newKey(t *testing.T, dir string) (record string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	testenv.WriteFile(t, filepath.Join(dir, "dkim.pem"), string(text))
	return "v=DKIM1; k=rsa; p=" + base64.StdEncoding.EncodeToString(public)
}

// checkOrderMail looks at the nth mail, which is the last one.
func checkOrderMail(t *testing.T, sink *smtpsink.Sink, n int, logo string, zone map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	mails, err := sink.Wait(ctx, n)
	if err != nil || len(mails) != n {
		t.Fatalf("%d mails: %v", len(mails), err)
	}

	m := mails[n-1]
	parsed, err := m.Parse()
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for _, f := range parsed.Files {
		files[f.Name] = string(f.Data)
	}
	if files["logo.png"] != logo || files["invoice 7.pdf"] != "%PDF" || files["label.txt"] != "label /7" {
		t.Errorf("files %v", files)
	}
	if got := parsed.Header.Get("List-Unsubscribe-Post"); got != "List-Unsubscribe=One-Click" {
		t.Errorf("List-Unsubscribe-Post: %q", got)
	}

	all, err := dkim.VerifyWithOptions(bytes.NewReader(m.Data), &dkim.VerifyOptions{
		LookupTXT: func(name string) ([]string, error) { return []string{zone[name]}, nil },
	})
	if err != nil || len(all) != 1 || all[0].Err != nil {
		t.Errorf("%v: signatures %+v", err, all)
	}
}
