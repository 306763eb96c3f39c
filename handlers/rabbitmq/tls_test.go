package rabbitmq_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/rabbitmq"
	"github.com/notifyd/notifyd/internal/lab/privateserver/rabbitserver"
)

// TestTLS: encrypted with a password, and with a certificate in its place.
func TestTLS(t *testing.T) {
	t.Parallel()
	pki := newPKI(t)
	s, b := own(t, rabbitserver.Config{TLS: &rabbitserver.TLS{
		CAFile: pki.path("ca.pem"), CertFile: pki.issue("server"), KeyFile: pki.path("server.key"),
	}})
	b.queue("q", nil)
	pki.issue("app")
	for _, args := range [][]string{{"add_user", "app", "unused"}, {"set_permissions", "app", ".*", ".*", ".*"}} {
		if _, err := s.Ctl(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	host, p, err := net.SplitHostPort(s.TLSAddr())
	if err != nil {
		t.Fatal(err)
	}
	base := rabbitmq.Config{Host: host, Port: port(t, p), RoutingKey: "q", TLS: &handlers.TLS{CAFile: "ca.pem"}}
	for name, c := range map[string]struct {
		change func(c *rabbitmq.Config)
		fails  string
	}{
		"plain": {func(*rabbitmq.Config) {}, ""},
		"external": {func(c *rabbitmq.Config) {
			c.Auth = rabbitmq.AuthExternal
			c.TLS = &handlers.TLS{CAFile: "ca.pem", CertFile: "app.pem", KeyFile: "app.key"}
		}, ""},
		"external as nobody": {func(c *rabbitmq.Config) {
			c.Auth = rabbitmq.AuthExternal
			c.TLS = &handlers.TLS{CAFile: "ca.pem", CertFile: "server.pem", KeyFile: "server.key"}
		}, "403"},
		"an authority that is not trusted": {func(c *rabbitmq.Config) { c.TLS = &handlers.TLS{} }, "tls.ca_file"},
		"another name": {func(c *rabbitmq.Config) {
			c.TLS = &handlers.TLS{CAFile: "ca.pem", ServerName: "other.example.com"}
		}, "tls.server_name"},
		"amqps url": {func(c *rabbitmq.Config) {
			*c = rabbitmq.Config{URL: handlers.NewSecret("amqps://guest:guest@" + s.TLSAddr()), RoutingKey: "q", TLS: &handlers.TLS{CAFile: "ca.pem"}}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := base
			c.change(&cfg)
			h := open(t, cfg, handlers.WithBaseDir(pki.dir))
			err := h.Deliver(t.Context(), event(1))
			if c.fails != "" {
				isUnavailable(t, err, c.fails)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	_, err = rabbitmq.New(base, handlers.WithBaseDir(t.TempDir()))
	if err == nil || !strings.Contains(err.Error(), "tls.ca_file: cannot be read") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// pki is an authority and its certificates, as PEM files.
type pki struct {
	tb  testing.TB
	dir string
	ca  *x509.Certificate
	key *ecdsa.PrivateKey
}

func newPKI(tb testing.TB) *pki {
	tb.Helper()
	p := &pki{tb: tb, dir: tb.TempDir()}
	p.ca, p.key = p.certify("ca", nil, nil)
	return p
}

func (p *pki) path(name string) string { return filepath.Join(p.dir, name) }

// issue writes NAME.pem and NAME.key with the common name NAME, for the
// loopback, and returns the path of the former.
func (p *pki) issue(name string) string {
	p.tb.Helper()
	p.certify(name, p.ca, p.key)
	return p.path(name + ".pem")
}

func (p *pki) certify(name string, by *x509.Certificate, with *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	p.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true, IsCA: by == nil, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if by == nil {
		by, with = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by, &key.PublicKey, with)
	if err != nil {
		p.tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		p.tb.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		p.tb.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "EC PRIVATE KEY", Bytes: raw},
	} {
		if err := os.WriteFile(p.path(file), pem.EncodeToMemory(block), 0o600); err != nil {
			p.tb.Fatal(err)
		}
	}
	return cert, key
}
