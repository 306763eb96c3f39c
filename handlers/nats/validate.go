package nats

import (
	"cmp"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/notifyd/notifyd/handlers/internal/hostport"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// maxSubject is the longest protocol line of NATS servers (max_control_line), less
// the rest of the line.
const maxSubject = 3500

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its
// cure. It reads no files: [New] does.
func (c Config) Validate() error {
	_, err := parseSubject(c)
	return errors.Join(c.where(), c.security(), err, message.Validate(c.Message), c.form())
}

func (c Config) where() error {
	var errs []error
	if len(c.Servers) == 0 {
		errs = append(errs, field.Errorf("servers", "missing: name one, such as nats://nats.example.com:4222"))
	}
	for i, s := range c.Servers {
		if err := checkServer(s); err != nil {
			errs = append(errs, field.Errorf("servers."+strconv.Itoa(i), "%w", err))
		}
	}
	return errors.Join(errs...)
}

// checkServer wants a URL without a user in it. The error does not repeat it.
func checkServer(text string) error {
	u, err := url.Parse(text)
	if err != nil || !strings.Contains(text, "://") {
		return errors.New("must be a URL such as nats://nats.example.com:4222")
	}

	switch port, portErr := strconv.Atoi(cmp.Or(u.Port(), defaultPort)); {
	case u.Scheme != "nats" && u.Scheme != "tls":
		return errors.New("must begin with nats:// or tls://")
	case u.User != nil:
		return errors.New("must not hold a user or password: they are settings of their own")
	case strings.Contains(text, ","):
		return errors.New("must be one server: write several as a list")
	case u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
		return errors.New("must be a URL such as nats://nats.example.com:4222")
	case portErr != nil || port < 1 || port > 65535:
		return errors.New("must have a port of 1 to 65535")
	default:
		return nil
	}
}

func (c Config) security() error {
	errs := []error{tlsconf.Check(c.TLS)}
	wrong := func(path, text string) { errs = append(errs, field.Errorf(path, "%s", text)) }

	set := []bool{
		c.Username != "" || !c.Password.IsZero(),
		!c.Token.IsZero(),
		c.CredentialsFile != "",
		!c.NKeySeed.IsZero(),
	}
	ways := 0
	for _, isSet := range set {
		if isSet {
			ways++
		}
	}

	if ways > 1 {
		wrong("username", "there are several ways to log in: keep one of username and password, token, credentials_file, nkey_seed")
	} else {
		errs = append(errs, field.Login(c.Username, c.Password, "NATS_PASSWORD"))
	}

	if !c.NKeySeed.IsZero() {
		if _, err := userKey(c.NKeySeed.Reveal()); err != nil {
			errs = append(errs, field.Errorf("nkey_seed", "%w", err))
		}
	}

	readable := !c.Password.IsZero() || !c.Token.IsZero()
	isOpen := readable && c.TLS == nil && !c.AllowUnencrypted
	if isOpen && slices.ContainsFunc(c.Servers, isRemotePlain) {
		path := "password"
		if c.Password.IsZero() {
			path = "token"
		}
		wrong(path, "would be readable on the way: set tls: {} (or tls:// for the server), or allow_unencrypted: true")
	}

	return errors.Join(errs...)
}

// userKey wants the seed of a user. The error shows no part of it.
func userKey(seed string) (nkeys.KeyPair, error) {
	kind, _, err := nkeys.DecodeSeed([]byte(seed))
	if err != nil || kind != nkeys.PrefixByteUser {
		return nil, errors.New("is not the seed of a user: it begins with SU and has 58 letters")
	}
	return nkeys.FromSeed([]byte(seed))
}

func (c Config) form() error {
	errs := []error{
		field.Word("mode", c.Mode, ModeJetStream, ModeCore),
		field.Timeout("connect_timeout", c.ConnectTimeout, maxTimeout, defaultConnectTimeout),
		field.Timeout("ack_timeout", c.AckTimeout, maxTimeout, defaultAckTimeout),
	}
	wrong := func(path, format string, args ...any) { errs = append(errs, field.Errorf(path, format, args...)) }

	if c.Subject == "" {
		wrong("subject", "missing: name one, such as orders.created, or orders.{{ .Event.Type }}")
	}

	if c.Mode == ModeCore && c.Stream != "" {
		wrong("stream", "has no effect with mode: %s, which has no streams: take one of them out", ModeCore)
	}

	if strings.ContainsAny(c.Stream, ".*>/\\ \t\r\n") {
		wrong("stream", "must be the name of a stream: without dots, stars, slashes and blanks")
	}

	return errors.Join(errs...)
}

// parseSubject parses the template, and checks a subject without actions. It
// returns nil if the subject is empty.
func parseSubject(c Config) (*tmpl.Template, error) {
	if c.Subject == "" {
		return nil, nil //nolint:nilnil // form complains
	}
	t, err := tmpl.NATSSubject.Parse("subject", c.Subject)
	if err != nil {
		return nil, field.Errorf("subject", "%w", err)
	}

	if subject, ok := t.Constant(); ok {
		if err := checkSubject(subject); err != nil {
			return nil, field.Errorf("subject", "%w", err)
		}
	}

	return t, nil
}

// checkSubject wants a subject that can be published to. The error does not repeat the
// subject, which may come from a payload.
func checkSubject(subject string) error {
	switch {
	case subject == "":
		return errors.New("is empty")
	case len(subject) > maxSubject:
		return errors.New("has more than 3500 bytes")
	case strings.HasPrefix(subject, "$"):
		return errors.New("must not begin with $: such subjects are NATS's own")
	case strings.ContainsFunc(subject, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return errors.New("must not have blanks or control characters")
	}

	for part := range strings.SplitSeq(subject, ".") {
		switch part {
		case "":
			return errors.New("must not have an empty part: no dot at either end, and no two in a row")
		case "*", ">":
			return errors.New("must not have wildcards: nothing can be published to * or >")
		}
	}

	return nil
}

// isRemotePlain reports whether a server may be on another machine and is
// reached without TLS.
func isRemotePlain(server string) bool {
	u, err := url.Parse(server)
	return err == nil && u.Scheme != "tls" && !hostport.IsLoopback(u.Hostname()) // checkServer complains of an error
}
