package webhook

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// startProxy starts an HTTP proxy that sends everything to one address,
// whatever it is asked for, and wants a password if there is one.
func startProxy(t *testing.T, to, password string) (addr string, asked func() []string) {
	t.Helper()
	var mu sync.Mutex
	var hosts []string
	var pipes sync.WaitGroup
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		hosts = append(hosts, r.Method+" "+r.Host)
		mu.Unlock()
		if password != "" && r.Header.Get("Proxy-Authorization") != "Basic "+basic("me", secretOf(password)) {
			http.Error(w, "no: "+r.Header.Get("Proxy-Authorization"), http.StatusProxyAuthRequired)
			return
		}
		if r.Method != http.MethodConnect {
			w.WriteHeader(http.StatusAccepted) // in place of the server
			return
		}
		server, err := net.Dial("tcp", to)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusOK)
		client, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		pipe := func(to net.Conn, from io.Reader) {
			_, _ = io.Copy(to, from)
			_ = to.Close()
		}
		pipes.Go(func() { pipe(server, buffered) }) // which has what came before the hijack
		pipes.Go(func() { pipe(client, server) })
	}))
	t.Cleanup(func() {
		server.Close()
		pipes.Wait()
	})
	return server.Listener.Addr().String(), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), hosts...)
	}
}

func TestProxy(t *testing.T) {
	t.Parallel()
	secure, ca := startTLSReceiver(t, nil)
	addr, asked := startProxy(t, secure.addr, "marker-token")
	through := func(user, url string, dynamic bool) error {
		t.Helper()
		cfg := Config{URL: url, ProxyURL: secretOf("http://" + user + addr), TLS: handlers.TLS{CAFile: ca}}
		if dynamic {
			cfg.URL, cfg.DynamicHost, cfg.Addresses = `{{ print "`+url+`" }}`, true, AddressesAny
		}
		return deliver(t, cfg, event(ada))
	}
	const good = "me:marker-token@"
	if err := through(good, "https://example.com/hook", false); err != nil {
		t.Error(err)
	}
	if got := secure.one(t); got.Proto != "HTTP/2.0" || got.Header.Get("Proxy-Authorization") != "" {
		t.Errorf("%s %v", got.Proto, got.Header)
	}
	if err := through(good, "http://shop.invalid/hook", false); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(asked()); got != "[CONNECT example.com:443 POST shop.invalid]" {
		t.Errorf("the proxy was asked for %s", got)
	}
	// The proxy refuses notifyd, whether or not the event chose the host.
	for _, dynamic := range []bool{false, true} {
		for _, url := range []string{"https://example.com/hook", "http://shop.invalid/hook"} {
			checkVerdict(t, through("me:marker-token-of-old@", url, dynamic), "unavailable", "407 Proxy Authentication Required")
		}
	}
	secure.stop(t)
	checkVerdict(t, through(good, "https://example.com/hook", false), "unavailable", "connecting: the proxy answered 502 Bad Gateway")
	checkVerdict(t, through(good, "https://example.com/hook", true), "retry", "connecting: the proxy answered 502 Bad Gateway")
	secure.start(t)
}

// envProxyChild makes this test binary the process whose environment names a
// proxy: net/http reads that once.
const envProxyChild = "NOTIFYD_TEST_PROXY_CHILD"

func TestProxyOfTheEnvironment(t *testing.T) {
	if os.Getenv(envProxyChild) != "" {
		if err := deliver(t, Config{URL: "http://shop.invalid/hook"}, event(ada)); err != nil {
			t.Error(err)
		}
		err := deliver(t, Config{URL: "http://shop.invalid/hook", ProxyURL: none}, event(ada))
		checkVerdict(t, err, "unavailable", "lookup shop.invalid")
		_, err = New(Config{URL: "{{ .Payload.url }}", DynamicHost: true})
		if err == nil || !strings.Contains(err.Error(), "proxy_url: the environment variable HTTP_PROXY names a proxy") {
			t.Errorf("got %v", err)
		}
		return
	}
	t.Parallel()
	addr, asked := startProxy(t, "", "")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProxyOfTheEnvironment$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), envProxyChild+"=1", "HTTP_PROXY=http://"+addr, "NO_PROXY=", "no_proxy=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := fmt.Sprint(asked()); got != "[POST shop.invalid]" {
		t.Errorf("the proxy was asked for %s", got)
	}
}

// TestClientCertificate is mutual TLS.
func TestClientCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "relay"}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS.PeerCertificates[0].Subject.CommonName != "relay" {
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	clients := x509.NewCertPool()
	clients.AddCert(cert)
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	server.Config.ErrorLog = testenv.Quiet()
	server.StartTLS()
	defer server.Close()
	security := handlers.TLS{CAFile: write("ca.pem", "CERTIFICATE", server.Certificate().Raw)}
	checkVerdict(t, deliver(t, Config{URL: server.URL, TLS: security}, event(ada)), "unavailable", "certificate required")
	security.CertFile, security.KeyFile = write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", keyDER)
	if err := deliver(t, Config{URL: server.URL, TLS: security}, event(ada)); err != nil {
		t.Error(err)
	}
}
