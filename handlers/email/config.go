package email

import (
	"cmp"
	"encoding/json"
	"io/fs"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/internal/credential"
)

// The values of [Config.TLS].
const (
	TLSMandatory     = "mandatory"
	TLSOpportunistic = "opportunistic"
	TLSImplicit      = "implicit"
	TLSNone          = "none"
)

// The values of [Config.Auth].
const (
	AuthAuto        = "auto"
	AuthPlain       = "plain"
	AuthLogin       = "login"
	AuthCRAMMD5     = "cram-md5"
	AuthSCRAMSHA1   = "scram-sha-1"
	AuthSCRAMSHA256 = "scram-sha-256"
	AuthXOAUTH2     = "xoauth2"
)

// The values of [Config.MaybeSent].
const (
	MaybeSentRetry  = "retry"
	MaybeSentAccept = "accept"
)

const (
	// defaultConnections keeps two mails in flight: enough for some ten mails a
	// second, and below the limit of any provider.
	defaultConnections = 2
	maxConnections     = 100
	// defaultConnectionMails: servers have limits of 100 and more, and a new connection meets a new
	// member of a cluster.
	defaultConnectionMails = 100
	maxConnectionMails     = 10_000
	// defaultConnectTimeout covers TCP, greeting, TLS and AUTH. Some servers
	// delay their greeting by a few seconds to detect spammers.
	defaultConnectTimeout = 15 * time.Second
	// defaultSendTimeout covers MAIL to the reply after the final dot, which
	// servers give only after their content filters have run.
	defaultSendTimeout = 60 * time.Second
)

// DefaultLane returns the recommended settings of a lane: a few mails at a time, and time
// for connecting and sending together. A program that uses it sets [Config.Connections] to
// the same number.
func DefaultLane() delivery.Lane {
	return delivery.Lane{Concurrency: 4, Timeout: 90 * time.Second}
}

// Config describes the mails and where to send them. Fields of the kind
// "template" are templates over the event: .Event, .Payload and .Headers.
type Config struct {
	// Name or address of the mail server.
	Host string `json:"host" yaml:"host" unset:"required"`

	// TCP port.
	Port int `json:"port,omitempty" yaml:"port,omitempty" kind:"1 to 65535" unset:"587; 465 with 'tls: implicit', 25 with 'tls: none'"`

	// Name for AUTH; with `password`, or neither.
	Username string `json:"username,omitempty" yaml:"username,omitempty"`

	// Password for AUTH.
	Password handlers.Secret `json:"password,omitzero" yaml:"password,omitempty"`

	// Mechanism of AUTH; `auto` takes the best that the server offers for a
	// password. `xoauth2` needs a token.
	//
	// The default is auto.
	Auth string `json:"auth,omitempty" yaml:"auth,omitempty" kind:"'auto', 'plain', 'login', 'cram-md5', 'scram-sha-1', 'scram-sha-256', 'xoauth2'"`

	// File with the token for `xoauth2`, relative to the configuration file. It is
	// read for each connection, so it may change.
	TokenFile string `json:"token_file,omitempty" yaml:"token_file,omitempty" kind:"path"`

	// Program with its arguments that prints the token for `xoauth2` on one line.
	// It is run without a shell, for a new connection, and has 8 s.
	TokenCommand []string `json:"token_command,omitempty" yaml:"token_command,omitempty" kind:"list of strings"`

	// How long the output of `token_command` is used for new connections: less than
	// the token is valid.
	TokenLifetime time.Duration `json:"token_lifetime,omitempty" yaml:"token_lifetime,omitempty" unset:"'1m'"`

	// `mandatory` is STARTTLS, and no mail without it; `opportunistic` is STARTTLS
	// if offered; `implicit` is TLS from the first byte. A password over `none` is
	// refused, except to this machine.
	//
	// The default is mandatory.
	TLS string `json:"tls,omitempty" yaml:"tls,omitempty" kind:"'mandatory', 'opportunistic', 'implicit', 'none'"`

	// PEM certificates to trust, relative to the configuration file.
	CAFile string `json:"ca_file,omitempty" yaml:"ca_file,omitempty" kind:"path" unset:"the system's certificates"`

	// Name in the server's certificate.
	ServerName string `json:"server_name,omitempty" yaml:"server_name,omitempty" unset:"'host'"`

	// Name to greet the server with. Many servers refuse every mail after a name
	// without a dot.
	//
	// See [Config.Warnings].
	HELO string `json:"helo,omitempty" yaml:"helo,omitempty" unset:"this machine's name; the domain of 'from' if that name has no dot"`

	// Sender, such as `Shop <shop@example.com>`.
	From string `json:"from" yaml:"from" kind:"template" unset:"required"`

	// Recipients; a value is one address, and a template may yield several with
	// commas between them. All recipients together are at most 100.
	//
	// Each template may yield no address at all, but all together yield at least
	// one. The function address makes a name out of a payload safe. If the server
	// refuses one recipient, no recipient gets the mail.
	To List `json:"to,omitempty" yaml:"to,omitempty" kind:"list of templates" unset:"'to', 'cc' or 'bcc' is required"`

	// Recipients of a copy.
	Cc List `json:"cc,omitempty" yaml:"cc,omitempty" kind:"list of templates"`

	// Recipients of a copy whom the others do not see.
	Bcc List `json:"bcc,omitempty" yaml:"bcc,omitempty" kind:"list of templates"`

	// Address that answers go to.
	ReplyTo string `json:"reply_to,omitempty" yaml:"reply_to,omitempty" kind:"template"`

	// Subject; line ends become spaces.
	Subject string `json:"subject,omitempty" yaml:"subject,omitempty" kind:"template" unset:"required; with 'templates', a file can define it"`

	// Plain text body; with `templates`, its file there, such as `order/placed.txt`.
	//
	// If there is HTML too, the reader's program chooses.
	Text string `json:"text,omitempty" yaml:"text,omitempty" kind:"template" unset:"'text' or 'html' is required"`

	// HTML body; with `templates`, its file there, such as `order/placed.html`. Values are escaped.
	HTML string `json:"html,omitempty" yaml:"html,omitempty" kind:"template"`

	// Folder with templates in files, relative to the configuration file: files that end in `.txt` or `.html`. They are read
	// at the start and at a reload.
	//
	// A file calls another by its name without the ending: {{ template "footer" . }}.
	Templates string `json:"templates,omitempty" yaml:"templates,omitempty" kind:"path"`

	// TemplatesFS is the folder of a Go program, such as an [embed.FS], in place of Templates.
	TemplatesFS fs.FS `json:"-" yaml:"-"`

	// Files of `templates` around the bodies, one of each kind: `base.html` around `html`, `base.txt` around `text`. The body
	// stands where a layout has `{{ template "content" . }}`.
	Layout List `json:"layout,omitempty" yaml:"layout,omitempty" kind:"list of paths"`

	// Language of the mail, such as `de-AT`. It chooses `order/placed.de.html` in place of `order/placed.html`, and how
	// `money`, `number` and `date` write. A language that is malformed, or has no file, counts as `default_language`.
	Language string `json:"language,omitempty" yaml:"language,omitempty" kind:"template"`

	// Language of the files that have none in their name.
	//
	// The default is en.
	DefaultLanguage string `json:"default_language,omitempty" yaml:"default_language,omitempty" unset:"'en'"`

	// Further headers by name; one that yields nothing is left out.
	Headers map[string]string `json:"headers,omitempty" yaml:"headers,omitempty" kind:"mapping of templates"`

	// Right half of the Message-ID.
	MessageIDDomain string `json:"message_id_domain,omitempty" yaml:"message_id_domain,omitempty" unset:"the domain of 'from'"`

	// Most connections to the mail server; each sends one mail at a time.
	//
	// In a Go program the default is 2.
	Connections int `json:"connections,omitempty" yaml:"connections,omitempty" kind:"1 to 100" unset:"'concurrency'"`

	// Most mails on one connection, refused ones included.
	//
	// The default is 100.
	MaxConnectionMails int `json:"max_connection_mails,omitempty" yaml:"max_connection_mails,omitempty" kind:"1 to 10000"`

	// Longest use of one connection. A new connection looks the server's name up
	// again.
	//
	// The default is 5m.
	MaxConnectionAge time.Duration `json:"max_connection_age,omitempty" yaml:"max_connection_age,omitempty"`

	// Longest time for connecting: TCP, greeting, TLS and AUTH.
	//
	// The default is 15s.
	ConnectTimeout time.Duration `json:"connect_timeout,omitempty" yaml:"connect_timeout,omitempty"`

	// Longest time for sending one mail.
	//
	// The default is 1m.
	SendTimeout time.Duration `json:"send_timeout,omitempty" yaml:"send_timeout,omitempty"`

	// What to do if the connection is lost after the whole mail and before the
	// answer: `retry` sends it again, and it may arrive twice; `accept` takes it
	// for sent, and it may not arrive at all.
	//
	// The default is retry. A mail that arrives twice has the same Message-ID.
	MaybeSent string `json:"maybe_sent,omitempty" yaml:"maybe_sent,omitempty" kind:"'retry', 'accept'"`
}

// List is a list of texts that may be written as one text where there is but one.
type List []string

// UnmarshalYAML takes a text or a list of them. This form of the method needs
// no import of a YAML package.
func (l *List) UnmarshalYAML(decode func(any) error) error {
	var one string
	if decode(&one) == nil {
		*l = List{one}
		return nil
	}
	return decode((*[]string)(l))
}

// UnmarshalJSON takes a text or a list of them.
func (l *List) UnmarshalJSON(data []byte) error {
	return l.UnmarshalYAML(func(v any) error { return json.Unmarshal(data, v) })
}

// WithDefaults returns a copy with every default filled in that is not another setting.
func (c Config) WithDefaults() Config {
	c.TLS = cmp.Or(c.TLS, TLSMandatory)
	c.Auth = cmp.Or(c.Auth, AuthAuto)
	if len(c.TokenCommand) > 0 {
		c.TokenLifetime = cmp.Or(c.TokenLifetime, credential.DefaultLifetime)
	}

	c.MaybeSent = cmp.Or(c.MaybeSent, MaybeSentRetry)
	c.Connections = cmp.Or(c.Connections, defaultConnections)
	c.MaxConnectionMails = cmp.Or(c.MaxConnectionMails, defaultConnectionMails)
	c.MaxConnectionAge = cmp.Or(c.MaxConnectionAge, idle.MaxAge)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, defaultConnectTimeout)
	c.SendTimeout = cmp.Or(c.SendTimeout, defaultSendTimeout)

	if c.Port == 0 {
		switch c.TLS {
		case TLSImplicit:
			c.Port = 465
		case TLSNone:
			c.Port = 25
		default:
			c.Port = 587
		}
	}

	return c
}
