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
// marked "template" are templates over the event: .Event, .Payload and
// .Headers.
type Config struct {
	// URL is the address of one server: redis://user:password@host:6379/0, or rediss://
	// for TLS. Either URL or Addresses is required. [handlers.NewSecret] makes the URL.
	URL handlers.Secret `json:"url,omitzero" yaml:"url,omitempty" jsonschema_description:"One server: 'redis://user:password@host:6379/0', or 'rediss://' for TLS." unset:"'url' or 'addresses' is required"`
	// Addresses are host or host:port: one server, or some nodes of a Cluster, or
	// the Sentinels. The default port is 6379, for Sentinels 26379.
	Addresses []string `json:"addresses,omitempty" yaml:"addresses,omitempty" jsonschema_description:"One server, or some nodes of a cluster, or the sentinels, as 'host:port'; the port is 6379 by default, 26379 for sentinels." kind:"list of addresses"`
	// SentinelMaster is the name under which the Sentinels at Addresses know the
	// server. "" is without Sentinels.
	SentinelMaster string `json:"sentinel_master,omitempty" yaml:"sentinel_master,omitempty" jsonschema_description:"Name under which the sentinels know the server." unset:"no sentinels"`
	// SentinelUsername and SentinelPassword are for the Sentinels themselves.
	// [handlers.NewSecret] makes the SentinelPassword.
	SentinelUsername string          `json:"sentinel_username,omitempty" yaml:"sentinel_username,omitempty" jsonschema_description:"User for the sentinels themselves."`
	SentinelPassword handlers.Secret `json:"sentinel_password,omitzero" yaml:"sentinel_password,omitempty" jsonschema_description:"Password for the sentinels themselves."`
	// Cluster is true if Addresses are nodes of a Redis Cluster.
	Cluster bool `json:"cluster,omitempty" yaml:"cluster,omitempty" jsonschema_description:"The addresses are nodes of a Redis Cluster."`
	// Username and Password authenticate the ACL user; the default user is
	// "default". [handlers.NewSecret] makes the Password.
	Username string          `json:"username,omitempty" yaml:"username,omitempty" jsonschema_description:"User; a password alone is enough." unset:"the user 'default'"`
	Password handlers.Secret `json:"password,omitzero" yaml:"password,omitempty" jsonschema_description:"Password of the user."`
	// AllowUnencrypted sends a password to another machine without TLS.
	AllowUnencrypted bool `json:"allow_unencrypted,omitempty" yaml:"allow_unencrypted,omitempty" jsonschema_description:"Send a password without TLS to other machines."`
	// Database is the number of the database; a Cluster has only 0, the default.
	Database int `json:"database,omitempty" yaml:"database,omitempty" jsonschema_description:"Number of the database; a cluster has only 0." kind:"number, at least 0"`
	// TLS makes connections with TLS; an empty one trusts the system's
	// authorities. Nil is without TLS, but for a URL with rediss://.
	TLS *handlers.TLS `json:"tls,omitempty" yaml:"tls,omitempty" jsonschema_description:"Connect with TLS; 'tls: {}' trusts the system's certificates. Not with 'redis://'." unset:"TLS only with 'rediss://'"`

	// Stream is the key of the stream that events are added to (template).
	// Either Stream or Channel is required.
	Stream string `json:"stream,omitempty" yaml:"stream,omitempty" jsonschema_description:"Key of the stream that events are added to, with 'XADD'." kind:"template" unset:"'stream' or 'channel' is required"`
	// Channel is the channel that events are published to (template). Redis keeps
	// none of them: a consumer that does not listen at that moment never gets them.
	Channel string `json:"channel,omitempty" yaml:"channel,omitempty" jsonschema_description:"Channel that events are published to, with 'PUBLISH'. Redis does not store them: only current subscribers receive them." kind:"template"`
	handlers.Message
	// PayloadField is the field of a stream's entry that holds the body; the
	// default is "payload".
	PayloadField string `json:"payload_field,omitempty" yaml:"payload_field,omitempty" jsonschema_description:"Field of a stream's entry that holds the body." unset:"'payload'"`
	// MaxLen has the stream keep about this many entries, the newest ones, whether
	// or not a consumer has read the others. 0 keeps all.
	MaxLen int64 `json:"max_len,omitempty" yaml:"max_len,omitempty" jsonschema_description:"Approximate number of entries that the stream keeps; older ones are dropped, read or not." kind:"number, at least 0" unset:"0: all"`
	// Deduplicate is how many of the newest events of a stream, at least, are
	// remembered next to the stream, in the same Redis. A copy of one of these
	// events is not added, and counts as delivered. 1000 to 10,000,000; 0, the
	// default, remembers none.
	Deduplicate int `json:"deduplicate,omitempty" yaml:"deduplicate,omitempty" jsonschema_description:"Newest events of a stream, at least, whose copies are not added. Their ids are kept in sets next to the stream." kind:"1000 to 10000000" unset:"0: none"`
	// WaitReplicas is how many replicas must have an event, in addition to the
	// primary, before the event counts as delivered. The default is 0.
	WaitReplicas int `json:"wait_replicas,omitempty" yaml:"wait_replicas,omitempty" jsonschema_description:"Replicas that must have an event before it is delivered ('WAIT'). Not with a cluster or a channel." kind:"number, at least 0"`
	// WaitTimeout bounds the wait for the replicas; the default is 1s.
	WaitTimeout time.Duration `json:"wait_timeout,omitempty" yaml:"wait_timeout,omitempty" jsonschema_description:"Longest wait for 'wait_replicas'." kind:"duration, '1ms' to '10m'" unset:"'1s'"`
	// RequireSubscribers makes an event without a subscriber a failure.
	RequireSubscribers bool `json:"require_subscribers,omitempty" yaml:"require_subscribers,omitempty" jsonschema_description:"With 'channel': an event that no subscriber received does not count as delivered. Not with a cluster, which does not count subscribers."`
	// MaxMessageBytes is the largest event, fields and all; the default is
	// 536870912. It should not be above the server's proto-max-bulk-len.
	MaxMessageBytes int `json:"max_message_bytes,omitempty" yaml:"max_message_bytes,omitempty" jsonschema_description:"Largest event; not above the server's 'proto-max-bulk-len'." kind:"1024 to 536870912"`

	// ConnectTimeout bounds TCP and TLS, WriteTimeout the sending of a batch, and
	// ReadTimeout the wait for its answers. The default of each is 5s.
	ConnectTimeout time.Duration `json:"connect_timeout,omitempty" yaml:"connect_timeout,omitempty" jsonschema_description:"Longest time for connecting: TCP and TLS." kind:"duration, at most '10m'"`
	WriteTimeout   time.Duration `json:"write_timeout,omitempty" yaml:"write_timeout,omitempty" jsonschema_description:"Longest time for sending a batch." kind:"duration, at most '10m'"`
	ReadTimeout    time.Duration `json:"read_timeout,omitempty" yaml:"read_timeout,omitempty" jsonschema_description:"Longest wait for the answers to a batch." kind:"duration, at most '10m'"`
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
