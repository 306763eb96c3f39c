package rabbitmq

import (
	"cmp"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// The values of [Config.Auth].
const (
	AuthPlain    = "plain"
	AuthExternal = "external"
)

// The values of [Config.Unroutable].
const (
	UnroutableAuto  = "auto"
	UnroutableRetry = "retry"
	UnroutableWait  = "wait"
	UnroutableDrop  = "drop"
)

const (
	defaultHost    = "localhost"
	defaultPort    = 5672 // AMQP, IANA
	defaultPortTLS = 5671 // AMQPS, IANA
	// guest is the default account of a broker, accepted over the loopback only.
	guest = "guest"
	// defaultHeartbeat finds a silently dead broker in 15 s: the library gives up
	// after three halves of it.
	defaultHeartbeat = 10 * time.Second
	minHeartbeat     = time.Second // the protocol counts in seconds
	maxHeartbeat     = 10 * time.Minute
	// defaultConnectTimeout covers TCP, TLS, the handshake and the declarations.
	defaultConnectTimeout = 10 * time.Second
	// defaultWriteTimeout is for one write to the socket: a broker that takes
	// nothing for as long has hung or lost the network. One that merely wants
	// publishers to slow down takes some bytes now and then.
	defaultWriteTimeout = 10 * time.Second
	// defaultConfirmTimeout is for a broker that writes to a slow disk, or for a
	// quorum queue that elects a leader.
	defaultConfirmTimeout = 30 * time.Second
	// defaultMaxMessageBytes is the max_message_size of RabbitMQ 3.8 to 3.13;
	// later ones take 16 MiB.
	defaultMaxMessageBytes = 128 << 20
	// limitMaxMessageBytes is the largest setting of any RabbitMQ.
	limitMaxMessageBytes = 512 << 20
	defaultAppID         = "notifyd"
	defaultName          = "notifyd"
)

// DefaultLane returns the recommended settings of a lane: one batch at a time keeps the
// order of the events, through an outage too. Several at a time are slower, because they
// compete for the broker's one reader of the connection.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 1, Batch: 500, Timeout: time.Minute}
}

// Config names the exchange and routing key of events, and the broker. Fields
// of the kind "template" are templates over the event: .Event, .Payload and
// .Headers.
type Config struct {
	// `amqp://user:password@host:port/vhost`, or `amqps://` for TLS, with reserved
	// characters percent-encoded. Replaces `host`, `port`, `username`, `password`
	// and `vhost`.
	URL handlers.Secret `json:"url,omitzero" yaml:"url,omitempty" unset:"'host' and the four keys after it"`

	// Name or address of the broker.
	//
	// The default is localhost.
	Host string `json:"host,omitempty" yaml:"host,omitempty"`

	// TCP port.
	Port int `json:"port,omitempty" yaml:"port,omitempty" kind:"1 to 65535" unset:"5672; 5671 with 'tls'"`

	// Name of the account. Brokers accept `guest` from their own machine only.
	Username string `json:"username,omitempty" yaml:"username,omitempty" unset:"'guest'"`

	// Password of the account.
	Password handlers.Secret `json:"password,omitzero" yaml:"password,omitempty" unset:"'guest'"`

	// Virtual host.
	//
	// The default is "/".
	Vhost string `json:"vhost,omitempty" yaml:"vhost,omitempty"`

	// Connect with TLS; `{}` trusts the system's certificates.
	TLS *handlers.TLS `json:"tls,omitempty" yaml:"tls,omitempty" unset:"no TLS"`

	// By name and password, or by the certificate of `tls`, for which the broker
	// needs `rabbitmq_auth_mechanism_ssl`.
	//
	// The default is plain.
	Auth string `json:"auth,omitempty" yaml:"auth,omitempty" kind:"'plain', 'external'"`

	// Name in the broker's list of connections.
	//
	// The default is "notifyd".
	ConnectionName string `json:"connection_name,omitempty" yaml:"connection_name,omitempty"`

	// Where messages are published. Without it, `routing_key` is the name of a
	// queue.
	Exchange string `json:"exchange,omitempty" yaml:"exchange,omitempty" kind:"template" unset:"the default exchange"`

	// Routing key. Required without `exchange`.
	RoutingKey string `json:"routing_key,omitempty" yaml:"routing_key,omitempty" kind:"template" unset:"the event's type"`

	handlers.Message

	// Priority of the message, 0 to 255, for queues with `x-max-priority`. An empty
	// result sets none. The setting `priority` belongs to the destination.
	MessagePriority string `json:"message_priority,omitempty" yaml:"message_priority,omitempty" kind:"template"`

	// Time after which queues drop the message: `30s`, or milliseconds. An empty
	// result sets none.
	Expiration string `json:"expiration,omitempty" yaml:"expiration,omitempty" kind:"template"`

	// The property `app_id` of the message.
	//
	// The default is "notifyd".
	AppID string `json:"app_id,omitempty" yaml:"app_id,omitempty"`

	// Messages need not be on disk: they are confirmed sooner, and lost when the
	// broker restarts.
	Transient bool `json:"transient,omitempty" yaml:"transient,omitempty"`

	// Handling of an event that no queue accepts: `retry` tries it again until
	// `max_attempts`, `wait` makes all events wait, `drop` counts it as delivered.
	// `auto` retries if `exchange` or `routing_key` depends on the event, and waits
	// if not.
	//
	// The default is auto.
	Unroutable string `json:"unroutable,omitempty" yaml:"unroutable,omitempty" kind:"'auto', 'retry', 'wait', 'drop'"`

	// Publish an event only when the earlier ones of its aggregate are confirmed.
	// Slower where many events in a row belong to one aggregate.
	//
	// Without it, order is kept unless the broker refuses one message and takes a
	// later one: a full queue, a key that leads nowhere.
	StrictOrder bool `json:"strict_order,omitempty" yaml:"strict_order,omitempty"`

	// Objects to declare on every connection. Existing ones must have the same
	// properties.
	Declare Declare `json:"declare,omitzero" yaml:"declare,omitempty" unset:"nothing"`

	// Largest body; at most the broker's `max_message_size`.
	//
	// A larger event is not sent. The default is 134217728.
	MaxMessageBytes int `json:"max_message_bytes,omitempty" yaml:"max_message_bytes,omitempty" kind:"1 to 536870912"`

	// Interval of heartbeats in both directions. The connection is closed when the
	// broker is silent for one and a half intervals.
	//
	// The default is 10s.
	Heartbeat time.Duration `json:"heartbeat,omitempty" yaml:"heartbeat,omitempty" kind:"duration, '1s' to '10m'"`

	// Longest time for connecting, declarations included.
	//
	// The default is 10s.
	ConnectTimeout time.Duration `json:"connect_timeout,omitempty" yaml:"connect_timeout,omitempty"`

	// How long the broker may accept no data.
	//
	// The default is 10s.
	WriteTimeout time.Duration `json:"write_timeout,omitempty" yaml:"write_timeout,omitempty"`

	// Longest time for publishing a batch, until its last message is confirmed.
	//
	// The default is 30s.
	ConfirmTimeout time.Duration `json:"confirm_timeout,omitempty" yaml:"confirm_timeout,omitempty"`
}

// Declare lists exchanges, queues and bindings. They are made in that order.
type Declare struct {
	// Exchanges to declare.
	Exchanges []Exchange `json:"exchanges,omitempty" yaml:"exchanges,omitempty"`

	// Queues to declare.
	Queues []Queue `json:"queues,omitempty" yaml:"queues,omitempty"`

	// Bindings of queues to exchanges to declare.
	Bindings []Binding `json:"bindings,omitempty" yaml:"bindings,omitempty"`
}

// Exchange is an exchange to declare.
type Exchange struct {
	// Name of the exchange.
	Name string `json:"name" yaml:"name" jsonschema:"required"`

	// `direct`, `fanout`, `topic`, `headers`, or the type of a plugin.
	Type string `json:"type,omitempty" yaml:"type,omitempty" unset:"'topic'"`

	// The exchange is gone when the broker restarts.
	Transient bool `json:"transient,omitempty" yaml:"transient,omitempty"`

	// Arguments such as `alternate-exchange`.
	Arguments map[string]any `json:"arguments,omitempty" yaml:"arguments,omitempty"`
}

// Queue is a queue to declare.
type Queue struct {
	// Name of the queue.
	Name string `json:"name" yaml:"name" jsonschema:"required"`

	// The queue is gone when the broker restarts.
	Transient bool `json:"transient,omitempty" yaml:"transient,omitempty"`

	// Arguments such as `x-queue-type: quorum`.
	Arguments map[string]any `json:"arguments,omitempty" yaml:"arguments,omitempty"`
}

// Binding is a binding to declare.
type Binding struct {
	// Exchange that messages come from.
	Exchange string `json:"exchange" yaml:"exchange" jsonschema:"required"`

	// Queue that messages go to.
	Queue string `json:"queue" yaml:"queue" jsonschema:"required"`

	// Routing key or pattern, such as `order.#`.
	RoutingKey string `json:"routing_key,omitempty" yaml:"routing_key,omitempty"`

	// Arguments, for an exchange of the type `headers`.
	Arguments map[string]any `json:"arguments,omitempty" yaml:"arguments,omitempty"`
}

// IsZero reports whether there is nothing to declare.
func (d Declare) IsZero() bool { return len(d.Exchanges)+len(d.Queues)+len(d.Bindings) == 0 }

// WithDefaults returns a copy with every default filled in except the user's. With a
// URL, its parts are left out: see target.
func (c Config) WithDefaults() Config {
	c.Message = message.WithDefaults(c.Message)
	if c.URL.IsZero() {
		c.Host = cmp.Or(c.Host, defaultHost)
		c.Vhost = cmp.Or(c.Vhost, "/")
		if c.Port == 0 {
			c.Port = defaultPort
			if c.TLS != nil {
				c.Port = defaultPortTLS
			}
		}
	}

	c.Auth = cmp.Or(c.Auth, AuthPlain)
	c.ConnectionName = cmp.Or(c.ConnectionName, defaultName)

	c.AppID = cmp.Or(c.AppID, defaultAppID)
	c.Unroutable = cmp.Or(c.Unroutable, UnroutableAuto)

	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, defaultMaxMessageBytes)
	c.Heartbeat = cmp.Or(c.Heartbeat, defaultHeartbeat)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, defaultConnectTimeout)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, defaultWriteTimeout)
	c.ConfirmTimeout = cmp.Or(c.ConfirmTimeout, defaultConfirmTimeout)

	return c
}

// Within returns how long a batch of up to 1,000 events may take before the
// handler itself gives up on it: connect_timeout and confirm_timeout together.
func (c Config) Within() time.Duration {
	c = c.WithDefaults()
	return c.ConnectTimeout + c.ConfirmTimeout
}
