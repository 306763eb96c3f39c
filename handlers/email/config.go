package email

import (
	"cmp"
	"encoding/json"
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

// Config describes the mails and where to send them. Fields marked
// "template" are templates over the event: .Event, .Payload and .Headers.
type Config struct {
	// Host is the mail server's name or address. Required.
	Host string `json:"host" yaml:"host" jsonschema_description:"Name or address of the mail server." unset:"required"`
	// Port is its TCP port. The default is 587, with tls: implicit 465, with
	// tls: none 25.
	Port int `json:"port,omitempty" yaml:"port,omitempty" jsonschema_description:"TCP port." kind:"1 to 65535" unset:"587; 465 with 'tls: implicit', 25 with 'tls: none'"`
	// Username and Password are given with AUTH. Set both or none. [handlers.NewSecret] makes the Password.
	Username string          `json:"username,omitempty" yaml:"username,omitempty" jsonschema_description:"Name for AUTH; with 'password', or neither."`
	Password handlers.Secret `json:"password,omitzero" yaml:"password,omitempty" jsonschema_description:"Password for AUTH."`
	// Auth is the mechanism: auto (default), plain, login, cram-md5,
	// scram-sha-1, scram-sha-256 or xoauth2. auto takes the best that the server offers for a password.
	Auth string `json:"auth,omitempty" yaml:"auth,omitempty" jsonschema_description:"Mechanism of AUTH; 'auto' takes the best that the server offers for a password. 'xoauth2' needs a token." kind:"'auto', 'plain', 'login', 'cram-md5', 'scram-sha-1', 'scram-sha-256', 'xoauth2'"`
	// TokenFile and TokenCommand are the source of the token for xoauth2, one of them: a file that another program renews,
	// read for each connection, or a program with its arguments that prints a token on one line. TokenLifetime is how long
	// the output of the program is used for new connections; the default is 1m.
	TokenFile     string        `json:"token_file,omitempty" yaml:"token_file,omitempty" jsonschema_description:"File with the token for 'xoauth2', relative to the configuration file. It is read for each connection, so it may change." kind:"path"`
	TokenCommand  []string      `json:"token_command,omitempty" yaml:"token_command,omitempty" jsonschema_description:"Program with its arguments that prints the token for 'xoauth2' on one line. It is run without a shell, for a new connection, and has 8 s." kind:"list of strings"`
	TokenLifetime time.Duration `json:"token_lifetime,omitempty" yaml:"token_lifetime,omitempty" jsonschema_description:"How long the output of 'token_command' is used for new connections: less than the token is valid."`
	// TLS is mandatory (STARTTLS, and no mail without it; the default),
	// opportunistic (STARTTLS if it is offered), implicit (TLS from the first
	// byte) or none.
	TLS string `json:"tls,omitempty" yaml:"tls,omitempty" jsonschema_description:"'mandatory' is STARTTLS, and no mail without it; 'opportunistic' is STARTTLS if offered; 'implicit' is TLS from the first byte. A password over 'none' is refused, except to this machine." kind:"'mandatory', 'opportunistic', 'implicit', 'none'"`
	// CAFile is a file of PEM certificates to trust in place of the system's,
	// relative to the configuration file.
	CAFile string `json:"ca_file,omitempty" yaml:"ca_file,omitempty" jsonschema_description:"PEM certificates to trust, relative to the configuration file." kind:"path" unset:"the system's certificates"`
	// ServerName is the name in the server's certificate; the default is Host.
	ServerName string `json:"server_name,omitempty" yaml:"server_name,omitempty" jsonschema_description:"Name in the server's certificate." unset:"'host'"`
	// HELO is the name to greet the server with; the default is the host name
	// of this machine if that has a dot, and otherwise the domain of From. See Warnings.
	HELO string `json:"helo,omitempty" yaml:"helo,omitempty" jsonschema_description:"Name to greet the server with. Many servers refuse every mail after a name without a dot." unset:"this machine's name; the domain of 'from' if that name has no dot"`

	// From is the sender (template): "Shop <shop@example.com>". Required.
	From string `json:"from" yaml:"from" jsonschema_description:"Sender, such as 'Shop <shop@example.com>'." kind:"template" unset:"required"`
	// To, Cc and Bcc are the recipients (templates): one text or a list. Each
	// may yield several addresses with commas between them, or none at all, but
	// all together at least one and at most 100. A name out of a payload is
	// safe with the function address. If the server refuses one recipient, none gets
	// the mail.
	To  List `json:"to,omitempty" yaml:"to,omitempty" jsonschema_description:"Recipients; a value is one address, and a template may yield several with commas between them. All recipients together are at most 100." kind:"list of templates" unset:"'to', 'cc' or 'bcc' is required"`
	Cc  List `json:"cc,omitempty" yaml:"cc,omitempty" jsonschema_description:"Recipients of a copy." kind:"list of templates"`
	Bcc List `json:"bcc,omitempty" yaml:"bcc,omitempty" jsonschema_description:"Recipients of a copy whom the others do not see." kind:"list of templates"`
	// ReplyTo is where answers go (template).
	ReplyTo string `json:"reply_to,omitempty" yaml:"reply_to,omitempty" jsonschema_description:"Address that answers go to." kind:"template"`
	// Subject is the subject (template). Required. White space, line ends
	// included, becomes single spaces.
	Subject string `json:"subject" yaml:"subject" jsonschema_description:"Subject; line ends become spaces." kind:"template" unset:"required"`
	// Text and HTML are the bodies (templates). At least one is required; with
	// both the reader's program chooses. Values in HTML are escaped.
	Text string `json:"text,omitempty" yaml:"text,omitempty" jsonschema_description:"Plain text body." kind:"template" unset:"'text', 'html' or the file of one is required"`
	HTML string `json:"html,omitempty" yaml:"html,omitempty" jsonschema_description:"HTML body. Values are escaped." kind:"template"`
	// TextFile and HTMLFile are files with the templates, in place of Text and
	// HTML, relative to the configuration file.
	TextFile string `json:"text_file,omitempty" yaml:"text_file,omitempty" jsonschema_description:"File with the template of the plain text body, in place of 'text'." kind:"path"`
	HTMLFile string `json:"html_file,omitempty" yaml:"html_file,omitempty" jsonschema_description:"File with the template of the HTML body, in place of 'html'." kind:"path"`
	// Headers are further headers (templates). An empty result is left out.
	Headers map[string]string `json:"headers,omitempty" yaml:"headers,omitempty" jsonschema_description:"Further headers by name; one that yields nothing is left out." kind:"mapping of templates"`
	// MessageIDDomain is the right half of the Message-ID; the default is the
	// domain of From.
	MessageIDDomain string `json:"message_id_domain,omitempty" yaml:"message_id_domain,omitempty" jsonschema_description:"Right half of the Message-ID." unset:"the domain of 'from'"`

	// Connections is how many connections there are at most, 1 to 100; the
	// default is 2. Each sends one mail at a time.
	Connections int `json:"connections,omitempty" yaml:"connections,omitempty" jsonschema_description:"Most connections to the mail server; each sends one mail at a time." kind:"1 to 100" unset:"'concurrency'"`
	// MaxConnectionMails is how many mails a connection carries at most, refused ones included, 1 to
	// 10,000; the default is 100.
	MaxConnectionMails int `json:"max_connection_mails,omitempty" yaml:"max_connection_mails,omitempty" jsonschema_description:"Most mails on one connection, refused ones included." kind:"1 to 10000"`
	// MaxConnectionAge is how long a connection is used at most; the default is 5m. A new
	// connection looks the name of the server up again.
	MaxConnectionAge time.Duration `json:"max_connection_age,omitempty" yaml:"max_connection_age,omitempty" jsonschema_description:"Longest use of one connection. A new connection looks the server's name up again."`
	// ConnectTimeout bounds connecting: TCP, greeting, TLS and AUTH. The
	// default is 15s.
	ConnectTimeout time.Duration `json:"connect_timeout,omitempty" yaml:"connect_timeout,omitempty" jsonschema_description:"Longest time for connecting: TCP, greeting, TLS and AUTH."`
	// SendTimeout bounds the sending of one mail. The default is 60s.
	SendTimeout time.Duration `json:"send_timeout,omitempty" yaml:"send_timeout,omitempty" jsonschema_description:"Longest time for sending one mail."`
	// MaybeSent decides about a mail whose connection was lost after the whole mail
	// was written and before the server answered, so that it is unknown whether the
	// mail was sent: retry (default; it may arrive twice, with the same Message-ID)
	// or accept (it may not arrive at all).
	MaybeSent string `json:"maybe_sent,omitempty" yaml:"maybe_sent,omitempty" jsonschema_description:"What to do if the connection is lost after the whole mail and before the answer: 'retry' sends it again, and it may arrive twice; 'accept' takes it for sent, and it may not arrive at all." kind:"'retry', 'accept'"`
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
