package tlsconf

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	var keyPEM []byte
	a.pem, keyPEM = (&authority{}).sign(t, "authority", time.Hour)
	pair, err := tls.X509KeyPair(a.pem, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	a.cert = pair.Leaf
	a.key, _ = pair.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// sign makes a certificate that is valid until then, and its key. The zero
// authority lets it sign itself.
func (a *authority) sign(t *testing.T, name string, until time.Duration) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(until),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, parentKey := a.cert, a.key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		template.ExtKeyUsage = nil
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// files writes files and returns their directory.
func files(t *testing.T, all map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range all {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// handshake connects a client with the configuration to a server, and returns the errors of both.
func handshake(t *testing.T, ours, theirs *tls.Config) (client, server error) {
	t.Helper()
	// Not net.Pipe: without a buffer, two alerts that meet wait for each other.
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the handshake is what counts
	done := make(chan error, 1)
	go func() {
		b, err := l.Accept()
		if err == nil {
			err = tls.Server(b, theirs).HandshakeContext(t.Context())
			_ = b.Close()
		}
		done <- err
	}()
	a, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(a, ours)
	client = conn.HandshakeContext(t.Context())
	if client == nil {
		_, _ = conn.Read(make([]byte, 1)) // in TLS 1.3 a server refuses later
	}
	_ = a.Close()
	return client, <-done
}

func TestMutual(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	cert, key := a.sign(t, "relay", time.Hour)
	serverCert, serverKey := a.sign(t, "broker.example", time.Hour)
	oldCert, oldKey := a.sign(t, "relay", -time.Hour)
	dir := files(t, map[string][]byte{"ca.pem": a.pem, "cert.pem": cert, "key.pem": key, "old.pem": oldCert, "oldkey.pem": oldKey})
	pair, err := tls.X509KeyPair(serverCert, serverKey)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.pem)
	theirs := &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12}
	old := theirs.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	for _, c := range []struct {
		name   string
		cfg    handlers.TLS
		theirs *tls.Config
		client string // in the client's error
		server string
	}{
		{"all is well", handlers.TLS{CAFile: "ca.pem", CertFile: "cert.pem", KeyFile: "key.pem", ServerName: "broker.example"}, theirs, "", ""},
		{"absolute paths", handlers.TLS{CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"), ServerName: "broker.example"}, theirs, "", ""},
		{"another name", handlers.TLS{CAFile: "ca.pem", CertFile: "cert.pem", KeyFile: "key.pem", ServerName: "other.example"}, theirs, "not other.example", "bad certificate"},
		{"the system's authorities", handlers.TLS{ServerName: "broker.example"}, theirs, "unknown authority", "bad certificate"},
		{"no certificate shown", handlers.TLS{CAFile: "ca.pem", ServerName: "broker.example"}, theirs, "", "didn't provide a certificate"},
		// It is loaded all the same: the server decides.
		{"expired", handlers.TLS{CAFile: "ca.pem", CertFile: "old.pem", KeyFile: "oldkey.pem", ServerName: "broker.example"}, theirs, "", "expired"},
		{"TLS 1.1", handlers.TLS{CAFile: "ca.pem", ServerName: "broker.example"}, old, "protocol version", "unsupported versions"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ours, err := Read(c.cfg, dir)
			if err != nil {
				t.Fatal(err)
			}
			client, server := handshake(t, ours, c.theirs)
			if !says(client, c.client) || !says(server, c.server) {
				t.Errorf("client: %v, want %q; server: %v, want %q", client, c.client, server, c.server)
			}
		})
	}
}

// says reports whether err has text in it, or is nil where text is empty.
func says(err error, text string) bool {
	if text == "" {
		return err == nil
	}
	return err != nil && strings.Contains(err.Error(), text)
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	cert, key := a.sign(t, "relay", time.Hour)
	_, wrong := a.sign(t, "relay", time.Hour)
	noise := []byte("-----BEGIN NOISE-----\nhunter2hunter2\n")
	dir := files(t, map[string][]byte{
		"cert.pem": cert, "key.pem": key, "wrong.pem": wrong, "noise.pem": noise, "empty.pem": nil,
		"huge.pem": make([]byte, maxFile+1), "both.pem": append(slices.Clone(cert), key...),
	})
	if err := os.Mkdir(filepath.Join(dir, "dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		cfg   handlers.TLS
		paths []string // the settings complained of
		text  string
		is    error
	}{
		{"nothing set", handlers.TLS{}, nil, "", nil},
		{"certificate and key in one file", handlers.TLS{CertFile: "both.pem", KeyFile: "both.pem"}, nil, "", nil},
		{"a certificate alone", handlers.TLS{CertFile: "cert.pem"}, []string{"key_file"}, "missing", nil},
		{"a key alone", handlers.TLS{KeyFile: "key.pem"}, []string{"cert_file"}, "missing", nil},
		{"no such authorities", handlers.TLS{CAFile: "none.pem"}, []string{"ca_file"}, "none.pem", fs.ErrNotExist},
		{"no such certificate", handlers.TLS{CertFile: "none.pem", KeyFile: "key.pem"}, []string{"cert_file"}, "cannot be read", fs.ErrNotExist},
		{"no such key", handlers.TLS{CertFile: "cert.pem", KeyFile: "none.pem"}, []string{"key_file"}, "cannot be read", fs.ErrNotExist},
		{"a directory", handlers.TLS{CAFile: "dir"}, []string{"ca_file"}, "cannot be read", nil},
		{"authorities that are a key", handlers.TLS{CAFile: "key.pem"}, []string{"ca_file"}, "has no certificate in it", nil},
		{"authorities that are noise", handlers.TLS{CAFile: "noise.pem"}, []string{"ca_file"}, "has no certificate in it", nil},
		{"authorities that are empty", handlers.TLS{CAFile: "empty.pem"}, []string{"ca_file"}, "has no certificate in it", nil},
		{"authorities that are huge", handlers.TLS{CAFile: "huge.pem"}, []string{"ca_file"}, "is it the right file?", nil},
		{"the wrong key", handlers.TLS{CertFile: "cert.pem", KeyFile: "wrong.pem"}, []string{"cert_file"}, "does not go with key_file", nil},
		{"a key that is noise", handlers.TLS{CertFile: "cert.pem", KeyFile: "noise.pem"}, []string{"cert_file"}, "does not go with key_file", nil},
		{"the two swapped", handlers.TLS{CertFile: "key.pem", KeyFile: "cert.pem"}, []string{"cert_file"}, "does not go with key_file", nil},
		{"two mistakes at once", handlers.TLS{CAFile: "none.pem", CertFile: "cert.pem", KeyFile: "wrong.pem"}, []string{"ca_file", "cert_file"}, "", fs.ErrNotExist},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := Read(c.cfg, dir)
			var paths []string
			for _, e := range field.Split(err) {
				paths = append(paths, field.Path(e))
			}
			if !slices.Equal(paths, c.paths) {
				t.Fatalf("%v, want mistakes in %v", err, c.paths)
			}
			if err == nil {
				if got.MinVersion != tls.VersionTLS12 {
					t.Errorf("the least version is %x", got.MinVersion)
				}
				return
			}
			if got != nil {
				t.Error("there is a configuration beside the mistake")
			}
			if !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "hunter2") || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("got %v", err)
			}
		})
	}
}
