package pubsub

import (
	"cmp"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

const (
	// defaultEndpoint is the global one: it goes to the nearest region.
	defaultEndpoint = "https://pubsub.googleapis.com"
	// defaultRequestTimeout is far above the time of an answer of Pub/Sub, some ten
	// milliseconds; getting a token is part of it.
	defaultRequestTimeout = 15 * time.Second
)

// DefaultLane returns the recommended settings of a lane: one batch at a time. If all of
// its events have different keys, up to sixteen requests follow each other on each
// connection. All of them must fit into the timeout even if Pub/Sub is slow.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 1, Batch: 250, Timeout: time.Minute}
}

// Config holds the topic for events, and the credentials. Fields of the kind "template"
// are templates over the event: .Event, .Payload and .Headers.
//
// Without a CredentialsFile the application default credentials of Google Cloud are
// used: the file that GOOGLE_APPLICATION_CREDENTIALS names, the one that gcloud has
// written, or the service account of the machine (Compute Engine, GKE, Cloud Run).
type Config struct {
	// Id of the project that the topic belongs to.
	Project string `json:"project,omitempty" yaml:"project,omitempty" unset:"the project in 'topic'"`

	// Name of the topic, or its full name such as `projects/shop/topics/orders`.
	Topic string `json:"topic" yaml:"topic" unset:"required"`

	// Ordering key of the message; an empty result, as of `{{ "" }}`, means no key.
	//
	// Subscriptions keep the order only with message ordering enabled.
	OrderingKey string `json:"ordering_key,omitempty" yaml:"ordering_key,omitempty" kind:"template" unset:"the aggregate id"`

	handlers.Message

	// URL of a regional endpoint, such as
	// `https://europe-west3-pubsub.googleapis.com`, or of an emulator. One with
	// `http://` gets no credentials.
	Endpoint string `json:"endpoint,omitempty" yaml:"endpoint,omitempty" kind:"URL" unset:"'$PUBSUB_EMULATOR_HOST', or 'https://pubsub.googleapis.com'"`

	// JSON file with the key of a service account or the configuration of a
	// workload identity federation, relative to the configuration file.
	//
	// It is read again for each token.
	CredentialsFile string `json:"credentials_file,omitempty" yaml:"credentials_file,omitempty" kind:"path" unset:"the application default credentials"`

	// Certificates to trust and to present, for an endpoint or proxy with its own.
	//
	// It also applies to the token server.
	TLS *handlers.TLS `json:"tls,omitempty" yaml:"tls,omitempty" unset:"the system's certificates"`

	// Longest time for one request, connecting and getting a token included.
	//
	// The default is 15s.
	RequestTimeout time.Duration `json:"request_timeout,omitempty" yaml:"request_timeout,omitempty"`
}

// WithDefaults returns a copy with every default filled in that needs no
// environment.
func (c Config) WithDefaults() Config {
	c.Message = message.WithDefaults(c.Message)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, defaultRequestTimeout)
	return c
}

// Within returns how long one request may take before the handler gives up on it.
func (c Config) Within() time.Duration { return c.WithDefaults().RequestTimeout }
