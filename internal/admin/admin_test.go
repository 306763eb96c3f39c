package admin

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/profiles"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "0123456789abcdef0123456789abcdef"

// serve runs a server until the test ends, and returns its address.
func serve(t *testing.T, cfg Config) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector())
	cfg.Address, cfg.Version, cfg.Metrics = "127.0.0.1:0", "v1", registry
	s, err := Listen(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s.Addr()
}

func (a Access) must(t *testing.T, path string, want int) string {
	t.Helper()
	code, body, err := a.Get(t.Context(), path)
	if err != nil || code != want {
		t.Errorf("GET %s: %d, %v; want %d", path, code, err, want)
	}
	return string(body)
}

// TestToken: which paths are open, which are not, and the answers without the token.
func TestToken(t *testing.T) {
	t.Parallel()
	trouble := errors.New("the database does not answer")
	address := serve(t, Config{Token: NewVerifier(handlers.NewSecret(token)), Profiles: profiles.Handler(), Checks: []Check{{Name: "database", Do: func() error { return trouble }}}})
	right := Access{Address: address, Token: handlers.NewSecret(token)}
	if text := right.must(t, "/readyz", http.StatusServiceUnavailable); !strings.Contains(text, trouble.Error()) {
		t.Errorf("with the token the answer is %q", text)
	}
	for _, path := range []string{"/metrics", "/version", "/livez", "/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/profile?seconds=1"} {
		right.must(t, path, http.StatusOK)
	}
	right.must(t, "/debug/pprof/cmdline", http.StatusNotFound)
	for _, shown := range []string{"", token[1:], token + "0", strings.ToUpper(token)} {
		stranger := Access{Address: address, Token: handlers.NewSecret(shown)}
		for _, path := range []string{"/metrics", "/version", "/debug/pprof/", "/debug/pprof/goroutine"} {
			if text := stranger.must(t, path, http.StatusUnauthorized); strings.Contains(text, token) {
				t.Errorf("%s reveals the token", path)
			}
		}
		stranger.must(t, "/livez", http.StatusOK)
		for _, path := range []string{"/readyz", "/readyz?verbose", "/healthz"} {
			if text := stranger.must(t, path, http.StatusServiceUnavailable); strings.Contains(text, "database") {
				t.Errorf("without the token the answer is %q", text)
			}
		}
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/version", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth("Bearer", token)
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized || response.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("another scheme: %s, %v", response.Status, response.Header)
	}
}

// TestOpen: without a token every path answers, and profiles need a setting.
func TestOpen(t *testing.T) {
	t.Parallel()
	a := Access{Address: serve(t, Config{Checks: []Check{{Name: "database", Do: func() error { return nil }}}})}
	a.must(t, "/metrics", http.StatusOK)
	a.must(t, "/debug/pprof/", http.StatusNotFound)
	if text := a.must(t, "/readyz?verbose", http.StatusOK); text != "[+] database: ok\n" {
		t.Errorf("/readyz?verbose says %q", text)
	}
	if text := a.must(t, "/readyz", http.StatusOK); text != "ok\n" {
		t.Errorf("/readyz says %q", text)
	}
}

// TestCertificate: changed files are used, and unusable ones are not.
func TestCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	first, second := newPair(t, 1), newPair(t, 2)
	first.write(t, files)
	address := serve(t, Config{TLS: files})
	pinned := filepath.Join(dir, "pinned.pem")
	knows := func(p pair) Access {
		put(t, pinned, p.cert)
		return Access{Address: address, CertFile: pinned}
	}
	knows(first).must(t, "/livez", http.StatusOK)
	if _, _, err := knows(second).Get(t.Context(), "/livez"); !errors.Is(err, errOther) {
		t.Errorf("another certificate: %v", err)
	}
	if code, _, err := (Access{Address: address}).Get(t.Context(), "/livez"); err == nil && code == http.StatusOK {
		t.Error("it answers without TLS")
	}

	put(t, files.Cert, []byte("half a certif")) // in the middle of a change
	knows(first).must(t, "/livez", http.StatusOK)
	put(t, files.Cert, second.cert) // which does not fit the key yet
	knows(first).must(t, "/livez", http.StatusOK)
	put(t, files.Key, second.key)
	knows(second).must(t, "/livez", http.StatusOK)
	if err := os.Remove(files.Key); err != nil {
		t.Fatal(err)
	}
	knows(second).must(t, "/livez", http.StatusOK)
}

// TestBadCertificate: an unusable certificate fails the start.
func TestBadCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	try := func(want string) {
		t.Helper()
		_, err := Listen(t.Context(), Config{Address: "127.0.0.1:0", TLS: files}, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "admin.tls") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	try("no such file")
	newPair(t, 1).write(t, files)
	put(t, files.Cert, newPair(t, 2).cert)
	try("does not match")
	put(t, files.Cert, []byte("nothing"))
	try("failed to find any PEM data")
	if _, _, err := (Access{Address: "127.0.0.1:1", CertFile: files.Cert}).Get(t.Context(), "/"); err == nil || !strings.Contains(err.Error(), "BEGIN CERTIFICATE") {
		t.Errorf("got %v", err)
	}
}

type pair struct{ cert, key []byte }

func newPair(t *testing.T, serial int64) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "relay.example"}, NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"relay.example"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pair{
		cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}
}

func (p pair) write(t *testing.T, f Files) {
	t.Helper()
	put(t, f.Cert, p.cert)
	put(t, f.Key, p.key)
}

// put replaces a file atomically, as programs that renew certificates do: the new
// file differs from the old one, however coarse the file system's clock is.
func put(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestForeignNames: on loopback and without a token, a name that others can make lead here is refused
// all that is worth reading (DNS rebinding). Probes have an answer.
func TestForeignNames(t *testing.T) {
	t.Parallel()
	get := func(address, path, host string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		r.Header.Set("Authorization", "Bearer "+token)
		response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close() //nolint:errcheck // nothing of it is read
		return response.StatusCode
	}
	open, guarded := serve(t, Config{Profiles: profiles.Handler()}), serve(t, Config{Profiles: profiles.Handler(), Token: NewVerifier(handlers.NewSecret(token))})
	for _, path := range []string{"/metrics", "/debug/pprof/", "/version"} {
		for host, want := range map[string]int{
			"evil.example": http.StatusMisdirectedRequest, "evil.example:9470": http.StatusMisdirectedRequest, "localhost.evil.example": http.StatusMisdirectedRequest,
			"localhost:9470": http.StatusOK, "LOCALHOST": http.StatusOK, "127.0.0.1:1": http.StatusOK, "[::1]:9470": http.StatusOK, "10.0.0.1": http.StatusOK,
		} {
			if got := get(open, path, host); got != want {
				t.Errorf("%s of %s: %d, want %d", path, host, got, want)
			}
			if got := get(guarded, path, host); got != http.StatusOK {
				t.Errorf("%s of %s with the token: %d", path, host, got)
			}
		}
	}
	for _, path := range []string{"/livez", "/readyz"} {
		if got := get(open, path, "evil.example"); got != http.StatusOK {
			t.Errorf("%s: %d", path, got)
		}
	}
	for _, c := range []struct {
		address string
		ip      net.IP
		host    string
		want    bool
	}{
		{"relay.internal:9470", net.IPv4(127, 0, 0, 1), "relay.internal:9470", true},
		{"relay.internal:9470", net.IPv4(127, 0, 0, 1), "other.internal", false},
		{":9470", net.IPv4(10, 0, 0, 1), "notifyd.shop.svc:9470", true},
		{":9470", net.IPv4(127, 0, 0, 1), "notifyd.shop.svc:9470", false}, // listening on all addresses is no reason to answer a foreign page
		{"10.0.0.1:9470", net.IPv4(10, 0, 0, 1), "notifyd.shop.svc", true},
		{":9470", net.IPv4(127, 0, 0, 1), "", true},
		{":9470", net.IPv4(127, 0, 0, 1), ":9470", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
		r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: c.ip}))
		r.Host = c.host
		if got := newGuard(nil, c.address).knows(r); got != c.want {
			t.Errorf("listening on %s at %s, %q is known: %v", c.address, c.ip, c.host, got)
		}
	}
}
