package redis

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
	url := func(u string) func(*Config) { return func(c *Config) { c.URL = handlers.NewSecret(u) } }
	for name, c := range map[string]struct {
		change func(*Config)
		want   []string // "path: words"
	}{
		"nothing":        {func(c *Config) { *c = Config{} }, []string{"url: missing", "stream: missing"}},
		"both":           {func(c *Config) { c.Addresses = []string{"a"}; c.Channel = "x" }, []string{"addresses: url is set too", "channel: stream is set too"}},
		"not a URL":      {url("redis://u:" + key + "%zz@h"), []string{"url: is not a URL"}},
		"another scheme": {url("http://u:" + key + "@h"), []string{"url: must begin with", "password: would be readable"}},
		"no host":        {url("redis://"), []string{"url: names no host"}},
		"options":        {url("redis://h?db=1"), []string{"url: must not have options"}},
		"no number":      {url("redis://h/" + key), []string{"url: must end with the number"}},
		"two numbers":    {func(c *Config) { c.URL, c.Database = handlers.NewSecret("redis://h/1"), 2 }, []string{"database: the URL names another"}},
		"two users": {func(c *Config) {
			c.URL, c.Password = handlers.NewSecret("rediss://u:"+key+"@h"), handlers.NewSecret(key)
		}, []string{"username: the URL has"}},
		"TLS and not": {func(c *Config) { c.TLS = &handlers.TLS{} }, []string{"tls: the URL begins with redis://"}},
		"readable":    {url("redis://:" + key + "@redis.example.com"), []string{"password: would be readable"}},
		"no password": {func(c *Config) { c.Username = "ann" }, []string{"password: missing"}},
		"several":     {func(c *Config) { c.URL, c.Addresses = handlers.Secret{}, []string{"a", "b"} }, []string{"addresses: several need"}},
		"bad addresses": {func(c *Config) {
			c.URL, c.Cluster, c.Addresses = handlers.Secret{}, true, []string{"redis://a", "a,b", "a b", "a:0"}
		}, []string{"addresses.0: must be host:port alone", "addresses.1: must be one", "addresses.2: must be host", "addresses.3: must have a port"}},
		"cluster and URL": {func(c *Config) { c.Cluster, c.Database, c.WaitReplicas = true, 1, 1 }, []string{"url: is for one server", "database: a cluster has only", "wait_replicas: works with one"}},
		"cluster and sentinel": {func(c *Config) {
			c.URL, c.Addresses, c.Cluster, c.SentinelMaster = handlers.Secret{}, []string{"a"}, true, "m"
		}, []string{"sentinel_master: a cluster has no"}},
		"sentinel password": {func(c *Config) { c.SentinelUsername = "u" }, []string{"sentinel_master: missing", "sentinel_password: missing"}},
		"channel": {func(c *Config) {
			c.Stream, c.Channel, c.MaxLen, c.Deduplicate, c.Format = "", "c", 1, 1000, handlers.FormatCloudEventsBinary
		}, []string{"format: a channel's messages", "max_len: is for streams", "deduplicate: is for streams"}},
		"stream":   {func(c *Config) { c.RequireSubscribers, c.WaitTimeout = true, 1 }, []string{"require_subscribers: is for channels", "wait_timeout: has no effect", "wait_timeout: must be 1ms"}},
		"template": {func(c *Config) { c.Stream = "{{ .Nope" }, []string{"stream: "}},
		"field":    {func(c *Config) { c.PayloadField = "id" }, []string{"payload_field: is the name"}},
		"limits": {func(c *Config) {
			c.MaxLen, c.MaxMessageBytes, c.ReadTimeout, c.Database, c.WaitReplicas, c.Deduplicate = -1, 5, -1, -1, -1, 999
		}, []string{"database: must not", "deduplicate: must be 1000", "max_len: must be", "wait_replicas: must not", "max_message_bytes: must be", "read_timeout: must be"}},
		"format": {func(c *Config) { c.Format = "xml" }, []string{"format: must be"}},
		"tls":    {func(c *Config) { c.URL, c.TLS = handlers.NewSecret("rediss://h"), &handlers.TLS{CertFile: "x"} }, []string{"tls.key_file: missing"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{URL: handlers.NewSecret("redis://localhost"), Stream: "s"}
			c.change(&cfg)
			_, err := New(cfg)
			var got []string
			for _, e := range field.Split(err) {
				got = append(got, e.Error())
			}
			slices.Sort(got)
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

func TestEndpoints(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://localhost":                "[localhost:6379] '' '' 0 false",
		"rediss://u:p%40@h:7/3":            "[h:7] 'u' 'p@' 3 true",
		"redis://:p@[::1]":                 "[[::1]:6379] '' 'p' 0 false",
		"redis://127.0.0.1:6380/":          "[127.0.0.1:6380] '' '' 0 false",
		"rediss://default:x@h.example.com": "[h.example.com:6379] 'default' 'x' 0 true",
	} {
		e, err := Config{URL: handlers.NewSecret(url), Stream: "s"}.endpoint()
		got := fmt.Sprintf("%s '%s' '%s' %d %t", e.addresses, e.username, e.password.Reveal(), e.database, e.tls != nil)
		if err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", url, got, err, want)
		}
	}
	e, err := Config{Addresses: []string{"a", "b:1", "::1"}, SentinelMaster: "m"}.endpoint()
	if err != nil || !slices.Equal(e.addresses, []string{"a:26379", "b:1", "[::1]:26379"}) {
		t.Errorf("sentinels: %s, %v", e.addresses, err)
	}
}
