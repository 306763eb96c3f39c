package kafka

import (
	"cmp"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// The values of [SASL.Mechanism].
const (
	SASLPlain       = "plain"
	SASLSCRAM256    = "scram-sha-256"
	SASLSCRAM512    = "scram-sha-512"
	SASLOAuthBearer = "oauthbearer"
	SASLMSKIAM      = "aws-msk-iam"
)

// The values of [Config.Compression].
const (
	CompressionNone   = "none"
	CompressionSnappy = "snappy"
	CompressionLZ4    = "lz4"
	CompressionZstd   = "zstd"
	CompressionGzip   = "gzip"
)

// DefaultLane returns the recommended settings of a lane: one batch at a time keeps the
// order of the events, through an outage too. The timeout is for a handler that exceeds
// its own timeouts.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 1, Batch: 1000, Timeout: 2 * defaultDeliveryTimeout}
}

// ExactlyOnceLane is DefaultLane for a handler with ExactlyOnce: a transaction takes some round
// trips, however many events are in it.
func ExactlyOnceLane() delivery.Lane {
	return delivery.Lane{Concurrency: 1, Batch: 5000, Timeout: 2 * defaultDeliveryTimeout}
}

const (
	defaultPort = "9092"
	// defaultDeliveryTimeout is long enough for a broker to be restarted or
	// replaced by another: waiting in the producer costs no duplicates, a new
	// attempt may.
	defaultDeliveryTimeout = 30 * time.Second
	// maxDeliveryTimeout is below the longest transaction that brokers allow
	// (transaction.max.timeout.ms, 15 minutes by default).
	maxDeliveryTimeout = 10 * time.Minute
	// defaultMaxMessageBytes is a little below the message.max.bytes of a broker
	// that sets none, 1048588, and the convention of clients.
	defaultMaxMessageBytes = 1_000_012
	// limitMaxMessageBytes is socket.request.max.bytes of a broker that sets none.
	limitMaxMessageBytes = 100 << 20
	minMaxMessageBytes   = 1024
	defaultClientID      = "notifyd"
	defaultTxnPrefix     = "notifyd"
	defaultPositions     = "notifyd-positions"
)

// Config names the topic of events, and the brokers. Fields of the kind "template"
// are templates over the event: .Event, .Payload and .Headers.
type Config struct {
	// Brokers to query for the cluster, as `host:port`; the port is 9092 by
	// default. One that answers is enough.
	Brokers []string `json:"brokers" yaml:"brokers" kind:"list of addresses" unset:"required"`

	// Topic.
	Topic string `json:"topic" yaml:"topic" kind:"template" unset:"required"`

	// Key of the record. Records with the same key go to the same partition, by the
	// hash of the Java client. An empty key means no key.
	Key string `json:"key,omitempty" yaml:"key,omitempty" kind:"template" unset:"the event's aggregate id"`

	// Number of the partition, from 0, such as
	// `{{ get .Headers "partition" | default "" }}`. An empty result leaves the
	// choice to the key. An event whose partition the topic does not have is
	// refused.
	Partition string `json:"partition,omitempty" yaml:"partition,omitempty" kind:"template" unset:"by the key"`

	// An event whose payload is JSON `null` becomes a tombstone: a record with its
	// key and without a value, for compacted topics.
	//
	// The event needs a key.
	Tombstones bool `json:"tombstones,omitempty" yaml:"tombstones,omitempty"`

	handlers.Message

	// Connect with TLS; `tls: {}` trusts the system's certificates.
	TLS *handlers.TLS `json:"tls,omitempty" yaml:"tls,omitempty" unset:"no TLS"`

	// Credentials, for brokers that require them.
	SASL *SASL `json:"sasl,omitempty" yaml:"sasl,omitempty"`

	// The payloads have schemas: the value begins with the id of the schema, as
	// deserializers of Confluent and others expect. Not with
	// `format: cloudevents_structured`.
	SchemaRegistry *SchemaRegistry `json:"schema_registry,omitempty" yaml:"schema_registry,omitempty"`

	// Name in the brokers' logs, metrics and quotas.
	//
	// The default is "notifyd".
	ClientID string `json:"client_id,omitempty" yaml:"client_id,omitempty"`

	// Compression of the batches.
	//
	// The default is "none".
	Compression string `json:"compression,omitempty" yaml:"compression,omitempty" enum:"none,snappy,lz4,zstd,gzip"`

	// Largest record, before compression, and largest batch of them; not above the
	// topic's `max.message.bytes`.
	//
	// The default is 1000012.
	MaxMessageBytes int `json:"max_message_bytes,omitempty" yaml:"max_message_bytes,omitempty" kind:"1024 to 104857600"`

	// Longest time for one batch, retries included.
	//
	// The default is 30s.
	DeliveryTimeout time.Duration `json:"delivery_timeout,omitempty" yaml:"delivery_timeout,omitempty" kind:"duration, at most '10m'"`

	// Brokers may create a missing topic, if they do so on demand.
	//
	// The brokers' setting is auto.create.topics.enable.
	AllowAutoTopicCreation bool `json:"allow_auto_topic_creation,omitempty" yaml:"allow_auto_topic_creation,omitempty"`

	// Write each batch in a transaction: consumers that `read_committed` see all of
	// it or nothing.
	Transactional bool `json:"transactional,omitempty" yaml:"transactional,omitempty"`

	// With `transactional`: prefix of the transactional ids, for ACLs; the rest is
	// random. With `exactly_once`: the id itself, unique in the Kafka cluster, by
	// default `notifyd/<database>/<schema>/<destination>/0`; another id begins
	// without the position in Kafka. Other shards have their number behind it, as
	// in `/1`.
	//
	// The random rest keeps relays from fencing each other. [Config.PositionID]
	// returns the id with ExactlyOnce.
	TransactionalID string `json:"transactional_id,omitempty" yaml:"transactional_id,omitempty" unset:"'notifyd'; with 'exactly_once', made of names"`

	// Write each batch in a transaction with the position: consumers that
	// `read_committed` get each event exactly once, whatever happens to relays.
	// Only in a stream, with `concurrency: 1`, and not with `order: none`.
	ExactlyOnce bool `json:"exactly_once,omitempty" yaml:"exactly_once,omitempty"`

	// With `exactly_once`: the compacted topic that keeps the positions. It is made
	// where it is missing.
	PositionsTopic string `json:"positions_topic,omitempty" yaml:"positions_topic,omitempty" kind:"topic" unset:"'notifyd-positions'"`
}

// SASL says how to authenticate.
type SASL struct {
	// How to authenticate. `aws-msk-iam` has the identity of the AWS SDK.
	Mechanism string `json:"mechanism" yaml:"mechanism" enum:"plain,scram-sha-256,scram-sha-512,oauthbearer,aws-msk-iam" unset:"required"`

	// Name, for `plain` and `scram`.
	Username string `json:"username,omitempty" yaml:"username,omitempty"`

	// Password, for `plain` and `scram`.
	Password handlers.Secret `json:"password,omitzero" yaml:"password,omitempty"`

	// Token, for `oauthbearer`.
	Token handlers.Secret `json:"token,omitzero" yaml:"token,omitempty"`

	// File with the token, in place of `token`. It is read at each authentication,
	// so it may change.
	TokenFile string `json:"token_file,omitempty" yaml:"token_file,omitempty" kind:"path"`

	// Program with its arguments that prints the token on one line, in place of
	// `token`. It is run without a shell, for an authentication, and has 8 s.
	TokenCommand []string `json:"token_command,omitempty" yaml:"token_command,omitempty" kind:"list of strings"`

	// How long the output of `token_command` is used: less than the token is valid.
	TokenLifetime time.Duration `json:"token_lifetime,omitempty" yaml:"token_lifetime,omitempty" unset:"'1m'"`

	// Client credentials for an authorization server that gives the token, in place
	// of `token`.
	OAuth *OAuth `json:"oauth,omitempty" yaml:"oauth,omitempty"`

	// Send a readable password (`plain`) or token without TLS to other machines.
	AllowUnencrypted bool `json:"allow_unencrypted,omitempty" yaml:"allow_unencrypted,omitempty"`
}

// OAuth are the client credentials of a program, for an authorization server: RFC 6749, section 4.4.
type OAuth struct {
	// Where the authorization server gives tokens: `https://`, or `http://` on this
	// machine.
	TokenURL string `json:"token_url" yaml:"token_url" unset:"required"`

	// Name of the client.
	ClientID string `json:"client_id" yaml:"client_id" unset:"required"`

	// Secret of the client.
	ClientSecret handlers.Secret `json:"client_secret" yaml:"client_secret" unset:"required"`

	// Rights of the token.
	Scopes []string `json:"scopes,omitempty" yaml:"scopes,omitempty" kind:"list of strings"`
}

// WithDefaults returns a copy with every default filled in.
func (c Config) WithDefaults() Config {
	c.Message = message.WithDefaults(c.Message)
	c.SchemaRegistry = c.SchemaRegistry.withDefaults()
	c.ClientID = cmp.Or(c.ClientID, defaultClientID)
	c.Compression = cmp.Or(c.Compression, CompressionNone)
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, defaultMaxMessageBytes)
	c.DeliveryTimeout = cmp.Or(c.DeliveryTimeout, defaultDeliveryTimeout)
	if c.ExactlyOnce {
		c.PositionsTopic = cmp.Or(c.PositionsTopic, defaultPositions)
	} else if c.Transactional {
		c.TransactionalID = cmp.Or(c.TransactionalID, defaultTxnPrefix)
	}
	return c
}

// PositionID returns the transactional id with ExactlyOnce, which is also the key of the position. name is the
// stream's name for a shard, and shard its number. The first shard has TransactionalID, the others append their number
// to it. Without TransactionalID the id is made of name.
func (c Config) PositionID(name string, shard int) string {
	if c.TransactionalID != "" && shard > 0 {
		return fmt.Sprintf("%s/%d", c.TransactionalID, shard)
	}
	return cmp.Or(c.TransactionalID, defaultTxnPrefix+"/"+name)
}

// Within returns how long a batch may take before the handler gives up on it: the delivery
// timeout.
func (c Config) Within() time.Duration { return c.WithDefaults().DeliveryTimeout }
