package kafka

import (
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	password := handlers.NewSecret("hush")
	for name, c := range map[string]struct {
		change func(*Config)
		want   string // paths of the mistakes, "" for none
	}{
		"least": {func(*Config) {}, ""},
		"all": {func(c *Config) {
			c.TLS, c.SASL = &handlers.TLS{}, &SASL{Mechanism: SASLPlain, Username: "a", Password: password}
		}, ""},
		"host alone":              {func(c *Config) { c.Brokers = []string{"a", "::1", "[::1]:9"} }, ""},
		"empty":                   {func(c *Config) { *c = Config{} }, "brokers topic"},
		"brokers":                 {func(c *Config) { c.Brokers = []string{"", "a:b", "a:0", "PLAINTEXT://a:1", "a,b", "a b:1", ":1"} }, "brokers.0 brokers.1 brokers.2 brokers.3 brokers.4 brokers.5 brokers.6"},
		"topic with a space":      {func(c *Config) { c.Topic = "a b" }, "topic"},
		"topic of dots":           {func(c *Config) { c.Topic = ".." }, "topic"},
		"long topic":              {func(c *Config) { c.Topic = strings.Repeat("x", maxTopic+1) }, "topic"},
		"broken templates":        {func(c *Config) { c.Topic, c.Key = "{{", "{{ nope }}" }, "topic key"},
		"format":                  {func(c *Config) { c.Format = "avro" }, "format"},
		"source without effect":   {func(c *Config) { c.Message = handlers.Message{Source: "/a"} }, "cloudevents_source"},
		"key without certificate": {func(c *Config) { c.TLS = &handlers.TLS{KeyFile: "k"} }, "tls.cert_file"},
		"no mechanism":            {func(c *Config) { c.SASL = &SASL{} }, "sasl.mechanism"},
		"unknown mechanism":       {func(c *Config) { c.SASL = &SASL{Mechanism: "gssapi"} }, "sasl.mechanism"},
		"no user":                 {func(c *Config) { c.SASL = &SASL{Mechanism: SASLSCRAM256} }, "sasl.username sasl.password"},
		"token for SCRAM": {func(c *Config) {
			c.SASL = &SASL{Mechanism: SASLSCRAM256, Username: "a", Password: password, TokenFile: "t"}
		}, "sasl.token"},
		"two tokens": {func(c *Config) {
			c.TLS, c.SASL = &handlers.TLS{}, &SASL{Mechanism: SASLOAuthBearer, Token: password, TokenFile: "t"}
		}, "sasl.token"},
		"user for a token": {func(c *Config) {
			c.TLS, c.SASL = &handlers.TLS{}, &SASL{Mechanism: SASLOAuthBearer, Token: password, Username: "a"}
		}, "sasl.username"},
		"readable": {func(c *Config) { c.SASL = &SASL{Mechanism: SASLPlain, Username: "a", Password: password} }, "sasl.mechanism"},
		"readable on purpose": {func(c *Config) {
			c.SASL = &SASL{Mechanism: SASLPlain, Username: "a", Password: password, AllowUnencrypted: true}
		}, ""},
		"readable here": {func(c *Config) {
			c.Brokers, c.SASL = []string{"127.0.0.1:1", "localhost"}, &SASL{Mechanism: SASLPlain, Username: "a", Password: password}
		}, ""},
		"compression":       {func(c *Config) { c.Compression = "brotli" }, "compression"},
		"too small":         {func(c *Config) { c.MaxMessageBytes = 10 }, "max_message_bytes"},
		"too large":         {func(c *Config) { c.MaxMessageBytes = limitMaxMessageBytes + 1 }, "max_message_bytes"},
		"negative timeout":  {func(c *Config) { c.DeliveryTimeout = -1 }, "delivery_timeout"},
		"long timeout":      {func(c *Config) { c.DeliveryTimeout = time.Hour }, "delivery_timeout"},
		"id without effect": {func(c *Config) { c.TransactionalID = "a" }, "transactional_id"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Brokers: []string{"kafka.example.com:9092"}, Topic: "t"}
			c.change(&cfg)
			err := cfg.Validate()
			var paths []string
			for _, e := range field.Split(err) {
				paths = append(paths, field.Path(e))
			}
			if got := strings.Join(paths, " "); got != c.want {
				t.Errorf("mistakes in %q, want %q: %v", got, c.want, err)
			}
			if err != nil && strings.Contains(err.Error(), "hush") {
				t.Errorf("%v tells the password", err)
			}
			if h, openErr := New(cfg); (openErr == nil) != (err == nil) {
				t.Errorf("New = %v, Validate = %v", openErr, err)
			} else if openErr == nil && h.Close() != nil {
				t.Error("Close failed")
			}
		})
	}
}

func TestCertificatesAreRead(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Brokers: []string{"a"}, Topic: "t", TLS: &handlers.TLS{CAFile: "nowhere.pem"}}, handlers.WithBaseDir(t.TempDir()))
	if field.Path(err) != "tls.ca_file" {
		t.Errorf("New = %v, want a mistake in tls.ca_file", err)
	}
}

// TestSecretsAreCleaned: a broker may repeat secrets.
func TestSecretsAreCleaned(t *testing.T) {
	t.Parallel()
	s := newSecrets(Config{SASL: &SASL{Password: handlers.NewSecret("hush now"), Token: handlers.NewSecret("t0ken")}})
	s.add("renewed")
	if got, want := destination(s).Clean("no hush now,\n t0ken or renewed"), "no [redacted], [redacted] or [redacted]"; got != want {
		t.Errorf("Clean = %q, want %q", got, want)
	}
	for i := range 20 {
		s.add(strings.Repeat("x", i+1))
	}
	if n := len(s.all); n > 8 {
		t.Errorf("%d secrets are kept", n)
	}
}
