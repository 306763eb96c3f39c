package redis

import (
	"fmt"
	"testing"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestTLS has a server that wants a client's certificate.
func TestTLS(t *testing.T) {
	t.Parallel()
	own, other := testenv.Certificate(t), testenv.Certificate(t)
	port := fmt.Sprint(testenv.FreePort(t))
	s := testenv.OwnRedis(t, "--tls-port", port, "--tls-cert-file", own.Cert, "--tls-key-file", own.Key, "--tls-ca-cert-file", own.Cert)
	url := "rediss://127.0.0.1:" + port
	good := handlers.TLS{CAFile: own.Cert, CertFile: own.Cert, KeyFile: own.Key}
	for name, c := range map[string]struct {
		change func(*handlers.TLS)
		class  string
		text   string
	}{
		"as it should be":   {func(*handlers.TLS) {}, "delivered", ""},
		"another authority": {func(c *handlers.TLS) { c.CAFile = other.Cert }, "unavailable", "tls.ca_file"},
		"another name":      {func(c *handlers.TLS) { c.ServerName = "example.com" }, "unavailable", "tls.server_name"},
		"no certificate":    {func(c *handlers.TLS) { c.CertFile, c.KeyFile = "", "" }, "unavailable", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conf := good
			c.change(&conf)
			h := open(t, url, func(cfg *Config) { cfg.TLS = &conf })
			for range 2 { // the second one with a connection that was idle
				err := h.Deliver(t.Context(), events(1)[0])
				deliverytest.WantClass(t, err, c.class)
				if c.text != "" {
					deliverytest.WantText(t, err, c.text)
				}
			}
		})
	}
	t.Run("closed while idle", func(t *testing.T) {
		t.Parallel()
		h := open(t, url, func(cfg *Config) { cfg.TLS = &good })
		deliverytest.Deliver(t, h, events(1))
		var before *conn
		for before = range idleLanes(h)[0].conns {
		}
		do(t, client(t, s.Addr()), "client", "kill", "addr", before.raw.LocalAddr().String()) // no other's
		deliverytest.Deliver(t, h, events(2))
		if _, still := idleLanes(h)[0].conns[before]; still {
			t.Error("the connection was not closed")
		}
	})
}
