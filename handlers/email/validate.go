package email

import (
	"errors"
	"net/mail"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/hostport"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/internal/field"
)

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its
// cure. It reads no files: [New] does.
func (c Config) Validate() error {
	_, err := parseTemplates(c)
	return errors.Join(c.server(), c.security(), c.limits(), c.content(), err)
}

// Warnings returns settings that are valid and probably not intended, joined, each a [*handlers.FieldError] with its cure. Many
// servers refuse a greeting that is not a full name; without HELO it depends on the name of this machine. A file without a
// translation that other files of the folder have is a warning too.
func (c Config) Warnings(options ...handlers.Option) error {
	return errors.Join(c.greetingWarning(), untranslated(c, handlers.Apply(options).BaseDir))
}

func (c Config) greetingWarning() error {
	const cure = "many servers refuse every mail after such a greeting: set helo to the full name of this machine, " +
		"such as relay.example.com"

	switch name := greetingOf(c, machineName()); {
	case isFullName(name):
		return nil
	case c.HELO != "":
		return field.Errorf("helo", "has no dot, and %s", cure)
	default:
		return field.Errorf("helo", "is not set, the name of this machine, %s, has no dot, and %s", name, cure)
	}
}

func (c Config) server() error {
	var errs []error
	if c.Host == "" {
		errs = append(errs, field.Errorf("host", "missing: name the mail server, such as smtp.example.com"))
	} else if err := hostport.CheckHost(c.Host); err != nil {
		errs = append(errs, field.Errorf("host", "%w", err))
	}

	errs = append(errs, field.Between("port", c.Port, 1, 65535))
	isOtherTLS := slices.Contains([]string{"", TLSMandatory, TLSOpportunistic}, c.TLS)
	if c.Port == 465 && isOtherTLS {
		errs = append(errs, field.Errorf("tls", "port 465 speaks TLS from the first byte: set tls: implicit, or port: 587"))
	}

	if strings.ContainsAny(c.HELO, " \t\r\n") {
		errs = append(errs, field.Errorf("helo", "must be a host name without white space"))
	}
	if c.MessageIDDomain != "" && !isDotAtom(c.MessageIDDomain) {
		errs = append(errs, field.Errorf("message_id_domain", "must be a domain such as example.com"))
	}

	return errors.Join(errs...)
}

func (c Config) security() error {
	errs := []error{
		field.Word("tls", c.TLS, TLSMandatory, TLSOpportunistic, TLSImplicit, TLSNone),
		field.Word("auth", c.Auth, AuthAuto, AuthPlain, AuthLogin, AuthCRAMMD5, AuthSCRAMSHA1, AuthSCRAMSHA256, AuthXOAUTH2),
		c.login(),
	}

	hasLogin := c.Username != "" || !c.Password.IsZero()
	needsLogin := !slices.Contains([]string{"", AuthAuto, AuthXOAUTH2}, c.Auth)
	if needsLogin && !hasLogin {
		errs = append(errs, field.Errorf("auth", "needs username and password: set them, or take auth out"))
	}

	readable := slices.Contains([]string{"", AuthAuto, AuthPlain, AuthLogin, AuthXOAUTH2}, c.Auth)
	isOpen := readable && c.TLS == TLSNone && c.Username != ""
	if isOpen && !hostport.IsLoopback(c.Host) {
		errs = append(errs, field.Errorf("auth", "would send the password unencrypted: set tls: mandatory, or auth: %s", AuthSCRAMSHA256))
	}

	if c.TLS == TLSNone && c.CAFile != "" {
		errs = append(errs, field.Errorf("ca_file", "has no effect with tls: none: take one of them out"))
	}
	if c.TLS == TLSNone && c.ServerName != "" {
		errs = append(errs, field.Errorf("server_name", "has no effect with tls: none: take one of them out"))
	}

	return errors.Join(errs...)
}

// login checks who logs in.
func (c Config) login() error {
	sources := 0
	if c.TokenFile != "" {
		sources++
	}
	if len(c.TokenCommand) > 0 {
		sources++
	}

	var errs []error
	switch {
	case c.Auth != AuthXOAUTH2 && sources > 0:
		errs = append(errs, field.Errorf("auth", "must be %s for a token: set it, or take token_file and token_command out", AuthXOAUTH2))
	case c.Auth != AuthXOAUTH2:
		errs = append(errs, field.Login(c.Username, c.Password, "SMTP_PASSWORD"))
	case sources != 1:
		errs = append(errs, field.Errorf("token_command", "set either token_command or token_file: auth: %s needs a token", AuthXOAUTH2))
	}

	if c.Auth == AuthXOAUTH2 && c.Username == "" {
		errs = append(errs, field.Errorf("username", "is empty: auth: %s needs the name of the mailbox", AuthXOAUTH2))
	}
	if c.Auth == AuthXOAUTH2 && !c.Password.IsZero() {
		errs = append(errs, field.Errorf("password", "has no effect with auth: %s: take it out", AuthXOAUTH2))
	}
	if len(c.TokenCommand) > 0 && strings.TrimSpace(c.TokenCommand[0]) == "" {
		errs = append(errs, field.Errorf("token_command", "begins with an empty word: name a program, then its arguments"))
	}
	if c.TokenLifetime < 0 || c.TokenLifetime > 0 && len(c.TokenCommand) == 0 {
		errs = append(errs, field.Errorf("token_lifetime", "must be above 0, and needs token_command"))
	}

	return errors.Join(errs...)
}

func (c Config) limits() error {
	return errors.Join(
		field.Between("connections", c.Connections, 1, maxConnections),
		field.Between("max_connection_mails", c.MaxConnectionMails, 1, maxConnectionMails),
		field.Timeout("max_connection_age", c.MaxConnectionAge, 0, idle.MaxAge),
		field.Timeout("connect_timeout", c.ConnectTimeout, 0, defaultConnectTimeout),
		field.Timeout("send_timeout", c.SendTimeout, 0, defaultSendTimeout),
		field.Word("maybe_sent", c.MaybeSent, MaybeSentRetry, MaybeSentAccept),
	)
}

func (c Config) content() error {
	var errs []error
	if c.From == "" {
		errs = append(errs, field.Errorf("from", "missing: name the sender, such as Shop <shop@example.com>"))
	}
	if len(c.To)+len(c.Cc)+len(c.Bcc) == 0 {
		errs = append(errs, field.Errorf("to", "missing: name a recipient, such as {{ .Payload.email }}"))
	}
	if c.Subject == "" && !c.hasFolder() {
		errs = append(errs, field.Errorf("subject", "missing: write one, such as Order {{ .Event.AggregateID }}"))
	}
	if c.Text == "" && c.HTML == "" {
		errs = append(errs, field.Errorf("text", "missing: write text or html"))
	}

	errs = append(errs, c.files(), c.languages())

	for _, name := range sortedKeys(c.Headers) {
		if cure := headerName(name); cure != "" {
			errs = append(errs, field.Errorf("headers."+name, "%s", cure))
		}
	}

	return errors.Join(errs...)
}

// headerName returns the mistake in the name of an extra header, or "".
func headerName(name string) string {
	lower := strings.ToLower(name)
	switch lower {
	case "from", "to", "cc", "bcc", "reply-to", "subject", "message-id":
		setting := strings.ReplaceAll(lower, "-", "_")
		if lower == "message-id" {
			setting = "message_id_domain"
		}
		return "is not set here: use " + setting
	case "date", "sender", "return-path", "received", "mime-version":
		return "is set by notifyd or by mail servers: take it out"
	}

	if strings.HasPrefix(lower, "content-") || strings.HasPrefix(lower, "x-notifyd-") {
		return "is set by notifyd: take it out"
	}

	for _, r := range name {
		if r <= ' ' || r >= 0x7f || r == ':' {
			return "must be a header name of letters, digits and hyphens"
		}
	}

	if name == "" || len(name) > 76 {
		return "must be a header name of 1 to 76 letters"
	}
	return ""
}

// isDotAtom reports whether s may stand in a Message-ID.
func isDotAtom(s string) bool {
	a, err := mail.ParseAddress("x@" + s)
	isMark := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("[>", r) }
	return err == nil && a.Address == "x@"+s && !strings.ContainsFunc(s, isMark)
}
