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

// Config describes the messages and where to send them. Fields marked
// "template" are templates over the event: .Event, .Payload and .Headers.
type Config struct {
	// Token is the bot token of the app, "xoxb-...". Set it, or WebhookURL. [handlers.NewSecret] makes the Token.
	Token handlers.Secret `json:"token,omitzero" yaml:"token,omitempty" jsonschema_description:"Bot token of the app, 'xoxb-...'." unset:"'token' or 'webhook_url' is required"`
	// WebhookURL is the URL of an incoming webhook, which stands for one channel.
	// It is a secret: the URL alone is enough to post. [handlers.NewSecret] makes the WebhookURL.
	WebhookURL handlers.Secret `json:"webhook_url,omitzero" yaml:"webhook_url,omitempty" jsonschema_description:"URL of an incoming webhook, which stands for one channel, in place of 'token' and 'channel'. The URL alone is enough to post."`
	// Channel is the id of the channel, or its name (template). An id keeps
	// working when the channel is renamed. Required with Token.
	Channel string `json:"channel,omitempty" yaml:"channel,omitempty" jsonschema_description:"Channel: its id, such as 'C0123456789', or its name. An id outlives a renaming." kind:"template" unset:"required with 'token'"`

	// Text is the text (template); with Blocks, notifications show it. One of
	// the two is required.
	Text string `json:"text,omitempty" yaml:"text,omitempty" jsonschema_description:"Text; with 'blocks', what notifications show." kind:"template" unset:"'text' or 'blocks' is required"`
	// Blocks is a JSON array of Block Kit blocks (template). Write values within
	// quotes, or as {{ json .Payload.x }}.
	Blocks string `json:"blocks,omitempty" yaml:"blocks,omitempty" jsonschema_description:"JSON array of Block Kit blocks. Write values within quotes, or as '{{ json .Payload.x }}'." kind:"template"`
	// RawValues leaves &, < and > in values of the event as they are, in Text
	// and Blocks. The default escapes them, so that a value is shown and not
	// interpreted: "<!channel>" in a payload would notify everybody.
	RawValues bool `json:"raw_values,omitempty" yaml:"raw_values,omitempty" jsonschema_description:"Do not escape '&', '<' and '>' in values: values can then contain links and mention people."`
	// ThreadTS is the timestamp of the message to reply to (template). With an empty
	// result the message starts no thread.
	ThreadTS string `json:"thread_ts,omitempty" yaml:"thread_ts,omitempty" jsonschema_description:"Timestamp of the message to reply to, such as '1700000000.000100'. An empty result means no thread." kind:"template"`
	// UnfurlLinks and UnfurlMedia decide whether Slack shows previews of links
	// to pages and to media; nil is Slack's own default.
	UnfurlLinks *bool `json:"unfurl_links,omitempty" yaml:"unfurl_links,omitempty" jsonschema_description:"Whether Slack shows previews of linked pages." unset:"Slack's own choice"`
	UnfurlMedia *bool `json:"unfurl_media,omitempty" yaml:"unfurl_media,omitempty" jsonschema_description:"Whether Slack shows previews of linked media." unset:"Slack's own choice"`
	// Username, IconEmoji and IconURL change how the sender looks (templates).
	// With Token they need the scope chat:write.customize.
	Username  string `json:"username,omitempty" yaml:"username,omitempty" jsonschema_description:"Sender's name. Needs the scope 'chat:write.customize'." kind:"template" unset:"the app's"`
	IconEmoji string `json:"icon_emoji,omitempty" yaml:"icon_emoji,omitempty" jsonschema_description:"Sender's emoji, such as ':package:'; not with 'icon_url'. Needs the scope 'chat:write.customize'." kind:"template" unset:"the app's"`
	IconURL   string `json:"icon_url,omitempty" yaml:"icon_url,omitempty" jsonschema_description:"URL of the sender's picture. Needs the scope 'chat:write.customize'." kind:"template" unset:"the app's"`

	// APIURL is the URL of the Web API; the default is https://slack.com/api/.
	APIURL string `json:"api_url,omitempty" yaml:"api_url,omitempty" jsonschema_description:"URL of the Web API: 'https://slack-gov.com/api/' for GovSlack, or a gateway of your own." kind:"URL"`
	// TLS is for a gateway with a private certificate; nil trusts the system's
	// authorities.
	TLS *handlers.TLS `json:"tls,omitempty" yaml:"tls,omitempty" jsonschema_description:"Certificates to trust and to present, for a gateway or proxy with its own." unset:"the system's certificates"`
	// RequestTimeout bounds one request, connecting included. The default is 15s.
	RequestTimeout time.Duration `json:"request_timeout,omitempty" yaml:"request_timeout,omitempty" jsonschema_description:"Longest time for one request, connecting included."`
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
