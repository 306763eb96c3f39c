package pubsub

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/handlers"
)

// account is the one whose key Google knows.
const account = "relay@shop.iam.gserviceaccount.com"

// cloud is a Google Cloud: a server that gives tokens for a key, and one with TLS in front
// of the emulator that demands them.
type cloud struct {
	tokens, pubsub *httptest.Server
	key            []byte // PEM
	issued         atomic.Int64
	expired        atomic.Int64 // tokens up to this one are not accepted
	rights         string       // what testIamPermissions answers
	quota          atomic.Value // the header X-Goog-User-Project of the last request
}

const tokenPrefix = "ya29.correct-horse-battery-staple-"

func startGoogle(tb testing.TB, upstream string) *cloud {
	tb.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		tb.Fatal(err)
	}
	g := &cloud{key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), rights: `{"permissions": ["` + permission + `"]}`}
	g.tokens = httptest.NewServer(http.HandlerFunc(g.giveToken))
	tb.Cleanup(g.tokens.Close)
	target, err := url.Parse(upstream)
	if err != nil {
		tb.Fatal(err)
	}
	forward := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{DisableKeepAlives: true},
	}
	g.pubsub = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.quota.Store(r.Header.Get("X-Goog-User-Project"))
		var n int64
		_, err := fmt.Sscanf(r.Header.Get("Authorization"), "Bearer "+tokenPrefix+"%d", &n)
		switch {
		case err != nil || n <= g.expired.Load():
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error": {"code": 401, "status": "UNAUTHENTICATED", "message": "not with `+r.Header.Get("Authorization")+`"}}`)
		case strings.HasSuffix(r.URL.Path, ":testIamPermissions"):
			_, _ = io.WriteString(w, g.rights)
		default:
			forward.ServeHTTP(w, r)
		}
	}))
	tb.Cleanup(g.pubsub.Close)
	return g
}

// giveToken takes an assertion of the account, whose signature the library's own tests
// check.
func (g *cloud) giveToken(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.FormValue("assertion"), ".")
	var claims struct{ Iss, Scope string }
	if len(parts) == 3 {
		text, _ := base64.RawURLEncoding.DecodeString(parts[1]) // what is missing is missed below
		_ = json.Unmarshal(text, &claims)
	}
	w.Header().Set("Content-Type", "application/json")
	if claims.Iss != account || claims.Scope != scope {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error": "invalid_grant", "error_description": "Invalid grant: account not found", "seen": "`+r.FormValue("assertion")+`"}`)
		return
	}
	_, _ = fmt.Fprintf(w, `{"access_token": "%s%d", "token_type": "Bearer", "expires_in": 3599}`, tokenPrefix, g.issued.Add(1))
}

// keyFile writes a key as Google gives it out. Changes replace its members.
func (g *cloud) keyFile(tb testing.TB, changes ...string) string {
	tb.Helper()
	content := map[string]string{
		"type": "service_account", "project_id": "shop", "private_key_id": "k1", "private_key": string(g.key),
		"client_email": account, "token_uri": g.tokens.URL,
	}
	for i := 0; i+1 < len(changes); i += 2 {
		content[changes[i]] = changes[i+1]
	}
	text, err := json.Marshal(content)
	if err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(tb.TempDir(), "key.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// trusted writes the certificate of the server with TLS.
func (g *cloud) trusted(tb testing.TB) *handlers.TLS {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: g.pubsub.Certificate().Raw}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		tb.Fatal(err)
	}
	return &handlers.TLS{CAFile: path}
}

// secrets are texts of the key and of tokens.
func (g *cloud) secrets() []string {
	lines := strings.Split(string(g.key), "\n")
	return []string{tokenPrefix, lines[1], lines[2]}
}

func (g *cloud) config(tb testing.TB, topic string) Config {
	tb.Helper()
	return Config{Project: "shop", Topic: topic, Endpoint: g.pubsub.URL, CredentialsFile: g.keyFile(tb), TLS: g.trusted(tb)}
}
