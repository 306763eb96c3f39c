package redis

import (
	"errors"
	"slices"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/hostport"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
)

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its
// cure. It reads no files: [New] does.
func (c Config) Validate() error {
	_, err := parseTemplate(c)
	return errors.Join(c.where(), err, message.Validate(c.Message), c.form(), c.limits())
}

func (c Config) where() error {
	e, err := c.endpoint()
	errs := []error{err, tlsconf.Check(c.TLS)}
	wrong := func(path, text string) { errs = append(errs, field.Errorf(path, "%s", text)) }

	if e.username != "" && e.password.IsZero() {
		wrong("password", "missing: username needs one, such as ${env:REDIS_PASSWORD}")
	}

	password := !e.password.IsZero() || !c.SentinelPassword.IsZero()
	isOpen := password && e.tls == nil && !c.AllowUnencrypted
	if isOpen && slices.ContainsFunc(e.addresses, hostport.IsRemote) {
		wrong("password", "would be readable on the way: set tls: {} (or rediss:// in the URL), or allow_unencrypted: true")
	}

	if c.SentinelMaster == "" && (c.SentinelUsername != "" || !c.SentinelPassword.IsZero()) {
		wrong("sentinel_master", "missing: sentinel_username and sentinel_password are for sentinels")
	}

	if c.SentinelUsername != "" && c.SentinelPassword.IsZero() {
		wrong("sentinel_password", "missing: sentinel_username needs one")
	}

	if c.Cluster && c.SentinelMaster != "" {
		wrong("sentinel_master", "a cluster has no sentinels: take one of them out")
	}

	if !c.URL.IsZero() && (c.Cluster || c.SentinelMaster != "") {
		wrong("url", "is for one server: name the nodes or sentinels in addresses")
	}

	if e.database < 0 {
		wrong("database", "must not be negative")
	}

	if c.Cluster && e.database != 0 {
		wrong("database", "a cluster has only the database 0: take it out")
	}

	return errors.Join(errs...)
}

// form checks the form of an event, and its stream or channel.
func (c Config) form() error {
	var errs []error
	wrong := func(path, format string, args ...any) { errs = append(errs, field.Errorf(path, format, args...)) }

	if c.Stream == "" && c.Channel == "" {
		wrong("stream", "missing: name one, such as orders, or {{ .Event.AggregateType }}")
	}

	if c.Stream != "" && c.Channel != "" {
		wrong("channel", "stream is set too: take one of them out")
	}

	if c.Channel != "" {
		if c.Format == handlers.FormatCloudEventsBinary {
			wrong("format", "a channel's messages have no headers: use %s or %s",
				handlers.FormatPayload, handlers.FormatCloudEventsStructured)
		}
		for path, set := range map[string]bool{
			"payload_field": c.PayloadField != "",
			"max_len":       c.MaxLen != 0,
			"deduplicate":   c.Deduplicate != 0,
			"wait_replicas": c.WaitReplicas != 0,
		} {
			if set {
				wrong(path, "is for streams: take it out")
			}
		}
	}

	taken := []string{
		"id", "type", "time", "aggregate_type", "aggregate_id", fieldContentType,
		"datacontenttype", "specversion", "source", "subject",
	}
	if slices.Contains(taken, c.PayloadField) {
		wrong("payload_field", "is the name of another field: take payload, data or body")
	}

	if c.RequireSubscribers && c.Channel == "" {
		wrong("require_subscribers", "is for channels: take it out")
	}

	if c.RequireSubscribers && c.Cluster {
		wrong("require_subscribers", "a cluster counts the subscribers of one node only: take it out")
	}

	if c.WaitReplicas != 0 && c.Cluster {
		wrong("wait_replicas", "works with one server or with sentinels: take it out, and set min-replicas-to-write on the servers")
	}

	if c.WaitTimeout != 0 && c.WaitReplicas == 0 {
		wrong("wait_timeout", "has no effect without wait_replicas: take it out")
	}

	return errors.Join(errs...)
}

func (c Config) limits() error {
	errs := []error{
		field.Between("max_message_bytes", c.MaxMessageBytes, minMaxMessageBytes, defaultMaxMessageBytes),
		field.Between("deduplicate", c.Deduplicate, minDeduplicate, maxDeduplicate),
		field.Timeout("connect_timeout", c.ConnectTimeout, maxTimeout, defaultConnectTimeout),
		field.Timeout("write_timeout", c.WriteTimeout, maxTimeout, defaultWriteTimeout),
		field.Timeout("read_timeout", c.ReadTimeout, maxTimeout, defaultReadTimeout),
		field.Timeout("wait_timeout", c.WaitTimeout, maxTimeout, defaultWaitTimeout),
	}
	wrong := func(path, text string) { errs = append(errs, field.Errorf(path, "%s", text)) }

	if c.MaxLen < 0 {
		wrong("max_len", "must be positive, or 0 to keep all entries")
	}

	if c.WaitReplicas < 0 {
		wrong("wait_replicas", "must not be negative")
	}

	if c.WaitTimeout > 0 && c.WaitTimeout < time.Millisecond {
		wrong("wait_timeout", "must be 1ms at least: Redis counts in milliseconds")
	}

	return errors.Join(errs...)
}
