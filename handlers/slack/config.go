package slack

import (
	"cmp"
	"strings"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
)

const (
	// defaultAPIURL is where the methods of Slack's Web API are.
	defaultAPIURL = "https://slack.com/api/"
	// defaultRequestTimeout is far above the time of an answer of Slack, a few
	// hundred milliseconds.
	defaultRequestTimeout = 15 * time.Second
)

// DefaultLane returns the recommended settings of a lane: one channel takes at most one
// message at a time, which keeps the messages in order. The timeout includes the time that
// deliveries wait for their turn.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 1, Timeout: time.Minute}
}

// Config describes the messages and where to send them. Fields of the kind
// "template" are templates over the event: .Event, .Payload and .Headers.
type Config struct {
	// Bot token of the app, `xoxb-...`.
	Token handlers.Secret `json:"token,omitzero" yaml:"token,omitempty" unset:"'token' or 'webhook_url' is required"`

	// URL of an incoming webhook, which stands for one channel, in place of `token`
	// and `channel`. The URL alone is enough to post.
	WebhookURL handlers.Secret `json:"webhook_url,omitzero" yaml:"webhook_url,omitempty"`

	// Channel: its id, such as `C0123456789`, or its name. An id outlives a
	// renaming.
	Channel string `json:"channel,omitempty" yaml:"channel,omitempty" kind:"template" unset:"required with 'token'"`

	// Text; with `blocks`, what notifications show.
	Text string `json:"text,omitempty" yaml:"text,omitempty" kind:"template" unset:"'text' or 'blocks' is required"`

	// JSON array of Block Kit blocks. Write values within quotes, or as
	// `{{ json .Payload.x }}`.
	Blocks string `json:"blocks,omitempty" yaml:"blocks,omitempty" kind:"template"`

	// Do not escape `&`, `<` and `>` in values: values can then contain links and
	// mention people.
	//
	// By default "<!channel>" in a payload is shown, and notifies no one.
	RawValues bool `json:"raw_values,omitempty" yaml:"raw_values,omitempty"`

	// Timestamp of the message to reply to, such as `1700000000.000100`. An empty
	// result means no thread.
	ThreadTS string `json:"thread_ts,omitempty" yaml:"thread_ts,omitempty" kind:"template"`

	// Whether Slack shows previews of linked pages.
	UnfurlLinks *bool `json:"unfurl_links,omitempty" yaml:"unfurl_links,omitempty" unset:"Slack's own choice"`

	// Whether Slack shows previews of linked media.
	UnfurlMedia *bool `json:"unfurl_media,omitempty" yaml:"unfurl_media,omitempty" unset:"Slack's own choice"`

	// Sender's name. Needs the scope `chat:write.customize`.
	Username string `json:"username,omitempty" yaml:"username,omitempty" kind:"template" unset:"the app's"`

	// Sender's emoji, such as `:package:`; not with `icon_url`. Needs the scope
	// `chat:write.customize`.
	IconEmoji string `json:"icon_emoji,omitempty" yaml:"icon_emoji,omitempty" kind:"template" unset:"the app's"`

	// URL of the sender's picture. Needs the scope `chat:write.customize`.
	IconURL string `json:"icon_url,omitempty" yaml:"icon_url,omitempty" kind:"template" unset:"the app's"`

	// URL of the Web API: `https://slack-gov.com/api/` for GovSlack, or a gateway
	// of your own.
	//
	// The default is https://slack.com/api/.
	APIURL string `json:"api_url,omitempty" yaml:"api_url,omitempty" kind:"URL"`

	// Certificates to trust and to present, for a gateway or proxy with its own.
	TLS *handlers.TLS `json:"tls,omitempty" yaml:"tls,omitempty" unset:"the system's certificates"`

	// Longest time for one request, connecting included.
	//
	// The default is 15s.
	RequestTimeout time.Duration `json:"request_timeout,omitempty" yaml:"request_timeout,omitempty"`
}

// WithDefaults returns a copy with every default filled in.
func (c Config) WithDefaults() Config {
	if c.WebhookURL.IsZero() {
		c.APIURL = strings.TrimSuffix(cmp.Or(c.APIURL, defaultAPIURL), "/") + "/" // the name of the method is put behind it
	}
	c.RequestTimeout = cmp.Or(c.RequestTimeout, defaultRequestTimeout)
	return c
}

// Within returns how long one request may take before the handler gives up on it.
func (c Config) Within() time.Duration { return c.WithDefaults().RequestTimeout }
