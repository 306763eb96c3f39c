package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// exampleMail copies examples/mail, and returns its configuration and its event.
func exampleMail(t *testing.T) (config, event string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(root+"examples/mail")); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "notifyd.yaml"), filepath.Join(dir, "event.json")
}

// TestTemplateOpen: the page of a mail is in a file, which a browser reads as UTF-8 and no other user can read. Where
// standard output is no terminal, nothing opens it.
func TestTemplateOpen(t *testing.T) {
	config, event := exampleMail(t)
	bin := t.TempDir()
	temporary := t.TempDir()
	testenv.WriteFile(t, filepath.Join(bin, "xdg-open"), "#!/bin/sh\necho opened >"+filepath.Join(bin, "opened")+"\n")
	if err := os.Chmod(filepath.Join(bin, "xdg-open"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	t.Setenv("TMPDIR", temporary)

	env := vars{"DATABASE_URL": "postgres://nowhere.invalid/x"}
	r := commandIn(t, env, "template", "test", "--open", "-c", config, "--destination", "placed", "--event", event)
	path := strings.TrimSpace(r.stdout)
	if r.code != 0 || r.stderr != "" || filepath.Dir(path) != temporary || strings.Contains(path, "\n") {
		t.Fatalf("got %+v", r)
	}
	page := testenv.ReadFile(t, path)
	if !strings.HasPrefix(page, "\ufeff<!doctype html>") || !strings.Contains(page, "<li>cup &amp; saucer: €\u00a035,50</li>") {
		t.Errorf("the page is %q", page)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := os.Stat(filepath.Join(bin, "opened")); err == nil {
		t.Error("the file is opened without a terminal")
	}

	text := file(t, mailWith("    to: ann@example.com\n    subject: Hello\n    text: \"a < b: {{ .Payload.order }}\"\n"))
	r = commandIn(t, env, "template", "test", "--open", "-c", text, "--destination", "mail", "--event", event)
	if page := testenv.ReadFile(t, strings.TrimSpace(r.stdout)); page != "\ufeff<!doctype html>\n<pre>a &lt; b: 1042</pre>\n" {
		t.Errorf("the page of a text is %q", page)
	}

	other := file(t, "version: 1\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n")
	r = commandIn(t, env, "template", "test", "--open", "-c", other, "--destination", "audit", "--event", event)
	if r.code != 1 || !strings.Contains(r.stderr, `--open shows mails, and a message of the type "log" is none: leave --open out`) {
		t.Errorf("got %+v", r)
	}

	bad := file(t, mailWith("    to: ann@example.com\n    subject: Hello\n    text: '{{ .Payload.nothing }}'\n"))
	r = commandIn(t, env, "template", "test", "--open", "-c", bad, "--destination", "mail", "--event", event)
	if r.code != 1 || r.stdout != "" || !strings.Contains(r.stderr, `template "text", line 1, at {{ .Payload.nothing }}: `) {
		t.Errorf("got %+v", r)
	}
}
