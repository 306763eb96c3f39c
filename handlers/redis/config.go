package redis

import (
	"cmp"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

const (
	defaultPort         = "6379"
	defaultSentinelPort = "26379"
	// defaultPayloadField is the field of a stream entry with the payload.
	defaultPayloadField = "payload"
	// The default timeouts are for a server in the same region. One that saves
	// or fails over pauses for longer now and then, which costs no attempt.
	defaultConnectTimeout = 5 * time.Second
	defaultWriteTimeout   = 5 * time.Second
	defaultReadTimeout    = 5 * time.Second
	defaultWaitTimeout    = time.Second
	maxTimeout            = 10 * time.Minute
	// defaultMaxMessageBytes is proto-max-bulk-len of a server that sets none,
	// the longest text that it takes.
	defaultMaxMessageBytes = 512 << 20
	minMaxMessageBytes     = 1024
	minDeduplicate         = 1000
	maxDeduplicate         = 10_000_000
)

// DefaultLane returns the recommended settings of a lane: one batch at a time keeps the
// order of the events, through an outage too. The timeout is for a handler that exceeds
// its own timeouts.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 1, Batch: 1000, Timeout: time.Minute}
}

// Config names the stream or channel of events, and the Redis server. Fields
// of the kind "template" are templates over the event: .Event, .Payload and
// .Headers.
type Config struct {
	// One server: `redis://user:password@host:6379/0`, or `rediss://` for TLS.
	URL handlers.Secret `json:"url,omitzero" yaml:"url,omitempty" unset:"'url' or 'addresses' is required"`

	// One server, or some nodes of a cluster, or the sentinels, as `host:port`; the
	// port is 6379 by default, 26379 for sentinels.
	Addresses []string `json:"addresses,omitempty" yaml:"addresses,omitempty" kind:"list of addresses"`

	// Name under which the sentinels know the server.
	SentinelMaster string `json:"sentinel_master,omitempty" yaml:"sentinel_master,omitempty" unset:"no sentinels"`

	// User for the sentinels themselves.
	SentinelUsername string `json:"sentinel_username,omitempty" yaml:"sentinel_username,omitempty"`

	// Password for the sentinels themselves.
	SentinelPassword handlers.Secret `json:"sentinel_password,omitzero" yaml:"sentinel_password,omitempty"`

	// The addresses are nodes of a Redis Cluster.
	Cluster bool `json:"cluster,omitempty" yaml:"cluster,omitempty"`

	// User; a password alone is enough.
	Username string `json:"username,omitempty" yaml:"username,omitempty" unset:"the user 'default'"`

	// Password of the user.
	Password handlers.Secret `json:"password,omitzero" yaml:"password,omitempty"`

	// Send a password without TLS to other machines.
	AllowUnencrypted bool `json:"allow_unencrypted,omitempty" yaml:"allow_unencrypted,omitempty"`

	// Number of the database; a cluster has only 0.
	Database int `json:"database,omitempty" yaml:"database,omitempty" kind:"number, at least 0"`

	// Connect with TLS; `tls: {}` trusts the system's certificates. Not with
	// `redis://`.
	TLS *handlers.TLS `json:"tls,omitempty" yaml:"tls,omitempty" unset:"TLS only with 'rediss://'"`

	// Key of the stream that events are added to, with `XADD`.
	Stream string `json:"stream,omitempty" yaml:"stream,omitempty" kind:"template" unset:"'stream' or 'channel' is required"`

	// Channel that events are published to, with `PUBLISH`. Redis does not store
	// them: only current subscribers receive them.
	Channel string `json:"channel,omitempty" yaml:"channel,omitempty" kind:"template"`

	handlers.Message

	// Field of a stream's entry that holds the body.
	PayloadField string `json:"payload_field,omitempty" yaml:"payload_field,omitempty" unset:"'payload'"`

	// Approximate number of entries that the stream keeps; older ones are dropped,
	// read or not.
	MaxLen int64 `json:"max_len,omitempty" yaml:"max_len,omitempty" kind:"number, at least 0" unset:"0: all"`

	// Newest events of a stream, at least, whose copies are not added. Their ids
	// are kept in sets next to the stream.
	//
	// A copy counts as delivered.
	Deduplicate int `json:"deduplicate,omitempty" yaml:"deduplicate,omitempty" kind:"1000 to 10000000" unset:"0: none"`

	// Replicas that must have an event before it is delivered (`WAIT`). Not with a
	// cluster or a channel.
	//
	// The primary is not counted.
	WaitReplicas int `json:"wait_replicas,omitempty" yaml:"wait_replicas,omitempty" kind:"number, at least 0"`

	// Longest wait for `wait_replicas`.
	WaitTimeout time.Duration `json:"wait_timeout,omitempty" yaml:"wait_timeout,omitempty" kind:"duration, '1ms' to '10m'" unset:"'1s'"`

	// With `channel`: an event that no subscriber received does not count as
	// delivered. Not with a cluster, which does not count subscribers.
	RequireSubscribers bool `json:"require_subscribers,omitempty" yaml:"require_subscribers,omitempty"`

	// Largest event; not above the server's `proto-max-bulk-len`.
	//
	// The default is 536870912.
	MaxMessageBytes int `json:"max_message_bytes,omitempty" yaml:"max_message_bytes,omitempty" kind:"1024 to 536870912"`

	// Longest time for connecting: TCP and TLS.
	//
	// The default is 5s.
	ConnectTimeout time.Duration `json:"connect_timeout,omitempty" yaml:"connect_timeout,omitempty" kind:"duration, at most '10m'"`

	// Longest time for sending a batch.
	//
	// The default is 5s.
	WriteTimeout time.Duration `json:"write_timeout,omitempty" yaml:"write_timeout,omitempty" kind:"duration, at most '10m'"`

	// Longest wait for the answers to a batch.
	//
	// The default is 5s.
	ReadTimeout time.Duration `json:"read_timeout,omitempty" yaml:"read_timeout,omitempty" kind:"duration, at most '10m'"`
}

// WithDefaults returns a copy with every default filled in.
func (c Config) WithDefaults() Config {
	c.Message = message.WithDefaults(c.Message)
	if c.Stream != "" {
		c.PayloadField = cmp.Or(c.PayloadField, defaultPayloadField)
	}
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, defaultMaxMessageBytes)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, defaultConnectTimeout)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, defaultWriteTimeout)
	c.ReadTimeout = cmp.Or(c.ReadTimeout, defaultReadTimeout)
	if c.WaitReplicas != 0 {
		c.WaitTimeout = cmp.Or(c.WaitTimeout, defaultWaitTimeout)
	}
	return c
}

// Within returns how long a batch may take before the handler gives up on it: all timeouts
// together, WaitTimeout only with WaitReplicas.
func (c Config) Within() time.Duration {
	c = c.WithDefaults()
	return c.ConnectTimeout + c.WriteTimeout + c.ReadTimeout + c.waitTimeout()
}

// waitTimeout is the addition of WAIT to the wait for answers.
func (c Config) waitTimeout() time.Duration {
	if c.WaitReplicas == 0 {
		return 0
	}
	return c.WaitTimeout
}
