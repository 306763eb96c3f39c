package email

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

func valid() Config {
	return Config{
		Host: "smtp.example.com", From: "shop@example.com", To: List{"a@example.com"},
		Subject: "Hello", Text: "Hello",
	}
}

func TestValidConfigs(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"minimal":            func(*Config) {},
		"bcc alone":          func(c *Config) { c.To, c.Bcc = nil, List{"a@example.com"} },
		"templates":          func(c *Config) { c.From, c.To = "{{ .Payload.from }}", List{"{{ .Payload.to }}"} },
		"several in one":     func(c *Config) { c.To = List{"A <a@example.com>, b@example.com"} },
		"IPv6":               func(c *Config) { c.Host = "::1" },
		"password, loopback": func(c *Config) { c.Host, c.TLS, c.Username, c.Password = "::1", TLSNone, "u", handlers.NewSecret("p") },
		"scram without TLS": func(c *Config) {
			c.TLS, c.Auth, c.Username, c.Password = TLSNone, AuthSCRAMSHA256, "u", handlers.NewSecret("p")
		},
		"implicit on its own": func(c *Config) { c.TLS, c.Port = TLSImplicit, 465 },
	} {
		c := valid()
		change(&c)
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEveryMistakeHasPathAndCure(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		"host: missing: name the mail server":           func(c *Config) { c.Host = "" },
		"host: must be a name or an address alone":      func(c *Config) { c.Host = "smtp.example.com:25" },
		"host: must be a name or an address alone: put": func(c *Config) { c.Host = "unix:///run/smtp" },
		"port: must be 1 to 65535, not 70000":           func(c *Config) { c.Port = 70000 },
		"tls: port 465 speaks TLS from the first byte":  func(c *Config) { c.Port = 465 },
		`tls: unknown word "yes": use mandatory`:        func(c *Config) { c.TLS = "yes" },
		`auth: unknown word "ntlm": use auto`:           func(c *Config) { c.Auth, c.Username, c.Password = "ntlm", "u", handlers.NewSecret("p") },
		"auth: needs username and password":             func(c *Config) { c.Auth = AuthPlain },
		"auth: would send the password unencrypted": func(c *Config) {
			c.TLS, c.Auth, c.Username, c.Password = TLSNone, AuthPlain, "u", handlers.NewSecret("p")
		},
		"auth: would send the password unencrypted: set":        func(c *Config) { c.TLS, c.Username, c.Password = TLSNone, "u", handlers.NewSecret("p") },
		"token_command: set either token_command or token_file": func(c *Config) { c.Auth, c.Username = AuthXOAUTH2, "u" },
		"username: is empty: auth: xoauth2 needs":               func(c *Config) { c.Auth, c.TokenFile = AuthXOAUTH2, "t" },
		"password: has no effect with auth: xoauth2": func(c *Config) {
			c.Auth, c.Username, c.TokenFile, c.Password = AuthXOAUTH2, "u", "t", handlers.NewSecret("p")
		},
		"auth: must be xoauth2 for a token":                                     func(c *Config) { c.TokenFile = "t" },
		"token_lifetime: must be above 0":                                       func(c *Config) { c.TokenLifetime = 1 },
		"password: missing: username needs one":                                 func(c *Config) { c.Username = "u" },
		"username: missing: password needs one":                                 func(c *Config) { c.Password = handlers.NewSecret("p") },
		"ca_file: has no effect with tls: none":                                 func(c *Config) { c.TLS, c.CAFile = TLSNone, "x" },
		"server_name: has no effect with tls: none":                             func(c *Config) { c.TLS, c.ServerName = TLSNone, "x" },
		"helo: must be a host name":                                             func(c *Config) { c.HELO = "a\r\nRSET" },
		"message_id_domain: must be a domain":                                   func(c *Config) { c.MessageIDDomain = "a b>" },
		"from: missing: name the sender":                                        func(c *Config) { c.From = "" },
		"from: is not an e-mail address: write a@example.com":                   func(c *Config) { c.From = "shop" },
		"from: must be one address, not 2":                                      func(c *Config) { c.From = "a@example.com, b@example.com" },
		"to: missing: name a recipient":                                         func(c *Config) { c.To = nil },
		"to: is empty: name a recipient":                                        func(c *Config) { c.To = List{" "} },
		"to.1: is not an e-mail address":                                        func(c *Config) { c.To = List{"a@example.com", "b"} },
		"cc: holds a line end":                                                  func(c *Config) { c.Cc = List{"a@example.com,\nb@example.com"} },
		"subject: missing: write one":                                           func(c *Config) { c.Subject = "" },
		`subject: template "subject", line 1: unclosed action`:                  func(c *Config) { c.Subject = "{{ .Payload.x" },
		`html: template "html"`:                                                 func(c *Config) { c.HTML = "<a href='{{ .Payload.x }}" },
		"text: missing: write text or html":                                     func(c *Config) { c.Text = "" },
		"layout: names files of a folder: set templates":                        func(c *Config) { c.Layout = List{"base.html"} },
		"text: is not the name of a file in templates (mail) that ends in .txt": func(c *Config) { c.Templates = "mail" },
		"html: is not the name of a file in templates (mail)":                   func(c *Config) { c.Templates, c.HTML = "mail", "../a.html" },
		"layout: is not the name of a file":                                     func(c *Config) { c.Templates, c.HTML, c.Layout = "mail", "a.html", List{"/etc/base.html"} },
		"layout: has two files that end in .txt":                                func(c *Config) { c.Templates, c.Text, c.Layout = "mail", "a.txt", List{"b.txt", "c.txt"} },
		"layout: has a file that ends in .html, and the mail has no such body":  func(c *Config) { c.Templates, c.Text, c.Layout = "mail", "a.txt", List{"b.html"} },
		"templates: has no effect with TemplatesFS":                             func(c *Config) { c.Templates, c.TemplatesFS = "mail", fstest.MapFS{} },
		"default_language: is not a language":                                   func(c *Config) { c.Language, c.DefaultLanguage = "de", "no language" },
		"default_language: has no effect without language":                      func(c *Config) { c.DefaultLanguage = "de" },
		`language: template "language", line 1`:                                 func(c *Config) { c.Language = "{{" },
		`text: template "text", line 2: there is no template "footer"`:          func(c *Config) { c.Text = "a\n{{ template \"footer\" . }}" },
		`html: template "html", line 1: there is no template "footer"`:          func(c *Config) { c.HTML = `{{ template "footer" . }}` },
		"headers.Subject: is not set here: use subject":                         func(c *Config) { c.Headers = map[string]string{"Subject": "x"} },
		"headers.content-type: is set by notifyd":                               func(c *Config) { c.Headers = map[string]string{"content-type": "x"} },
		"headers.X\r\nBcc: must be a header name":                               func(c *Config) { c.Headers = map[string]string{"X\r\nBcc": "x"} },
		`headers.X-A: template "headers.X-A", line 1`:                           func(c *Config) { c.Headers = map[string]string{"X-A": "{{"} },
		"connections: must be 1 to 100, not 101":                                func(c *Config) { c.Connections = 101 },
		"connect_timeout: must be positive":                                     func(c *Config) { c.ConnectTimeout = -1 },
		"send_timeout: must be positive":                                        func(c *Config) { c.SendTimeout = -1 },
		`maybe_sent: unknown word "drop": use retry, accept`:                    func(c *Config) { c.MaybeSent = "drop" },
	} {
		c := valid()
		change(&c)
		errs := field.Split(c.Validate())
		if !slices.ContainsFunc(errs, func(err error) bool { return strings.HasPrefix(err.Error(), want) && field.Path(err) != "" }) {
			t.Errorf("got %v\nwant %s", errs, want)
		}
		if _, err := New(c); err == nil {
			t.Errorf("%s: New accepts it", want)
		}
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	var paths []string
	for _, err := range field.Split((Config{}).Validate()) {
		paths = append(paths, field.Path(err))
	}
	if want := []string{"host", "from", "to", "subject", "text"}; !slices.Equal(paths, want) {
		t.Errorf("got %v, want %v", paths, want)
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]List{
		"to: a@example.com":                  {"a@example.com"},
		"to: [a@example.com, b@example.com]": {"a@example.com", "b@example.com"},
		"to: '{{ .Payload.email }}'":         {"{{ .Payload.email }}"},
	} {
		var c Config
		if err := yaml.Unmarshal([]byte(text+"\npassword: hunter2\nsend_timeout: 5s\n"), &c); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if !slices.Equal(c.To, want) || c.SendTimeout != 5*time.Second || c.Password.Reveal() != "hunter2" {
			t.Errorf("%s: got %+v", text, c)
		}
		if out := fmt.Sprintf("%v %+v %#v", c, c, c); strings.Contains(out, "hunter2") {
			t.Errorf("the password shows: %s", out)
		}
	}
	for text, want := range map[string]List{`{"to":"a"}`: {"a"}, `{"to":["a","b"]}`: {"a", "b"}} {
		var c Config
		if err := json.Unmarshal([]byte(text), &c); err != nil || !slices.Equal(c.To, want) {
			t.Errorf("%s: %v, %v", text, c.To, err)
		}
	}
	if err := json.Unmarshal([]byte(`{"to":1}`), &Config{}); err == nil {
		t.Error("a number is not a list")
	}
	if err := yaml.Unmarshal([]byte("to: {a: b}"), &Config{}); err == nil {
		t.Error("a map is not a list")
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	for tls, port := range map[string]int{"": 587, TLSOpportunistic: 587, TLSImplicit: 465, TLSNone: 25} {
		c := valid()
		c.TLS = tls
		got := c.WithDefaults()
		if got.Port != port || got.Connections != 2 || got.MaybeSent != MaybeSentRetry || got.ServerName != "" {
			t.Errorf("%s: got %+v", tls, got)
		}
		if name := newPool(got, nil, "").tls().ServerName; name != c.Host {
			t.Errorf("%s: the certificate has to be of %q", tls, name)
		}
		got.ServerName = "mx.example.com"
		if name := newPool(got, nil, "").tls().ServerName; name != "mx.example.com" {
			t.Errorf("%s: the certificate has to be of %q", tls, name)
		}
	}
}
