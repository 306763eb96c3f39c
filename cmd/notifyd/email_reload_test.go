package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestReloadReadsTemplates: a reload of an unchanged configuration reads the files of its folder again. With a mistake in one
// of them, the relay goes on with the files that it has.
func TestReloadReadsTemplates(t *testing.T) {
	t.Parallel()
	url := database(t)
	sink := testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	r := startReloadable(t, nil, fmt.Sprintf(`version: 1
database: {url: %q}
log: {format: json}
destinations:
  mail:
    type: email
    host: 127.0.0.1
    port: %d
    tls: none
    from: shop@example.com
    to: ann@example.com
    subject: Hello
    templates: mail
    text: a.txt
routes: [{match: '*', to: mail}]
`, url, sink.Port()), "mail/a.txt", "first")
	folder := filepath.Join(filepath.Dir(r.path), "mail")
	write := func(name, text string) { testenv.WriteFile(t, filepath.Join(folder, name), text) }
	sent := 0
	expect := func(want string) {
		t.Helper()
		publishTo(t, url, "order.placed", `{}`)
		sent++
		mails, err := sink.Wait(testenv.Within(t, patience), sent)
		if err != nil {
			t.Fatal(err)
		}
		m, err := mails[sent-1].Parse()
		if err != nil || strings.TrimSpace(m.Text) != want {
			t.Errorf("the mail is %q, %v, want %q", m.Text, err, want)
		}
	}
	expect("first")

	write("a.txt", "second {{ template \"part\" . }}")
	write("part.txt", "part")
	expect("first")
	r.reloads <- struct{}{}
	r.stderr.awaitN(t, saidReloaded, 1)
	expect("second part")

	write("a.txt", "third")
	write("other.html", "\n{{ if }}")
	r.reloads <- struct{}{}
	r.stderr.awaitN(t, saidWrong, 1)
	if log := r.stderr.text(); !strings.Contains(log, `destinations.mail.templates: template \"other.html\", line 2: missing value for if`) {
		t.Errorf("the log does not name the file:\n%s", log)
	}
	expect("second part")
}
