package mqtt

import (
	"cmp"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

const (
	plainPort             = "1883"
	securePort            = "8883"
	defaultClientID       = "notifyd"
	defaultConnectTimeout = 5 * time.Second
	defaultAckTimeout     = 10 * time.Second
	maxTimeout            = 10 * time.Minute
)

// DefaultLane returns the recommended settings of a lane: one batch at a time keeps the order of each aggregate's
// events, through an outage too. The timeout is for a handler that exceeds its own timeouts.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 1, Batch: 1000, Timeout: time.Minute}
}

// Config names the topic of events, and the brokers. Fields of the kind "template" are templates over the event:
// .Event, .Payload and .Headers.
type Config struct {
	// Servers to try, as `mqtts://host:8883` with TLS, or `mqtt://host:1883`. One
	// that answers is enough; several belong to one cluster.
	//
	// Each new connection begins with the next one.
	Servers []string `json:"servers" yaml:"servers" kind:"list of URLs" unset:"required"`

	// User, with `password`.
	Username string `json:"username,omitempty" yaml:"username,omitempty"`

	// Password of the user.
	Password handlers.Secret `json:"password,omitzero" yaml:"password,omitempty"`

	// Send a password without TLS to other machines.
	AllowUnencrypted bool `json:"allow_unencrypted,omitempty" yaml:"allow_unencrypted,omitempty"`

	// Certificates to trust and to present to servers with `mqtts://`.
	TLS *handlers.TLS `json:"tls,omitempty" yaml:"tls,omitempty" unset:"the system's certificates"`

	// Beginning of the client id. Each connection adds a random part, because a
	// broker ends the older of two connections with one id.
	//
	// The default is "notifyd".
	ClientID string `json:"client_id,omitempty" yaml:"client_id,omitempty"`

	// Topic. A value is part of one level: `/`, `+` and `#` in it are refused.
	Topic string `json:"topic" yaml:"topic" kind:"template" unset:"required"`

	// Have the broker keep the last message of each topic for later subscribers.
	Retain bool `json:"retain,omitempty" yaml:"retain,omitempty"`

	handlers.Message

	// Longest time for connecting to one server.
	//
	// The default is 5s.
	ConnectTimeout time.Duration `json:"connect_timeout,omitempty" yaml:"connect_timeout,omitempty" kind:"duration, at most '10m'"`

	// Longest wait for the acknowledgement of an event.
	//
	// The default is 10s.
	AckTimeout time.Duration `json:"ack_timeout,omitempty" yaml:"ack_timeout,omitempty" kind:"duration, at most '10m'"`
}

// WithDefaults returns a copy with every default filled in.
func (c Config) WithDefaults() Config {
	c.Message = message.WithDefaults(c.Message)
	c.ClientID = cmp.Or(c.ClientID, defaultClientID)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, defaultConnectTimeout)
	c.AckTimeout = cmp.Or(c.AckTimeout, defaultAckTimeout)
	return c
}

// Within returns how long a batch may take before the handler gives up on it: connecting to each server, and the wait
// for acknowledgements.
func (c Config) Within() time.Duration {
	c = c.WithDefaults()
	return c.ConnectTimeout*time.Duration(len(c.Servers)) + c.AckTimeout
}
