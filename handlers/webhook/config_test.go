package webhook

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func valid() Config { return Config{URL: "https://example.com/hook"} }

func secrets(all ...string) []handlers.Secret {
	var out []handlers.Secret
	for _, s := range all {
		out = append(out, handlers.NewSecret(s))
	}
	return out
}

func TestValidConfigs(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"minimal":           func(*Config) {},
		"plain HTTP":        func(c *Config) { c.URL = "http://127.0.0.1:8080" },
		"IPv6":              func(c *Config) { c.URL = "https://[2001:db8::1]:8443/hook" },
		"value in the path": func(c *Config) { c.URL = "https://example.com/{{ .Payload.id }}" },
		"value in a query":  func(c *Config) { c.URL = "https://example.com?id={{ .Payload.id }}" },
		"dynamic":           func(c *Config) { c.URL, c.DynamicHost, c.ProxyURL = "{{ .Payload.url }}", true, none },
		"dynamic, part": func(c *Config) {
			c.URL, c.DynamicHost, c.ProxyURL = "https://{{ .Payload.t }}.example.com/", true, none
		},
		"dynamic by a proxy": func(c *Config) {
			c.URL, c.DynamicHost, c.ProxyURL, c.Addresses = "{{ .Payload.url }}", true, handlers.NewSecret("http://proxy:3128"), AddressesAny
		},
		"proxies":  func(c *Config) { c.ProxyURL = handlers.NewSecret("socks5://me:secret@proxy.example.com:1080") },
		"networks": func(c *Config) { c.Addresses, c.AllowAddresses = AddressesPublic, []string{"10.1.0.0/16", "fd00::1"} },
		"secrets":  func(c *Config) { c.SigningSecrets = secrets(oldSecret, newSecret) },
		"body":     func(c *Config) { c.Body, c.ContentType = "x", "text/plain; charset=utf-8" },
		"JSON of values": func(c *Config) {
			c.Body = `{"a": {{ json .Payload.a }}, "b": "{{ .Payload.b }}", "c": {{ .Payload.c }}}`
		},
		"JSON, if":                     func(c *Config) { c.Body = `{{ if .Payload.a }}{"a": 1}{{ end }}` },
		"JSON of loops":                func(c *Config) { c.Body = `[{{ range .Payload.list }}{{ json . }},{{ end }}0]` },
		"JSON of the payload":          func(c *Config) { c.Body = `{{ json .Payload }}` },
		"no JSON, by its content type": func(c *Config) { c.Body, c.ContentType = "{{ .Payload.a }},", "text/csv" },
		"headers":                      func(c *Config) { c.Headers = map[string]string{"X-Api-Key": "k", "Idempotency-Key": "{{ .Event.ID }}"} },
		"limits":                       func(c *Config) { c.HostRateLimit = 0.1 },
	} {
		c := valid()
		change(&c)
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		deliverytest.Open(t, New, c)
	}
}

// marker stands for a possible secret.
var marker = "marker" + strings.Repeat("x", 20)

// mistakes are the mistakes after each change.
var mistakes = map[string]func(*Config){
	"url: missing: write where to send to":        func(c *Config) { c.URL = "" },
	"url: must be a URL such as":                  func(c *Config) { c.URL = "example.com/" + marker },
	"url: must begin with https:// or http://":    func(c *Config) { c.URL = "ftp://example.com/" + marker },
	"url: is not a URL: write":                    func(c *Config) { c.URL = "https://exa mple.com/" + marker },
	"url: is not a URL: write ":                   func(c *Config) { c.URL = "https://example.com/%zz" + marker },
	"url: has no host":                            func(c *Config) { c.URL = "https:///" + marker },
	"url: must not hold a user or password: use":  func(c *Config) { c.URL = "https://me:" + marker + "@example.com/" },
	"url: must not hold a user or password":       func(c *Config) { c.URL = "https://me:" + marker + "@example.com/{{ .Event.ID }}" },
	"url: the host is not complete before":        func(c *Config) { c.URL = "https://example.com{{ .Payload.path }}" },
	"url: the host is not complete before the":    func(c *Config) { c.URL = "https://{{ .Payload.host }}/hook" },
	"url: the host is not complete":               func(c *Config) { c.URL = "{{ .Payload.url }}" },
	`url: template "url", line 1: unclosed`:       func(c *Config) { c.URL = "https://example.com/{{ .Payload.x" },
	"dynamic_host: the host stands in url":        func(c *Config) { c.DynamicHost = true },
	`method: unknown word "GET": use POST, PUT`:   func(c *Config) { c.Method = "GET" },
	`addresses: unknown word "all": use any`:      func(c *Config) { c.Addresses = "all" },
	"format: must be payload":                     func(c *Config) { c.Format = "json" },
	"format: body is set too":                     func(c *Config) { c.Body, c.Format = "x", handlers.FormatCloudEventsBinary },
	"cloudevents_source: has no effect":           func(c *Config) { c.Source = "/x" },
	"content_type: works with body only":          func(c *Config) { c.ContentType = "text/plain" },
	"content_type: must be a media type":          func(c *Config) { c.Body, c.ContentType = "x", "text plain\r\n" },
	`body: template "body", line 1`:               func(c *Config) { c.Body = "{{" },
	"body: yields no JSON, whatever the event":    func(c *Config) { c.Body = `{"a": {{ json .Payload.a }},}` },
	"body: yields no JSON, whatever":              func(c *Config) { c.Body = `order {{ .Payload.a }}` },
	"body: yields no JSON":                        func(c *Config) { c.Body = `{"a": 1` },
	"id_prefix: must be at most 64 letters":       func(c *Config) { c.IDPrefix = "a.b" },
	"headers.X: holds a line end":                 func(c *Config) { c.Headers = map[string]string{"X": "a\r\nb"} },
	`headers.X: template "headers.X"`:             func(c *Config) { c.Headers = map[string]string{"X": "{{"} },
	"headers.a b: must be a header name":          func(c *Config) { c.Headers = map[string]string{"a b": "x"} },
	"headers.: must be a header name":             func(c *Config) { c.Headers = map[string]string{"": "x"} },
	"headers.authorization: is not set here: use": func(c *Config) { c.Headers = map[string]string{"authorization": "x"} },
	"headers.Content-Type: is not set here":       func(c *Config) { c.Headers = map[string]string{"Content-Type": "x"} },
	"headers.Webhook-Id: is set by notifyd":       func(c *Config) { c.Headers = map[string]string{"Webhook-Id": "x"} },
	"headers.Host: is set by notifyd":             func(c *Config) { c.Headers = map[string]string{"Host": "x"} },
	"headers.webhook_id: is set by notifyd":       func(c *Config) { c.Headers = map[string]string{"webhook_id": "x"} },
	"event_headers.0: must be a header name":      func(c *Config) { c.EventHeaders = []string{"a b"} },
	"event_headers.0: is set by notifyd":          func(c *Config) { c.EventHeaders = []string{"Transfer_Encoding"} },
	"event_headers.0: is of notifyd":              func(c *Config) { c.EventHeaders = []string{"Notifyd_Id"} },
	"event_headers.1: is of notifyd":              func(c *Config) { c.EventHeaders = []string{"X-A", "cookie"} },
	"event_headers.0: is not set here: use":       func(c *Config) { c.EventHeaders = []string{"Authorization"} },
	"event_headers.1: is named twice":             func(c *Config) { c.EventHeaders = []string{"X-A", "x_a"} },
	"event_headers.0: is named twice, or set by":  func(c *Config) { c.EventHeaders, c.Headers = []string{"X-A"}, map[string]string{"X_A": "x"} },
	"headers.Proxy-X: is set by notifyd":          func(c *Config) { c.Headers = map[string]string{"Proxy-X": "x"} },
	"signing_secrets.0: must be whsec_ and":       func(c *Config) { c.SigningSecrets = secrets(marker) },
	"signing_secrets.1: must be whsec_":           func(c *Config) { c.SigningSecrets = secrets(oldSecret, "whsec_"+marker+"!") },
	"signing_secrets.0: must be of 24 to 64":      func(c *Config) { c.SigningSecrets = secrets("whsec_c2hvcnQ=") },
	"signing_secrets.0: is empty":                 func(c *Config) { c.SigningSecrets = secrets("") },
	"signing_secrets.1: is there twice":           func(c *Config) { c.SigningSecrets = secrets(oldSecret, oldSecret) },
	"password: missing":                           func(c *Config) { c.Username = "u" },
	"username: missing":                           func(c *Config) { c.Password = handlers.NewSecret(marker) },
	"username: must not hold a colon":             func(c *Config) { c.Username, c.Password = "a:b", handlers.NewSecret(marker) },
	"bearer_token: username is set too": func(c *Config) {
		c.Username, c.Password, c.BearerToken = "u", handlers.NewSecret("p"), handlers.NewSecret(marker)
	},
	"bearer_token: must be printable": func(c *Config) { c.BearerToken = handlers.NewSecret(marker + "\n") },
	"bearer_token: would be sent to any host": func(c *Config) {
		c.URL, c.DynamicHost, c.BearerToken = "{{ .Payload.u }}", true, handlers.NewSecret(marker)
	},
	"username: would be sent": func(c *Config) {
		c.URL, c.DynamicHost, c.Username, c.Password = "{{ .Payload.u }}", true, "u", handlers.NewSecret(marker)
	},
	"tls.cert_file: would be sent": func(c *Config) {
		c.URL, c.DynamicHost, c.TLS = "{{ .Payload.u }}", true, handlers.TLS{CertFile: "c", KeyFile: "k"}
	},
	"tls.key_file: missing":           func(c *Config) { c.TLS.CertFile = "x" },
	"tls.ca_file: cannot be read":     func(c *Config) { c.TLS.CAFile = "/nowhere/ca.pem" },
	"proxy_url: must be such as":      func(c *Config) { c.ProxyURL = handlers.NewSecret("proxy:3128 " + marker) },
	"proxy_url: must be such as http": func(c *Config) { c.ProxyURL = handlers.NewSecret("ftp://" + marker + "@proxy") },
	"proxy_url: the proxy connects": func(c *Config) {
		c.Addresses, c.ProxyURL = AddressesPublic, handlers.NewSecret("http://"+marker+"@proxy")
	},
	"allow_addresses: has no effect": func(c *Config) { c.AllowAddresses = []string{"10.0.0.0/8"} },
	"allow_addresses.1: must be an address": func(c *Config) {
		c.Addresses, c.AllowAddresses = AddressesPublic, []string{"10.0.0.0/8", "10.0.0.0/33"}
	},
	"allow_addresses.0: must be an address":         func(c *Config) { c.Addresses, c.AllowAddresses = AddressesPublic, []string{"::ffff:10.0.0.0/104"} },
	"connect_timeout: must be positive":             func(c *Config) { c.ConnectTimeout = -1 },
	"tls_timeout: must be positive":                 func(c *Config) { c.TLSTimeout = -1 },
	"response_timeout: must be positive":            func(c *Config) { c.ResponseTimeout = -1 },
	"request_timeout: must be positive":             func(c *Config) { c.RequestTimeout = -1 },
	"response_timeout: of 15s must not be":          func(c *Config) { c.RequestTimeout = 10 * time.Second },
	"host_rate_limit: must be a number":             func(c *Config) { c.HostRateLimit = -1 },
	"host_rate_limit: must be a number of":          func(c *Config) { c.HostRateLimit = math.NaN() },
	"host_rate_limit: must be a number of requests": func(c *Config) { c.HostRateLimit = math.Inf(1) },
	"host_concurrency: works with dynamic":          func(c *Config) { c.HostConcurrency = 1 },
	"host_concurrency: must be 1 or more":           func(c *Config) { c.HostConcurrency = -1 },
}

func TestEveryMistakeHasPathAndCure(t *testing.T) {
	t.Parallel()
	for want, change := range mistakes {
		c := valid()
		change(&c)
		_, err := New(c)
		errs := field.Split(err)
		if !slices.ContainsFunc(errs, func(err error) bool { return strings.HasPrefix(err.Error(), want) && field.Path(err) != "" }) {
			t.Errorf("got %v\nwant %s", errs, want)
		}
		if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), marker) {
			t.Errorf("it tells what may be a secret: %v", err)
		}
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	c := Config{Method: "GET", Headers: map[string]string{"Host": "x"}, HostRateLimit: -1, SigningSecrets: secrets("x"), TLS: handlers.TLS{CertFile: "x"}}
	var paths []string
	for _, err := range field.Split(c.Validate()) {
		paths = append(paths, field.Path(err))
	}
	if want := []string{"url", "method", "headers.Host", "signing_secrets.0", "tls.key_file", "host_rate_limit"}; !slices.Equal(paths, want) {
		t.Errorf("got %v, want %v", paths, want)
	}
}

func TestNoSecretIsPrinted(t *testing.T) {
	t.Parallel()
	c := valid()
	c.BearerToken, c.Password, c.ProxyURL = handlers.NewSecret("marker-a"), handlers.NewSecret("marker-b"), handlers.NewSecret("http://u:marker-c@proxy")
	c.SigningSecrets = secrets("marker-d")
	if text := fmt.Sprintf("%v %+v %#v", c, c, c); strings.Contains(text, "marker") {
		t.Error(text)
	}
}
