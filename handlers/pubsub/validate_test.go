package pubsub

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change     func(*Config)
		path, text string
	}{
		"no topic":       {func(c *Config) { c.Topic = "" }, "topic", "missing"},
		"no project":     {func(c *Config) { c.Project = "" }, "project", "projects/shop/topics/orders"},
		"two projects":   {func(c *Config) { c.Topic = "projects/shop/topics/orders" }, "project", "already"},
		"path":           {func(c *Config) { c.Topic = "topics/orders" }, "topic", "of the form"},
		"short":          {func(c *Config) { c.Topic = "or" }, "topic", "3 to 255"},
		"Google's":       {func(c *Config) { c.Topic = "google-orders" }, "topic", "goog"},
		"project":        {func(c *Config) { c.Project = "My Shop" }, "project", "small letters"},
		"endpoint":       {func(c *Config) { c.Endpoint = "localhost:8085" }, "endpoint", "must be a URL"},
		"endpoint, path": {func(c *Config) { c.Endpoint = "http://localhost:8085/v1" }, "endpoint", "take out"},
		"password":       {func(c *Config) { c.Endpoint = "http://a:sesame-open@localhost" }, "endpoint", "password"},
		"key for nobody": {func(c *Config) { c.Endpoint, c.CredentialsFile = "http://localhost:8085", "key.json" }, "credentials_file", "has no effect"},
		"timeout":        {func(c *Config) { c.RequestTimeout = -1 }, "request_timeout", "positive"},
		"key":            {func(c *Config) { c.OrderingKey = "{{ .Paylod.x }}" }, "ordering_key", "there is no .Paylod"},
		"format":         {func(c *Config) { c.Format = "xml" }, "format", "must be payload"},
		"source":         {func(c *Config) { c.Message = handlers.Message{Source: "/x"} }, "cloudevents_source", "has no effect"},
		"certificate":    {func(c *Config) { c.TLS = &handlers.TLS{CertFile: "x"} }, "tls.key_file", "missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Project: "shop", Topic: "orders"}
			c.change(&cfg)
			errs := field.Split(cfg.Validate())
			if len(errs) == 0 || field.Path(errs[0]) != c.path || !strings.Contains(errs[0].Error(), c.text) || strings.Contains(errs[0].Error(), "sesame") {
				t.Errorf("got %v, want %s: %s", errs, c.path, c.text)
			}
			if _, err := New(cfg); err == nil {
				t.Error("New takes it")
			}
		})
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{Project: "shop-123456", Topic: "orders"}, {Topic: "projects/example.com:shop/topics/orders.v2"}, {Project: "1234567", Topic: "a%2Bb~c"},
	} {
		if err := cfg.Validate(); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	h := deliverytest.Open(t, New, Config{Topic: "projects/shop/topics/a%2Bb", Endpoint: "http://localhost:1/"})
	if want := "http://localhost:1/v1/projects/shop/topics/a%252Bb"; h.url != want {
		t.Errorf("got %s, want %s", h.url, want)
	}
}
