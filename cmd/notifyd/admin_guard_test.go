package main

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/status"
)

// TestAdminGuarded runs a daemon with TLS and a token: the health check and status
// reach it by its configuration, others do not, and the token is shown nowhere.
func TestAdminGuarded(t *testing.T) {
	t.Parallel()
	const token = "b0d9a7c1-not-to-be-seen-e5f2"
	dir, url, port := t.TempDir(), database(t), testenv.FreePort(t)
	writePair(t, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	const config = `version: 1
database: {url: '%s'}
admin:
  listen: 127.0.0.1:%d
  tls: {cert_file: tls.crt, key_file: tls.key}
  token: %s
  pprof: true
destinations: {audit: {type: log, payload: false}}
routes: [{match: '*', to: audit}]
`
	write := func(name, token string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, fmt.Appendf(nil, config, url, port, token), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path, wrong := write("notifyd.yaml", token), write("wrong.yaml", token+"0")
	d := startDaemon(t, nil, "run", "-c", path)
	d.stderr.await(t, `"relay started"`)
	d.stderr.await(t, `"admin server listening","listen":"127.0.0.1:`)
	for deadline := time.Now().Add(patience); ; {
		got := invoke(t, "healthcheck", "-c", path, "--timeout", "1m")
		if got.code == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("never ready: %+v\n%s", got, d.stderr.text())
		}
	}
	if got := invoke(t, "healthcheck", "-c", path, "--timeout", "1m"); !strings.Contains(got.stdout, "[+] database: ok\n") {
		t.Errorf("%+v", got)
	}
	if got := invoke(t, "healthcheck", "-c", wrong, "--timeout", "1m"); got.code != 0 || got.stdout != "ok\n" {
		t.Errorf("without the token: %+v", got)
	}
	look := func(r result) (s status.Status) {
		t.Helper()
		if err := json.Unmarshal([]byte(r.stdout), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := look(commandUntil(t, "with the token", hasRelay, "status", "-c", path, "-o", "json")); len(s.Relay.Destinations) != 1 {
		t.Errorf("status of the relay: %+v", s.Relay)
	}
	if s := look(invoke(t, "status", "-c", wrong, "-o", "json")); s.Relay != nil {
		t.Errorf("with another token: %+v", s.Relay)
	}
	printed := invoke(t, "config", "print", "-c", path)
	if code := d.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, d.stderr.text())
	}
	if strings.Contains(d.stderr.text()+printed.stdout+printed.stderr, "not-to-be-seen") {
		t.Error("the token is shown")
	}
}

// TestAdminGuardMistakes: what is wrong is said before anything runs.
func TestAdminGuardMistakes(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{
		"{listen: '127.0.0.1:1', token: tiny}":                    "admin.token: is shorter than 16 characters",
		"{listen: '127.0.0.1:1', token: \"a token with blanks\"}": "admin.token: has characters that a header cannot carry",
		"{listen: '0.0.0.0:1', pprof: true}":                      "admin.pprof: profiles show memory",
		"{listen: ':1', pprof: true}":                             "admin.pprof: profiles show memory",
		"{listen: '127.0.0.1:1', tls: {cert_file: x.pem}}":        "admin.tls.key_file: missing",
		"{listen: '127.0.0.1:1', tls: {key_file: x.pem}}":         "admin.tls.cert_file: missing",
		"{listen: '127.0.0.1:1', prefix: ops}":                    "admin.prefix: must be a path of letters, digits, and - _ . ~, such as /ops,",
		"{listen: '127.0.0.1:1', prefix: /console}":               "admin.prefix: must not begin with /console",
	} {
		got := invoke(t, "config", "print", "-c", file(t, "version: 1\nadmin: "+settings+"\n"))
		if got.code != command.ExitConfig || !strings.Contains(got.stderr, want) || strings.Contains(got.stderr, "blanks") {
			t.Errorf("%s: %+v, want %q", settings, got, want)
		}
	}
	for _, settings := range []string{"{listen: '[::1]:1', pprof: true}", "{listen: '0.0.0.0:1', pprof: true, token: 0123456789abcdef}"} {
		if got := invoke(t, "config", "print", "-c", file(t, "version: 1\nadmin: "+settings+"\n")); got.code != 0 {
			t.Errorf("%s: %+v", settings, got)
		}
	}
}

// writePair writes a certificate and its key, which are those of a test server.
func writePair(t *testing.T, cert, key string) {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	pair := server.TLS.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
