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

// Config names the subject of events, and the NATS servers. Fields of the kind
// "template" are templates over the event: .Event, .Payload and .Headers.
type Config struct {
	// Servers to try, as `nats://host:4222`, or `tls://` for TLS. One that answers
	// is enough.
	Servers []string `json:"servers" yaml:"servers" kind:"list of URLs" unset:"required"`

	// User, with `password`; or one of `token`, `credentials_file` and `nkey_seed`.
	Username string `json:"username,omitempty" yaml:"username,omitempty"`

	// Password of the user.
	Password handlers.Secret `json:"password,omitzero" yaml:"password,omitempty"`

	// Token, in place of a user.
	Token handlers.Secret `json:"token,omitzero" yaml:"token,omitempty"`

	// File with a JWT and its seed, as `nsc` writes it, in place of a user;
	// relative to the configuration file. It is read for each connection, so it may
	// change.
	CredentialsFile string `json:"credentials_file,omitempty" yaml:"credentials_file,omitempty" kind:"path"`

	// Seed of a user's nkey, in place of a user; it begins with `SU`.
	NKeySeed handlers.Secret `json:"nkey_seed,omitzero" yaml:"nkey_seed,omitempty"`

	// Send a password or token without TLS to other machines.
	AllowUnencrypted bool `json:"allow_unencrypted,omitempty" yaml:"allow_unencrypted,omitempty"`

	// Connect with TLS; `tls: {}` trusts the system's certificates.
	TLS *handlers.TLS `json:"tls,omitempty" yaml:"tls,omitempty" unset:"TLS only with 'tls://', or if the server insists"`

	// Name in the servers' monitoring.
	//
	// The default is "notifyd".
	ClientName string `json:"client_name,omitempty" yaml:"client_name,omitempty"`

	// Subject. A value is one token; the dots of an event's type begin further
	// ones.
	Subject string `json:"subject" yaml:"subject" kind:"template" unset:"required"`

	// What has to accept an event: a stream, or with `core` the server alone. With
	// `core`, only current subscribers receive it.
	//
	// The default is jetstream.
	Mode string `json:"mode,omitempty" yaml:"mode,omitempty" enum:"jetstream,core"`

	// Stream that must accept the events.
	//
	// An event that another stream would take is refused.
	Stream string `json:"stream,omitempty" yaml:"stream,omitempty" unset:"any"`

	handlers.Message

	// Longest time for connecting to one server.
	//
	// The default is 5s.
	ConnectTimeout time.Duration `json:"connect_timeout,omitempty" yaml:"connect_timeout,omitempty" kind:"duration, at most '10m'"`

	// Longest wait for the acknowledgement of an event.
	//
	// With the mode core the wait is for a batch. The default is 5s.
	AckTimeout time.Duration `json:"ack_timeout,omitempty" yaml:"ack_timeout,omitempty" kind:"duration, at most '10m'"`
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
