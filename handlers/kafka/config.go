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

// Config names the topic of events, and the brokers. Fields marked "template"
// are templates over the event: .Event, .Payload and .Headers.
type Config struct {
	// Brokers are asked for the cluster, as host or host:port; the port is 9092 by
	// default. One that answers is enough. Required.
	Brokers []string `json:"brokers" yaml:"brokers" jsonschema_description:"Brokers to query for the cluster, as 'host:port'; the port is 9092 by default. One that answers is enough." kind:"list of addresses" unset:"required"`
	// Topic is the topic (template). Required.
	Topic string `json:"topic" yaml:"topic" jsonschema_description:"Topic." kind:"template" unset:"required"`
	// Key is the record's key (template); the default is the event's aggregate id.
	// Records with the same key go to the same partition, by the hash of the Java
	// client. With an empty result the record has no key and goes to any partition.
	Key string `json:"key,omitempty" yaml:"key,omitempty" jsonschema_description:"Key of the record. Records with the same key go to the same partition, by the hash of the Java client. An empty key means no key." kind:"template" unset:"the event's aggregate id"`
	// Partition is the number of the partition (template), from 0; with an empty result the key decides. An event whose
	// partition the topic does not have is refused.
	Partition string `json:"partition,omitempty" yaml:"partition,omitempty" jsonschema_description:"Number of the partition, from 0, such as '{{ get .Headers \"partition\" | default \"\" }}'. An empty result leaves the choice to the key. An event whose partition the topic does not have is refused." kind:"template" unset:"by the key"`
	// Tombstones turns an event whose payload is JSON null into a record without a value, which deletes its key in a
	// compacted topic. The event needs a key.
	Tombstones bool `json:"tombstones,omitempty" yaml:"tombstones,omitempty" jsonschema_description:"An event whose payload is JSON 'null' becomes a tombstone: a record with its key and without a value, for compacted topics."`
	handlers.Message

	// TLS makes connections with TLS; an empty one trusts the system's
	// authorities. Nil is without TLS.
	TLS *handlers.TLS `json:"tls,omitempty" yaml:"tls,omitempty" jsonschema_description:"Connect with TLS; 'tls: {}' trusts the system's certificates." unset:"no TLS"`
	// SASL holds the credentials; nil is without.
	SASL *SASL `json:"sasl,omitempty" yaml:"sasl,omitempty" jsonschema_description:"Credentials, for brokers that require them."`
	// SchemaRegistry has the schemas of the payloads; nil is without.
	SchemaRegistry *SchemaRegistry `json:"schema_registry,omitempty" yaml:"schema_registry,omitempty" jsonschema_description:"The payloads have schemas: the value begins with the id of the schema, as deserializers of Confluent and others expect. Not with 'format: cloudevents_structured'."`
	// ClientID is shown in the brokers' logs, metrics and quotas; the default is
	// "notifyd".
	ClientID string `json:"client_id,omitempty" yaml:"client_id,omitempty" jsonschema_description:"Name in the brokers' logs, metrics and quotas."`

	// Compression is "none" (the default), snappy, lz4, zstd or gzip.
	Compression string `json:"compression,omitempty" yaml:"compression,omitempty" jsonschema:"enum=none,enum=snappy,enum=lz4,enum=zstd,enum=gzip" jsonschema_description:"Compression of the batches."`
	// MaxMessageBytes is the largest record, before compression, and the largest
	// batch of them, 1024 to 104857600; the default is 1000012. It should be
	// the topic's max.message.bytes, or less.
	MaxMessageBytes int `json:"max_message_bytes,omitempty" yaml:"max_message_bytes,omitempty" jsonschema_description:"Largest record, before compression, and largest batch of them; not above the topic's 'max.message.bytes'." kind:"1024 to 104857600"`
	// DeliveryTimeout bounds the delivery of one batch, retries included. The
	// default is 30s.
	DeliveryTimeout time.Duration `json:"delivery_timeout,omitempty" yaml:"delivery_timeout,omitempty" jsonschema_description:"Longest time for one batch, retries included." kind:"duration, at most '10m'"`
	// AllowAutoTopicCreation lets brokers create the topic, if they do so on
	// demand (auto.create.topics.enable).
	AllowAutoTopicCreation bool `json:"allow_auto_topic_creation,omitempty" yaml:"allow_auto_topic_creation,omitempty" jsonschema_description:"Brokers may create a missing topic, if they do so on demand."`

	// Transactional writes each batch in a separate transaction: consumers that
	// read_committed see all of it or nothing.
	Transactional bool `json:"transactional,omitempty" yaml:"transactional,omitempty" jsonschema_description:"Write each batch in a transaction: consumers that 'read_committed' see all of it or nothing."`
	// TransactionalID is for ACLs. With Transactional it is the prefix of the transactional ids; the
	// default is "notifyd", and the rest is random, so that relays do not fence each other. With
	// ExactlyOnce it is the whole id, and must be unique in the Kafka cluster; the default is made of
	// the names of the database, the schema and the destination: see PositionID.
	TransactionalID string `json:"transactional_id,omitempty" yaml:"transactional_id,omitempty" jsonschema_description:"With 'transactional': prefix of the transactional ids, for ACLs; the rest is random. With 'exactly_once': the id itself, unique in the Kafka cluster; another id begins without the position in Kafka. Other shards have their number behind it, as in '/1'." unset:"'notifyd'; with 'exactly_once', 'notifyd/<database>/<schema>/<destination>/0'"`
	// ExactlyOnce writes each batch in a transaction with the position of the destination: consumers
	// that read_committed get each event once, whatever happens to relays. It is for a stream.
	ExactlyOnce bool `json:"exactly_once,omitempty" yaml:"exactly_once,omitempty" jsonschema_description:"Write each batch in a transaction with the position: consumers that 'read_committed' get each event exactly once, whatever happens to relays. Only in a stream, with 'concurrency: 1', and not with 'order: none'."`
	// PositionsTopic is the compacted topic of the positions, for ExactlyOnce; the default is
	// "notifyd-positions".
	PositionsTopic string `json:"positions_topic,omitempty" yaml:"positions_topic,omitempty" jsonschema_description:"With 'exactly_once': the compacted topic that keeps the positions. It is made where it is missing." kind:"topic" unset:"'notifyd-positions'"`
}

// SASL says how to authenticate.
type SASL struct {
	// Mechanism is plain, scram-sha-256, scram-sha-512, oauthbearer, or aws-msk-iam, with the identity of the AWS SDK.
	// Required.
	Mechanism string `json:"mechanism" yaml:"mechanism" jsonschema:"enum=plain,enum=scram-sha-256,enum=scram-sha-512,enum=oauthbearer,enum=aws-msk-iam" jsonschema_description:"How to authenticate. 'aws-msk-iam' has the identity of the AWS SDK." unset:"required"`
	// Username and Password are for plain and scram. [handlers.NewSecret] makes the Password.
	Username string          `json:"username,omitempty" yaml:"username,omitempty" jsonschema_description:"Name, for 'plain' and 'scram'."`
	Password handlers.Secret `json:"password,omitzero" yaml:"password,omitempty" jsonschema_description:"Password, for 'plain' and 'scram'."`
	// Token, TokenFile, TokenCommand and OAuth are for oauthbearer, one of them. A file and a program are asked at each
	// authentication, so that the token may change. [handlers.NewSecret] makes the Token.
	Token     handlers.Secret `json:"token,omitzero" yaml:"token,omitempty" jsonschema_description:"Token, for 'oauthbearer'."`
	TokenFile string          `json:"token_file,omitempty" yaml:"token_file,omitempty" jsonschema_description:"File with the token, in place of 'token'. It is read at each authentication, so it may change." kind:"path"`
	// TokenCommand is a program with its arguments that prints the token on one line, and TokenLifetime how long its output
	// is used; the default is 1m.
	TokenCommand  []string      `json:"token_command,omitempty" yaml:"token_command,omitempty" jsonschema_description:"Program with its arguments that prints the token on one line, in place of 'token'. It is run without a shell, for an authentication, and has 8 s." kind:"list of strings"`
	TokenLifetime time.Duration `json:"token_lifetime,omitempty" yaml:"token_lifetime,omitempty" jsonschema_description:"How long the output of 'token_command' is used: less than the token is valid." unset:"'1m'"`
	// OAuth gets the token from an authorization server.
	OAuth *OAuth `json:"oauth,omitempty" yaml:"oauth,omitempty" jsonschema_description:"Client credentials for an authorization server that gives the token, in place of 'token'."`
	// AllowUnencrypted sends a password or token that can be read on the way,
	// to brokers on other machines without TLS.
	AllowUnencrypted bool `json:"allow_unencrypted,omitempty" yaml:"allow_unencrypted,omitempty" jsonschema_description:"Send a readable password ('plain') or token without TLS to other machines."`
}

// OAuth are the client credentials of a program, for an authorization server: RFC 6749, section 4.4.
type OAuth struct {
	// TokenURL is where the server gives tokens; https, or http on this machine. Required.
	TokenURL string `json:"token_url" yaml:"token_url" jsonschema_description:"Where the authorization server gives tokens: 'https://', or 'http://' on this machine." unset:"required"`
	// ClientID and ClientSecret name the program. Required. [handlers.NewSecret] makes the ClientSecret.
	ClientID     string          `json:"client_id" yaml:"client_id" jsonschema_description:"Name of the client." unset:"required"`
	ClientSecret handlers.Secret `json:"client_secret" yaml:"client_secret" jsonschema_description:"Secret of the client." unset:"required"`
	// Scopes name the rights of the token.
	Scopes []string `json:"scopes,omitempty" yaml:"scopes,omitempty" jsonschema_description:"Rights of the token." kind:"list of strings"`
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
