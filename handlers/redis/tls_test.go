package redis

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/notifyd/notifyd/handlers/tlsconf"
	"github.com/notifyd/notifyd/internal/testenv"
)

// certificate writes a key and a certificate for 127.0.0.1, which is its own
// authority.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// TestTLS has a server that wants a client's certificate.
func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	other, _ := certificate(t)
	port := fmt.Sprint(testenv.FreePort(t))
	s := testenv.OwnRedis(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
	url := "rediss://127.0.0.1:" + port
	good := tlsconf.Config{CAFile: cert, CertFile: cert, KeyFile: key}
	for name, c := range map[string]struct {
		change func(*tlsconf.Config)
		class  string
		text   string
	}{
		"as it should be":   {func(*tlsconf.Config) {}, "delivered", ""},
		"another authority": {func(c *tlsconf.Config) { c.CAFile = other }, "unavailable", "tls.ca_file"},
		"another name":      {func(c *tlsconf.Config) { c.ServerName = "example.com" }, "unavailable", "tls.server_name"},
		"no certificate":    {func(c *tlsconf.Config) { c.CertFile, c.KeyFile = "", "" }, "unavailable", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conf := good
			c.change(&conf)
			h := open(t, url, func(cfg *Config) { cfg.TLS = &conf })
			for range 2 { // the second one with a connection that was idle
				err := h.Deliver(t.Context(), events(1)[0])
				wantClass(t, err, c.class)
				if c.text != "" {
					mustContain(t, err, c.text)
				}
			}
		})
	}
	t.Run("closed while idle", func(t *testing.T) {
		t.Parallel()
		h := open(t, url, func(cfg *Config) { cfg.TLS = &good })
		deliver(t, h, events(1))
		var before *conn
		for before = range idleLanes(h)[0].conns {
		}
		do(t, client(t, s.Addr()), "client", "kill", "addr", before.raw.LocalAddr().String()) // no other's
		deliver(t, h, events(2))
		if _, still := idleLanes(h)[0].conns[before]; still {
			t.Error("the connection was not closed")
		}
	})
}
