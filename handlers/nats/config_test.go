package nats

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

// TestMistakes wants each mistake at its setting, with a cure, and no secret.
func TestMistakes(t *testing.T) {
	t.Parallel()
	const key = "s3cr3t"
	servers := func(all ...string) func(*Config) { return func(c *Config) { c.Servers = all } }
	remote := "nats://nats.example.com"
	for name, c := range map[string]struct {
		change func(*Config)
		want   []string // "path: words"
	}{
		"nothing":        {func(c *Config) { *c = Config{} }, []string{"servers: missing", "subject: missing"}},
		"servers":        {servers("h", "http://h", "nats://u:"+key+"@h", "nats://a,nats://b", "nats://", "nats://h/x", "nats://h:0"), []string{"servers.0: must be a URL", "servers.1: must begin", "servers.2: must not hold", "servers.3: must be", "servers.4: must be a URL", "servers.5: must be a URL", "servers.6: must have a port"}},
		"two logins":     {func(c *Config) { c.Token, c.CredentialsFile = handlers.NewSecret(key), "f" }, []string{"username: there are several"}},
		"no user":        {func(c *Config) { c.Password = handlers.NewSecret(key) }, []string{"username: missing"}},
		"no password":    {func(c *Config) { c.Username = "u" }, []string{"password: missing"}},
		"readable":       {func(c *Config) { c.Servers[0], c.Username, c.Password = remote, "u", handlers.NewSecret(key) }, []string{"password: would be readable"}},
		"readable token": {func(c *Config) { c.Servers[0], c.Token = remote, handlers.NewSecret(key) }, []string{"token: would be readable"}},
		"encrypted":      {func(c *Config) { c.Servers[0], c.Token, c.TLS = remote, handlers.NewSecret(key), &handlers.TLS{} }, nil},
		"encrypted 2":    {func(c *Config) { c.Servers[0], c.Token = "tls://nats.example.com", handlers.NewSecret(key) }, nil},
		"allowed":        {func(c *Config) { c.Servers[0], c.Token, c.AllowUnencrypted = remote, handlers.NewSecret(key), true }, nil},
		"no seed":        {func(c *Config) { c.NKeySeed = handlers.NewSecret("SU" + key) }, []string{"nkey_seed: is not the seed"}},
		"subject":        {func(c *Config) { c.Subject = "a.*" }, []string{"subject: must not have wildcards"}},
		"subject 2":      {func(c *Config) { c.Subject = "a..b" }, []string{"subject: must not have an empty part"}},
		"subject 3":      {func(c *Config) { c.Subject = "a b" }, []string{"subject: must not have blanks"}},
		"subject 4":      {func(c *Config) { c.Subject = "$JS.API.STREAM.PURGE.S" }, []string{"subject: must not begin"}},
		"subject 5":      {func(c *Config) { c.Subject = strings.Repeat("a", 5000) }, []string{"subject: has more"}},
		"template":       {func(c *Config) { c.Subject = "{{ .Nope" }, []string{"subject: "}},
		"mode":           {func(c *Config) { c.Mode = "kore" }, []string{"mode: unknown word"}},
		"core":           {func(c *Config) { c.Mode, c.Stream = ModeCore, "S" }, []string{"stream: has no effect"}},
		"stream":         {func(c *Config) { c.Stream = "a.b" }, []string{"stream: must be the name"}},
		"timeouts":       {func(c *Config) { c.ConnectTimeout, c.AckTimeout = -1, -1 }, []string{"ack_timeout: must be", "connect_timeout: must be"}},
		"format":         {func(c *Config) { c.Format = "xml" }, []string{"format: must be"}},
		"tls":            {func(c *Config) { c.TLS = &handlers.TLS{CertFile: "x"} }, []string{"tls.key_file: missing"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Servers: []string{"nats://localhost"}, Subject: "s"}
			c.change(&cfg)
			_, err := New(cfg)
			var got []string
			for _, e := range field.Split(err) {
				got = append(got, e.Error())
			}
			for _, want := range c.want {
				if !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, want) }) {
					t.Errorf("no mistake %q", want)
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("%d mistakes, want %d: %q", len(got), len(c.want), got)
			}
			if text := fmt.Sprintf("%v %+v", err, err); strings.Contains(text, key) {
				t.Errorf("a secret is in %s", text)
			}
		})
	}
}
