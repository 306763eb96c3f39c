package webhook

import (
	"cmp"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

// The values of [Config.Addresses].
const (
	AddressesAny    = "any"
	AddressesPublic = "public"
)

// BatchFormat is how a request holds several events.
type BatchFormat string

const (
	// BatchCloudEvents is a JSON array of CloudEvents, application/cloudevents-batch+json: the batched mode of the HTTP
	// binding of CloudEvents 1.0.2.
	BatchCloudEvents BatchFormat = "cloudevents"
	// BatchNDJSON is a line of JSON per event, application/x-ndjson. The line is the event with its payload, as in the
	// files of package handlers/file; with [handlers.FormatCloudEventsStructured] a CloudEvent; with a Body that body.
	BatchNDJSON BatchFormat = "ndjson"
)

// ProxyNone is the value of [Config.ProxyURL] for no proxy at all.
const ProxyNone = "none"

// DefaultLane returns the recommended settings of a lane. The timeout includes the time
// that deliveries wait for their turn.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 8, Batch: 100, Timeout: 30 * time.Second}
}

const (
	// defaultRequestTimeout leaves some room below the 30s that a delivery may take.
	defaultRequestTimeout = 20 * time.Second
	// defaultConnectTimeout covers the look-up of the name and TCP, with room
	// for two lost packets.
	defaultConnectTimeout = 5 * time.Second
	defaultTLSTimeout     = 5 * time.Second
	// defaultResponseTimeout is a common timeout for receivers.
	defaultResponseTimeout = 15 * time.Second
	defaultIDPrefix        = "notifyd"
	// defaultBatchBytes is the limit on bodies that many servers and proxies have.
	defaultBatchBytes = 1 << 20
)

// Config describes the requests and where to send them. Fields of the kind
// "template" are templates over the event: .Event, .Payload and .Headers.
type Config struct {
	// URL of the receiver, `https://` or `http://`. Values are escaped; the host
	// must be complete before the first template.
	//
	// A value stays within the path segment or parameter where it stands.
	URL string `json:"url" yaml:"url" kind:"template" unset:"required"`

	// The event chooses the host: `url` may then be `{{ .Payload.callback_url }}`.
	// Values in `url` are not escaped, only public addresses are connected to, and
	// a failing host costs attempts, so that events for other hosts need not wait
	// for it.
	DynamicHost bool `json:"dynamic_host,omitempty" yaml:"dynamic_host,omitempty"`

	// Method of the request.
	//
	// The default is POST.
	Method string `json:"method,omitempty" yaml:"method,omitempty" enum:"POST,PUT,PATCH"`

	// Message is the body.
	handlers.Message

	// Sends the events that wait in one request: `cloudevents` is a JSON array of
	// CloudEvents, `ndjson` a line of JSON per event.
	//
	// See [NewBatch]. BatchFormat excludes DynamicHost.
	BatchFormat BatchFormat `json:"batch_format,omitempty" yaml:"batch_format,omitempty" enum:"cloudevents,ndjson" unset:"none: a request per event"`

	// Most bytes in the body of a request with several events, with `batch_format`.
	// A larger event is sent alone.
	BatchBytes int `json:"batch_bytes,omitempty" yaml:"batch_bytes,omitempty" print:"set" jsonschema:"minimum=1000,maximum=100000000" unset:"1048576"`

	// Further headers by name; one that yields nothing is left out.
	Headers map[string]string `json:"headers,omitempty" yaml:"headers,omitempty" kind:"mapping of templates"`

	// Headers of the event that are sent in addition to `traceparent`, `tracestate`
	// and `baggage`. Case does not matter, and `_` counts as `-`. All others are
	// left out.
	//
	// A receiver, or a proxy in front of it, may take other headers for its own,
	// such as X-Forwarded-User.
	EventHeaders []string `json:"event_headers,omitempty" yaml:"event_headers,omitempty" kind:"list of names"`

	// First part of `webhook-id`. Relays of several databases that share a receiver
	// need different ones.
	//
	// The default is "notifyd".
	IDPrefix string `json:"id_prefix,omitempty" yaml:"id_prefix,omitempty"`

	// Secrets of Standard Webhooks: `whsec_` and the base64 of 24 to 64 bytes. Each
	// makes one signature: list the old and the new secret while receivers change
	// over.
	SigningSecrets []handlers.Secret `json:"signing_secrets,omitempty" yaml:"signing_secrets,omitempty"`

	// Sent as `Authorization: Bearer`.
	BearerToken handlers.Secret `json:"bearer_token,omitzero" yaml:"bearer_token,omitempty"`

	// Name sent as `Authorization: Basic`; with `password`, or neither.
	Username string `json:"username,omitempty" yaml:"username,omitempty"`

	// Password sent as `Authorization: Basic`.
	Password handlers.Secret `json:"password,omitzero" yaml:"password,omitempty"`

	// Certificates to trust and to present.
	TLS handlers.TLS `json:"tls,omitzero" yaml:"tls,omitempty" unset:"the system's certificates"`

	// Proxy, `http://`, `https://` or `socks5://`, or `none`.
	ProxyURL handlers.Secret `json:"proxy_url,omitzero" yaml:"proxy_url,omitempty" unset:"'HTTPS_PROXY', 'HTTP_PROXY' and 'NO_PROXY'"`

	// Addresses that may be connected to; `public` keeps requests out of private
	// networks.
	Addresses string `json:"addresses,omitempty" yaml:"addresses,omitempty" enum:"any,public" unset:"'any'; 'public' with 'dynamic_host'"`

	// Networks that `addresses: public` allows in addition, such as `10.1.0.0/16`.
	AllowAddresses []string `json:"allow_addresses,omitempty" yaml:"allow_addresses,omitempty" kind:"list of networks"`

	// Longest use of one connection. A new connection looks the host's name up
	// again.
	//
	// The default is 5m.
	MaxConnectionAge time.Duration `json:"max_connection_age,omitempty" yaml:"max_connection_age,omitempty"`

	// Longest time for looking up the name and for TCP.
	//
	// The default is 5s.
	ConnectTimeout time.Duration `json:"connect_timeout,omitempty" yaml:"connect_timeout,omitempty"`

	// Longest time for the TLS handshake.
	//
	// The default is 5s.
	TLSTimeout time.Duration `json:"tls_timeout,omitempty" yaml:"tls_timeout,omitempty"`

	// Longest time from the end of the request to the status.
	//
	// The default is 15s.
	ResponseTimeout time.Duration `json:"response_timeout,omitempty" yaml:"response_timeout,omitempty"`

	// Longest time for the whole request.
	//
	// The default is 20s.
	RequestTimeout time.Duration `json:"request_timeout,omitempty" yaml:"request_timeout,omitempty"`

	// Most requests per second to one host, evenly spaced, per relay. `rate_limit`
	// is the limit of the destination, over all relays.
	HostRateLimit float64 `json:"host_rate_limit,omitempty" yaml:"host_rate_limit,omitempty" unset:"none"`

	// Most requests at the same time to one host, with `dynamic_host`.
	HostConcurrency int `json:"host_concurrency,omitempty" yaml:"host_concurrency,omitempty" unset:"none"`
}

// WithDefaults returns a copy with every default filled in.
func (c Config) WithDefaults() Config {
	c.Method = cmp.Or(c.Method, "POST")
	c.IDPrefix = cmp.Or(c.IDPrefix, defaultIDPrefix)
	if c.BatchFormat != "" {
		c.BatchBytes = cmp.Or(c.BatchBytes, defaultBatchBytes)
	}

	c.Message = message.WithDefaults(c.message())

	c.MaxConnectionAge = cmp.Or(c.MaxConnectionAge, idle.MaxAge)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, defaultConnectTimeout)
	c.TLSTimeout = cmp.Or(c.TLSTimeout, defaultTLSTimeout)
	c.ResponseTimeout = cmp.Or(c.ResponseTimeout, defaultResponseTimeout)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, defaultRequestTimeout)

	if c.Addresses == "" {
		c.Addresses = AddressesAny
		if c.DynamicHost {
			c.Addresses = AddressesPublic
		}
	}

	return c
}

// message returns the form of the events, which the format of a batch may decide.
func (c Config) message() handlers.Message {
	m := c.Message
	if c.BatchFormat == BatchCloudEvents && m.Body == "" {
		m.Format = cmp.Or(m.Format, handlers.FormatCloudEventsStructured)
	}
	return m
}

// Within returns how long one request may take before the handler gives up on it.
func (c Config) Within() time.Duration { return c.WithDefaults().RequestTimeout }
