package nats

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
	s := testenv.OwnNATS(t, fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }", own.Cert, own.Key, own.Cert))
	good := handlers.TLS{CAFile: own.Cert, CertFile: own.Cert, KeyFile: own.Key}
	for name, c := range map[string]struct {
		url    string
		change func(*handlers.TLS)
		class  string
		text   string
	}{
		"as it should be":   {"tls://", func(*handlers.TLS) {}, "delivered", ""},
		"the other scheme":  {"nats://", func(*handlers.TLS) {}, "delivered", ""},
		"another authority": {"tls://", func(c *handlers.TLS) { c.CAFile = other.Cert }, "unavailable", "tls.ca_file"},
		"another name":      {"tls://", func(c *handlers.TLS) { c.ServerName = "example.com" }, "unavailable", "tls.server_name"},
		"no certificate":    {"tls://", func(c *handlers.TLS) { c.CertFile, c.KeyFile = "", "" }, "unavailable", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conf := good
			c.change(&conf)
			h := open(t, c.url+s.Addr(), func(cfg *Config) { cfg.TLS, cfg.Mode = &conf, ModeCore })
			err := h.Deliver(t.Context(), events(1)[0])
			deliverytest.WantClass(t, err, c.class)
			if c.text != "" {
				deliverytest.WantText(t, err, c.text)
			}
		})
	}
}
