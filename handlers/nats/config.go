package nats

import (
	"cmp"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// The values of [Config.Mode].
const (
	ModeJetStream = "jetstream"
	ModeCore      = "core"
)

const (
	defaultPort           = "4222"
	defaultClientName     = "notifyd"
	defaultConnectTimeout = 5 * time.Second
	defaultAckTimeout     = 5 * time.Second
	maxTimeout            = 10 * time.Minute
)

// DefaultLane returns the recommended settings of a lane: one batch at a time keeps the
// order of each aggregate's events, through an outage too. The timeout is for a handler
// that exceeds its own timeouts.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 1, Batch: 1000, Timeout: time.Minute}
}

// Config names the subject of events, and the NATS servers. Fields marked
// "template" are templates over the event: .Event, .Payload and .Headers.
type Config struct {
	// Servers are where to ask for the cluster, as nats://host:4222, or tls:// for
	// TLS. One that answers is enough. Required.
	Servers []string `json:"servers" yaml:"servers" jsonschema_description:"Servers to try, as 'nats://host:4222', or 'tls://' for TLS. One that answers is enough." kind:"list of URLs" unset:"required"`
	// The credentials are Username and Password, or Token, or CredentialsFile, or
	// NKeySeed. [handlers.NewSecret] makes the Password and Token.
	Username string          `json:"username,omitempty" yaml:"username,omitempty" jsonschema_description:"User, with 'password'; or one of 'token', 'credentials_file' and 'nkey_seed'."`
	Password handlers.Secret `json:"password,omitzero" yaml:"password,omitempty" jsonschema_description:"Password of the user."`
	Token    handlers.Secret `json:"token,omitzero" yaml:"token,omitempty" jsonschema_description:"Token, in place of a user."`
	// CredentialsFile is a file with a JWT and its seed, as nsc writes it. It is
	// read for each connection, so that it may change.
	CredentialsFile string `json:"credentials_file,omitempty" yaml:"credentials_file,omitempty" jsonschema_description:"File with a JWT and its seed, as 'nsc' writes it, in place of a user; relative to the configuration file. It is read for each connection, so it may change." kind:"path"`
	// NKeySeed is the seed of a user's key; it begins with SU. [handlers.NewSecret] makes the NKeySeed.
	NKeySeed handlers.Secret `json:"nkey_seed,omitzero" yaml:"nkey_seed,omitempty" jsonschema_description:"Seed of a user's nkey, in place of a user; it begins with 'SU'."`
	// AllowUnencrypted sends a password or token to another machine without TLS.
	AllowUnencrypted bool `json:"allow_unencrypted,omitempty" yaml:"allow_unencrypted,omitempty" jsonschema_description:"Send a password or token without TLS to other machines."`
	// TLS makes connections with TLS; an empty one trusts the system's
	// authorities. Nil is without TLS, but for servers with tls://.
	TLS *handlers.TLS `json:"tls,omitempty" yaml:"tls,omitempty" jsonschema_description:"Connect with TLS; 'tls: {}' trusts the system's certificates." unset:"TLS only with 'tls://', or if the server insists"`
	// ClientName is shown by the server's monitoring; the default is "notifyd".
	ClientName string `json:"client_name,omitempty" yaml:"client_name,omitempty" jsonschema_description:"Name in the servers' monitoring."`

	// Subject is the subject (template). Required.
	Subject string `json:"subject" yaml:"subject" jsonschema_description:"Subject. A value is one token; the dots of an event's type begin further ones." kind:"template" unset:"required"`
	// Mode is jetstream (default: an event is delivered once a stream has it) or
	// core (once the server has it: a consumer that does not listen never gets it).
	Mode string `json:"mode,omitempty" yaml:"mode,omitempty" jsonschema:"enum=jetstream,enum=core" jsonschema_description:"What has to accept an event: a stream, or with 'core' the server alone. With 'core', only current subscribers receive it."`
	// Stream is the stream that the subject belongs to. Set, an event that another
	// stream would take is refused.
	Stream string `json:"stream,omitempty" yaml:"stream,omitempty" jsonschema_description:"Stream that must accept the events." unset:"any"`
	handlers.Message

	// ConnectTimeout bounds connecting to one server; the default is 5s.
	ConnectTimeout time.Duration `json:"connect_timeout,omitempty" yaml:"connect_timeout,omitempty" jsonschema_description:"Longest time for connecting to one server." kind:"duration, at most '10m'"`
	// AckTimeout bounds the wait for the acknowledgement of an event, or with
	// mode: core of a batch; the default is 5s.
	AckTimeout time.Duration `json:"ack_timeout,omitempty" yaml:"ack_timeout,omitempty" jsonschema_description:"Longest wait for the acknowledgement of an event." kind:"duration, at most '10m'"`
}

// WithDefaults returns a copy with every default filled in.
func (c Config) WithDefaults() Config {
	c.Message = message.WithDefaults(c.Message)
	c.Mode = cmp.Or(c.Mode, ModeJetStream)
	c.ClientName = cmp.Or(c.ClientName, defaultClientName)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, defaultConnectTimeout)
	c.AckTimeout = cmp.Or(c.AckTimeout, defaultAckTimeout)
	return c
}

// Within returns how long a batch may take before the handler gives up on it: connecting to
// each server, and the wait for acknowledgements.
func (c Config) Within() time.Duration {
	c = c.WithDefaults()
	return c.ConnectTimeout*time.Duration(len(c.Servers)) + c.AckTimeout
}
