package sqs

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	const url = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo"
	hidden := handlers.NewSecret("sesame-open")
	for name, c := range map[string]struct {
		change     func(*Config)
		path, text string
	}{
		"no queue":      {func(c *Config) { c.Queue = "" }, "queue", "missing"},
		"two":           {func(c *Config) { c.QueueURL = url }, "queue_url", "queue is set too"},
		"URL as name":   {func(c *Config) { c.Queue = url }, "queue", "queue_url"},
		"ARN":           {func(c *Config) { c.Queue = "arn:aws:sqs:eu-central-1:123456789012:orders" }, "queue", "is an ARN"},
		"name":          {func(c *Config) { c.Queue = "orders!" }, "queue", "letters"},
		"dot":           {func(c *Config) { c.Queue = "orders.std" }, "queue", "may end in .fifo"},
		"long":          {func(c *Config) { c.Queue = strings.Repeat("x", 76) + ".fifo" }, "queue", "1 to 80"},
		"owner":         {func(c *Config) { c.QueueOwner = "123" }, "queue_owner", "twelve digits"},
		"URL":           {func(c *Config) { c.Queue, c.QueueURL = "", "sqs/orders" }, "queue_url", "must be a URL"},
		"URL, no name":  {func(c *Config) { c.Queue, c.QueueURL = "", "https://sqs.eu-central-1.amazonaws.com/" }, "queue_url", "name of a queue"},
		"URL and owner": {func(c *Config) { c.Queue, c.QueueURL, c.QueueOwner = "", url, "123456789012" }, "queue_owner", "already"},
		"other region":  {func(c *Config) { c.Queue, c.QueueURL, c.Region = "", url, "eu-west-1" }, "region", "eu-central-1"},
		"region":        {func(c *Config) { c.Region = "Frankfurt" }, "region", "must be a region"},
		"endpoint":      {func(c *Config) { c.Endpoint = "localhost:4566" }, "endpoint", "must be a URL"},
		"endpoint with password": {
			func(c *Config) { c.Endpoint = "http://a:sesame-open@localhost" }, "endpoint", "password",
		},
		"no secret":   {func(c *Config) { c.AccessKeyID = "AK" }, "secret_access_key", "missing"},
		"no key":      {func(c *Config) { c.SecretAccessKey = hidden }, "access_key_id", "missing"},
		"token alone": {func(c *Config) { c.SessionToken = hidden }, "access_key_id", "missing"},
		"two sources": {func(c *Config) { c.AccessKeyID, c.SecretAccessKey, c.Profile = "AK", hidden, "x" }, "profile", "access_key_id is set"},
		"role":        {func(c *Config) { c.AssumeRoleARN = "notifyd" }, "assume_role_arn", "ARN of a role"},
		"external id": {func(c *Config) { c.ExternalID = hidden }, "external_id", "has no effect"},
		"session":     {func(c *Config) { c.RoleSessionName = "x" }, "role_session_name", ""},
		"timeout":     {func(c *Config) { c.RequestTimeout = -1 }, "request_timeout", "positive"},
		"group":       {func(c *Config) { c.GroupID = "{{ .Paylod.x }}" }, "group_id", "there is no .Paylod"},
		"format":      {func(c *Config) { c.Format = "xml" }, "format", "must be payload"},
		"source":      {func(c *Config) { c.Message = handlers.Message{Source: "/x"} }, "cloudevents_source", "has no effect"},
		"certificate": {func(c *Config) { c.TLS = &handlers.TLS{CertFile: "x"} }, "tls.key_file", "missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Queue: "orders"}
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

func TestQueueURL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]struct {
		region string
		fifo   bool
	}{
		"https://sqs.eu-central-1.amazonaws.com/123456789012/orders":          {"eu-central-1", false},
		"https://sqs-fips.us-gov-west-1.amazonaws.com/123456789012/a.fifo":    {"us-gov-west-1", true},
		"https://sqs.cn-north-1.amazonaws.com.cn/123456789012/orders":         {"cn-north-1", false},
		"https://sqs.eu-central-1.api.aws/123456789012/orders.fifo":           {"eu-central-1", true},
		"http://localhost:4566/000000000000/orders":                           {"", false},
		"http://sqs.us-east-1.localhost.localstack.cloud:4566/000000000000/a": {"", false},
	} {
		cfg := Config{QueueURL: url}
		if err := cfg.Validate(); err != nil || regionOf(url) != want.region || cfg.fifo() != want.fifo {
			t.Errorf("%s: %v, %s, %t", url, err, regionOf(url), cfg.fifo())
		}
	}
}
