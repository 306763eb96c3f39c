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
// marked "template" are templates over the event: .Event, .Payload and
// .Headers.
type Config struct {
	// URL is amqp://user:password@host:port/vhost, or amqps:// for TLS, with
	// reserved characters percent-encoded. Set it, or the six fields after it. [handlers.NewSecret] makes the URL.
	URL handlers.Secret `json:"url,omitzero" yaml:"url,omitempty" jsonschema_description:"'amqp://user:password@host:port/vhost', or 'amqps://' for TLS, with reserved characters percent-encoded. Replaces 'host', 'port', 'username', 'password' and 'vhost'." unset:"'host' and the four keys after it"`
	// Host is the broker's name or address; the default is localhost.
	Host string `json:"host,omitempty" yaml:"host,omitempty" jsonschema_description:"Name or address of the broker."`
	// Port is its TCP port. The default is 5672, with TLS 5671.
	Port int `json:"port,omitempty" yaml:"port,omitempty" jsonschema_description:"TCP port." kind:"1 to 65535" unset:"5672; 5671 with 'tls'"`
	// Username and Password are the credentials of auth: plain. The default is
	// guest, which brokers accept over the loopback only. [handlers.NewSecret] makes the Password.
	Username string          `json:"username,omitempty" yaml:"username,omitempty" jsonschema_description:"Name of the account. Brokers accept 'guest' from their own machine only." unset:"'guest'"`
	Password handlers.Secret `json:"password,omitzero" yaml:"password,omitempty" jsonschema_description:"Password of the account." unset:"'guest'"`
	// Vhost is the virtual host; the default is "/".
	Vhost string `json:"vhost,omitempty" yaml:"vhost,omitempty" jsonschema_description:"Virtual host."`
	// TLS makes connections with TLS; an empty one trusts the system's
	// authorities. Nil is without TLS, but for a URL with amqps.
	TLS *handlers.TLS `json:"tls,omitempty" yaml:"tls,omitempty" jsonschema_description:"Connect with TLS; '{}' trusts the system's certificates." unset:"no TLS"`
	// Auth is plain (default: name and password) or external (the client
	// certificate of TLS; the broker needs rabbitmq_auth_mechanism_ssl).
	Auth string `json:"auth,omitempty" yaml:"auth,omitempty" jsonschema_description:"By name and password, or by the certificate of 'tls', for which the broker needs 'rabbitmq_auth_mechanism_ssl'." kind:"'plain', 'external'"`
	// ConnectionName is shown in the broker's list of connections; the default
	// is "notifyd".
	ConnectionName string `json:"connection_name,omitempty" yaml:"connection_name,omitempty" jsonschema_description:"Name in the broker's list of connections."`

	// Exchange is where messages are published (template); the default is "",
	// the default exchange, which takes the routing key for a queue's name.
	Exchange string `json:"exchange,omitempty" yaml:"exchange,omitempty" jsonschema_description:"Where messages are published. Without it, 'routing_key' is the name of a queue." kind:"template" unset:"the default exchange"`
	// RoutingKey is the routing key (template). The default is the event's type;
	// required without Exchange.
	RoutingKey string `json:"routing_key,omitempty" yaml:"routing_key,omitempty" jsonschema_description:"Routing key. Required without 'exchange'." kind:"template" unset:"the event's type"`
	handlers.Message
	// MessagePriority is the message's priority, 0 to 255 (template). An empty
	// result sets no priority. The setting "priority" belongs to the
	// destination.
	MessagePriority string `json:"message_priority,omitempty" yaml:"message_priority,omitempty" jsonschema_description:"Priority of the message, 0 to 255, for queues with 'x-max-priority'. An empty result sets none. The setting 'priority' belongs to the destination." kind:"template"`
	// Expiration is the time after which queues drop the message (template): a
	// duration such as 30s, or milliseconds. An empty result sets no
	// expiration.
	Expiration string `json:"expiration,omitempty" yaml:"expiration,omitempty" jsonschema_description:"Time after which queues drop the message: '30s', or milliseconds. An empty result sets none." kind:"template"`
	// AppID is the message's app_id; the default is "notifyd".
	AppID string `json:"app_id,omitempty" yaml:"app_id,omitempty" jsonschema_description:"The property 'app_id' of the message."`
	// Transient sends messages that the broker need not write to disk. They are
	// confirmed sooner, and lost when it restarts.
	Transient bool `json:"transient,omitempty" yaml:"transient,omitempty" jsonschema_description:"Messages need not be on disk: they are confirmed sooner, and lost when the broker restarts."`
	// Unroutable decides about an event that no queue takes: retry (it is tried
	// again, and dead after max_attempts), wait (all events wait), drop (it
	// counts as delivered), or auto (default): retry if the exchange or the
	// routing key depends on the event, else wait.
	Unroutable string `json:"unroutable,omitempty" yaml:"unroutable,omitempty" jsonschema_description:"Handling of an event that no queue accepts: 'retry' tries it again until 'max_attempts', 'wait' makes all events wait, 'drop' counts it as delivered. 'auto' retries if 'exchange' or 'routing_key' depends on the event, and waits if not." kind:"'auto', 'retry', 'wait', 'drop'"`
	// StrictOrder publishes an event only when the earlier ones of its aggregate
	// are confirmed. Without it, order is kept unless the broker refuses one
	// message and takes a later one: a full queue, a key that leads nowhere.
	StrictOrder bool `json:"strict_order,omitempty" yaml:"strict_order,omitempty" jsonschema_description:"Publish an event only when the earlier ones of its aggregate are confirmed. Slower where many events in a row belong to one aggregate."`

	// Declare lists the objects to declare on every connection. Existing objects
	// must have the same properties.
	Declare Declare `json:"declare,omitzero" yaml:"declare,omitempty" jsonschema_description:"Objects to declare on every connection. Existing ones must have the same properties." unset:"nothing"`

	// MaxMessageBytes is the largest body; larger ones are not sent. The default
	// is 134217728. It should be the broker's max_message_size, or less.
	MaxMessageBytes int `json:"max_message_bytes,omitempty" yaml:"max_message_bytes,omitempty" jsonschema_description:"Largest body; at most the broker's 'max_message_size'." kind:"1 to 536870912"`
	// Heartbeat is how often each side shows that it lives, 1s to 10m. The
	// connection is closed when the broker is silent for one and a half
	// intervals. The default is 10s.
	Heartbeat time.Duration `json:"heartbeat,omitempty" yaml:"heartbeat,omitempty" jsonschema_description:"Interval of heartbeats in both directions. The connection is closed when the broker is silent for one and a half intervals." kind:"duration, '1s' to '10m'"`
	// ConnectTimeout bounds connecting, the declarations included. The default
	// is 10s.
	ConnectTimeout time.Duration `json:"connect_timeout,omitempty" yaml:"connect_timeout,omitempty" jsonschema_description:"Longest time for connecting, declarations included."`
	// WriteTimeout is how long the broker may accept no bytes. The default is 10s.
	WriteTimeout time.Duration `json:"write_timeout,omitempty" yaml:"write_timeout,omitempty" jsonschema_description:"How long the broker may accept no data."`
	// ConfirmTimeout bounds the publishing of a batch, until the last message is
	// confirmed. The default is 30s.
	ConfirmTimeout time.Duration `json:"confirm_timeout,omitempty" yaml:"confirm_timeout,omitempty" jsonschema_description:"Longest time for publishing a batch, until its last message is confirmed."`
}

// Declare lists exchanges, queues and bindings. They are made in that order.
type Declare struct {
	Exchanges []Exchange `json:"exchanges,omitempty" yaml:"exchanges,omitempty" jsonschema_description:"Exchanges to declare."`
	Queues    []Queue    `json:"queues,omitempty" yaml:"queues,omitempty" jsonschema_description:"Queues to declare."`
	Bindings  []Binding  `json:"bindings,omitempty" yaml:"bindings,omitempty" jsonschema_description:"Bindings of queues to exchanges to declare."`
}

// Exchange is an exchange to declare.
type Exchange struct {
	// Name is its name. Required.
	Name string `json:"name" yaml:"name" jsonschema:"required" jsonschema_description:"Name of the exchange."`
	// Type is direct, fanout, topic, headers, or the type of a plugin; the
	// default is topic.
	Type string `json:"type,omitempty" yaml:"type,omitempty" jsonschema_description:"'direct', 'fanout', 'topic', 'headers', or the type of a plugin." unset:"'topic'"`
	// Transient exchanges are gone when the broker restarts.
	Transient bool `json:"transient,omitempty" yaml:"transient,omitempty" jsonschema_description:"The exchange is gone when the broker restarts."`
	// Arguments hold x-arguments such as alternate-exchange.
	Arguments map[string]any `json:"arguments,omitempty" yaml:"arguments,omitempty" jsonschema_description:"Arguments such as 'alternate-exchange'."`
}

// Queue is a queue to declare.
type Queue struct {
	// Name is its name. Required.
	Name string `json:"name" yaml:"name" jsonschema:"required" jsonschema_description:"Name of the queue."`
	// Transient queues are gone when the broker restarts.
	Transient bool `json:"transient,omitempty" yaml:"transient,omitempty" jsonschema_description:"The queue is gone when the broker restarts."`
	// Arguments hold x-arguments such as x-queue-type: quorum.
	Arguments map[string]any `json:"arguments,omitempty" yaml:"arguments,omitempty" jsonschema_description:"Arguments such as 'x-queue-type: quorum'."`
}

// Binding is a binding to declare.
type Binding struct {
	// Queue is bound to Exchange. Both are required.
	Exchange string `json:"exchange" yaml:"exchange" jsonschema:"required" jsonschema_description:"Exchange that messages come from."`
	Queue    string `json:"queue" yaml:"queue" jsonschema:"required" jsonschema_description:"Queue that messages go to."`
	// RoutingKey is the routing key or pattern, by the exchange's type.
	RoutingKey string `json:"routing_key,omitempty" yaml:"routing_key,omitempty" jsonschema_description:"Routing key or pattern, such as 'order.#'."`
	// Arguments are for an exchange of the type headers.
	Arguments map[string]any `json:"arguments,omitempty" yaml:"arguments,omitempty" jsonschema_description:"Arguments, for an exchange of the type 'headers'."`
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
