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

// Config describes the requests and where to send them. Fields marked
// "template" are templates over the event: .Event, .Payload and .Headers.
type Config struct {
	// URL is the URL to send requests to (template). Required. Values are escaped: they
	// stay within the path segment or parameter where they stand, and the first
	// one must come behind the slash that ends the host.
	URL string `json:"url" yaml:"url" jsonschema_description:"URL of the receiver, 'https://' or 'http://'. Values are escaped; the host must be complete before the first template." kind:"template" unset:"required"`
	// DynamicHost lets the event choose the host. Values in URL are then not
	// escaped, only public addresses may be connected to (see Addresses), and a
	// failing host costs attempts: events for other hosts must not wait for it.
	DynamicHost bool `json:"dynamic_host,omitempty" yaml:"dynamic_host,omitempty" jsonschema_description:"The event chooses the host: 'url' may then be '{{ .Payload.callback_url }}'. Values in 'url' are not escaped, only public addresses are connected to, and a failing host costs attempts, so that events for other hosts need not wait for it."`
	// Method is POST (default), PUT or PATCH.
	Method string `json:"method,omitempty" yaml:"method,omitempty" jsonschema:"enum=POST,enum=PUT,enum=PATCH" jsonschema_description:"Method of the request."`

	// Config is the body.
	handlers.Message

	// BatchFormat puts the events that wait into one request: see [NewBatch]. It goes with no DynamicHost. Empty, the
	// default, is a request per event.
	BatchFormat BatchFormat `json:"batch_format,omitempty" yaml:"batch_format,omitempty" jsonschema:"enum=cloudevents,enum=ndjson" jsonschema_description:"Sends the events that wait in one request: 'cloudevents' is a JSON array of CloudEvents, 'ndjson' a line of JSON per event." unset:"none: a request per event"`
	// BatchBytes is the most bytes in the body of a request with several events, from 1,000 to 100,000,000; the default
	// is 1,048,576. A larger event is sent alone.
	BatchBytes int `json:"batch_bytes,omitempty" yaml:"batch_bytes,omitempty" print:"set" jsonschema:"minimum=1000,maximum=100000000" jsonschema_description:"Most bytes in the body of a request with several events. A larger event is sent alone." unset:"1048576, with 'batch_format'"`

	// Headers are further headers (templates). An empty result is left out.
	Headers map[string]string `json:"headers,omitempty" yaml:"headers,omitempty" jsonschema_description:"Further headers by name; one that yields nothing is left out." kind:"mapping of templates"`
	// EventHeaders are the event's own headers that the request has in addition to traceparent, tracestate and baggage. Case does
	// not matter, and "_" counts as "-". Headers of the event that are not named here are not sent: a receiver, or a proxy in front
	// of it, may take them for its own, such as X-Forwarded-User.
	EventHeaders []string `json:"event_headers,omitempty" yaml:"event_headers,omitempty" jsonschema_description:"Headers of the event that are sent in addition to 'traceparent', 'tracestate' and 'baggage'. Case does not matter, and '_' counts as '-'. All others are left out." kind:"list of names"`
	// IDPrefix is the first part of webhook-id; the default is "notifyd". Relays
	// of several databases that share a receiver need different ones.
	IDPrefix string `json:"id_prefix,omitempty" yaml:"id_prefix,omitempty" jsonschema_description:"First part of 'webhook-id'. Relays of several databases that share a receiver need different ones."`

	// SigningSecrets sign each request as Standard Webhooks asks, one signature
	// for each: "whsec_" and the base64 of 24 to 64 random bytes. [handlers.NewSecret] makes each.
	SigningSecrets []handlers.Secret `json:"signing_secrets,omitempty" yaml:"signing_secrets,omitempty" jsonschema_description:"Secrets of Standard Webhooks: 'whsec_' and the base64 of 24 to 64 bytes. Each makes one signature: list the old and the new secret while receivers change over."`
	// BearerToken is sent as "Authorization: Bearer". [handlers.NewSecret] makes the BearerToken.
	BearerToken handlers.Secret `json:"bearer_token,omitzero" yaml:"bearer_token,omitempty" jsonschema_description:"Sent as 'Authorization: Bearer'."`
	// Username and Password are sent as "Authorization: Basic". Set both or none.
	// [handlers.NewSecret] makes the Password.
	Username string          `json:"username,omitempty" yaml:"username,omitempty" jsonschema_description:"Name sent as 'Authorization: Basic'; with 'password', or neither."`
	Password handlers.Secret `json:"password,omitzero" yaml:"password,omitempty" jsonschema_description:"Password sent as 'Authorization: Basic'."`
	// TLS names the authorities to trust and the certificate to present.
	TLS handlers.TLS `json:"tls,omitzero" yaml:"tls,omitempty" jsonschema_description:"Certificates to trust and to present." unset:"the system's certificates"`

	// ProxyURL is the proxy to go through, http, https or socks5, or none. The
	// default comes from the environment: HTTP_PROXY, HTTPS_PROXY and NO_PROXY.
	// [handlers.NewSecret] makes the ProxyURL.
	ProxyURL handlers.Secret `json:"proxy_url,omitzero" yaml:"proxy_url,omitempty" jsonschema_description:"Proxy, 'http://', 'https://' or 'socks5://', or 'none'." unset:"'HTTPS_PROXY', 'HTTP_PROXY' and 'NO_PROXY'"`
	// Addresses is any (default) or public (the default with DynamicHost): the
	// addresses that may be connected to, whatever their name.
	Addresses string `json:"addresses,omitempty" yaml:"addresses,omitempty" jsonschema:"enum=any,enum=public" jsonschema_description:"Addresses that may be connected to; 'public' keeps requests out of private networks." unset:"'any'; 'public' with 'dynamic_host'"`
	// AllowAddresses are networks in CIDR form that are allowed in addition to
	// public ones.
	AllowAddresses []string `json:"allow_addresses,omitempty" yaml:"allow_addresses,omitempty" jsonschema_description:"Networks that 'addresses: public' allows in addition, such as '10.1.0.0/16'." kind:"list of networks"`

	// MaxConnectionAge is how long a connection is used at most; the default is 5m. A new
	// connection looks the name of the host up again.
	MaxConnectionAge time.Duration `json:"max_connection_age,omitempty" yaml:"max_connection_age,omitempty" jsonschema_description:"Longest use of one connection. A new connection looks the host's name up again."`
	// ConnectTimeout bounds the look-up of the name and the TCP connection; the
	// default is 5s. TLSTimeout bounds the TLS handshake; the default is 5s.
	ConnectTimeout time.Duration `json:"connect_timeout,omitempty" yaml:"connect_timeout,omitempty" jsonschema_description:"Longest time for looking up the name and for TCP."`
	TLSTimeout     time.Duration `json:"tls_timeout,omitempty" yaml:"tls_timeout,omitempty" jsonschema_description:"Longest time for the TLS handshake."`
	// ResponseTimeout bounds the wait for the status, from the last byte of the
	// request on; the default is 15s.
	ResponseTimeout time.Duration `json:"response_timeout,omitempty" yaml:"response_timeout,omitempty" jsonschema_description:"Longest time from the end of the request to the status."`
	// RequestTimeout bounds the whole request; the default is 20s.
	RequestTimeout time.Duration `json:"request_timeout,omitempty" yaml:"request_timeout,omitempty" jsonschema_description:"Longest time for the whole request."`

	// HostRateLimit is the most requests per second to one host, evenly spaced. 0,
	// the default, sets no limit.
	HostRateLimit float64 `json:"host_rate_limit,omitempty" yaml:"host_rate_limit,omitempty" jsonschema_description:"Most requests per second to one host, evenly spaced, per relay. 'rate_limit' is the limit of the destination, over all relays." unset:"none"`
	// HostConcurrency is the most requests at once to one host, for DynamicHost.
	// 0, the default, sets no limit.
	HostConcurrency int `json:"host_concurrency,omitempty" yaml:"host_concurrency,omitempty" jsonschema_description:"Most requests at the same time to one host, with 'dynamic_host'." unset:"none"`
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
