package mqtt

import (
	"cmp"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/hostport"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// maxText is the longest text of the protocol.
const maxText = 65535

// topicMarks begin another level of a topic, or stand for several in the filter of a subscriber.
const topicMarks = "/+#"

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its cure. It reads no files:
// [New] does.
func (c Config) Validate() error {
	_, err := parseTopic(c)
	return errors.Join(c.where(), c.security(), err, message.Validate(c.Message), c.form())
}

func (c Config) where() error {
	var errs []error
	if len(c.Servers) == 0 {
		errs = append(errs, field.Errorf("servers", "missing: name one, such as mqtts://mqtt.example.com:8883"))
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
	errForm := errors.New("must be a URL such as mqtts://mqtt.example.com:8883")
	u, err := url.Parse(text)
	if err != nil || !strings.Contains(text, "://") {
		return errForm
	}

	hasMore := strings.Trim(u.Path, "/") != "" || u.RawQuery != ""
	switch port, portErr := strconv.Atoi(cmp.Or(u.Port(), plainPort)); {
	case u.Scheme != "mqtt" && u.Scheme != "mqtts":
		return errors.New("must begin with mqtts:// or mqtt://")
	case u.User != nil:
		return errors.New("must not hold a user or password: they are settings of their own")
	case strings.Contains(text, ","):
		return errors.New("must be one server: write several as a list")
	case u.Hostname() == "" || hasMore:
		return errForm
	case portErr != nil || port < 1 || port > 65535:
		return errors.New("must have a port of 1 to 65535")
	default:
		return nil
	}
}

// server is one of Config.Servers.
type server struct {
	addr   string // host:port
	host   string
	secure bool
}

// serverOf reads a URL that checkServer has taken.
func serverOf(text string) server {
	u, err := url.Parse(text)
	if err != nil {
		return server{}
	}

	secure := u.Scheme == "mqtts"
	port := plainPort
	if secure {
		port = securePort
	}
	return server{addr: net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port)), host: u.Hostname(), secure: secure}
}

func (c Config) security() error {
	errs := []error{tlsconf.Check(c.TLS), field.Login(c.Username, c.Password, "MQTT_PASSWORD")}
	isSecure := func(s string) bool { return serverOf(s).secure }
	isOpen := func(s string) bool { return !isSecure(s) && !hostport.IsLoopback(serverOf(s).host) }

	if !c.Password.IsZero() && !c.AllowUnencrypted && slices.ContainsFunc(c.Servers, isOpen) {
		errs = append(errs, field.Errorf("password", "would be readable on the way: write mqtts:// for the server, or set allow_unencrypted: true"))
	}
	if c.TLS != nil && len(c.Servers) > 0 && !slices.ContainsFunc(c.Servers, isSecure) {
		errs = append(errs, field.Errorf("tls", "has no effect with mqtt://: write mqtts:// for the server, or take tls out"))
	}
	return errors.Join(errs...)
}

// loadTLS reads the files of the settings. It returns nil if no server has TLS.
func loadTLS(c Config, baseDir string) (*tls.Config, error) {
	if !slices.ContainsFunc(c.Servers, func(s string) bool { return serverOf(s).secure }) {
		return nil, nil //nolint:nilnil // there is none
	}
	conf := c.TLS
	if conf == nil {
		conf = &handlers.TLS{}
	}
	return tlsconf.Load(conf, baseDir)
}

func (c Config) form() error {
	errs := []error{
		field.Timeout("connect_timeout", c.ConnectTimeout, maxTimeout, defaultConnectTimeout),
		field.Timeout("ack_timeout", c.AckTimeout, maxTimeout, defaultAckTimeout),
	}

	if c.Topic == "" {
		errs = append(errs, field.Errorf("topic", "missing: name one, such as orders/created, or orders/{{ .Event.Type }}"))
	}
	if isUnsafe(c.ClientID) || len(c.ClientID) > maxText/2 {
		errs = append(errs, field.Errorf("client_id", "must be a text of one line, without control characters"))
	}
	for _, s := range []struct{ path, text string }{{"username", c.Username}, {"password", c.Password.Reveal()}} {
		if len(s.text) > maxText {
			errs = append(errs, field.Errorf(s.path, "has more than %d bytes", maxText))
		}
	}
	if isUnsafe(c.Username) {
		errs = append(errs, field.Errorf("username", "must be a text of one line, without control characters"))
	}
	return errors.Join(errs...)
}

// parseTopic parses the template, and checks a topic without actions. It returns nil if the topic is empty.
func parseTopic(c Config) (*tmpl.Template, error) {
	if c.Topic == "" {
		return nil, nil //nolint:nilnil // form complains
	}

	t, err := tmpl.Levels(topicMarks).Parse("topic", c.Topic)
	if err != nil {
		return nil, field.Errorf("topic", "%w", err)
	}

	if topic, ok := t.Constant(); ok {
		if err := checkTopic(topic); err != nil {
			return nil, field.Errorf("topic", "%w", err)
		}
	}
	return t, nil
}

// checkTopic wants a topic that can be published to. The error does not repeat the topic, which may come from a
// payload.
func checkTopic(topic string) error {
	switch {
	case topic == "":
		return errors.New("is empty")
	case len(topic) > maxText:
		return errors.New("has more than 65535 bytes")
	case strings.ContainsAny(topic, "+#"):
		return errors.New("must not have wildcards: nothing can be published to + or #")
	case strings.HasPrefix(topic, "$share/"):
		return errors.New("must not begin with $share/: only subscriptions have it")
	case isUnsafe(topic):
		return errors.New("must not have control characters")
	default:
		return nil
	}
}

// checkMade wants a topic, made of an event, that is where the template has it: no value may begin a topic of the broker
// itself, or leave a level empty. A template may have an empty level at its beginning.
func checkMade(topic, template string) error {
	if err := checkTopic(topic); err != nil {
		return err
	}

	if strings.HasPrefix(topic, "$") && !strings.HasPrefix(template, "$") {
		return errors.New("must not begin with $: such topics are the broker's own")
	}

	levels := strings.Split(topic, "/")
	if strings.HasPrefix(template, "/") {
		levels = levels[1:]
	}
	if slices.Contains(levels, "") {
		return errors.New("must not have an empty level: no slash at either end, and no two in a row")
	}
	return nil
}

// isUnsafe reports whether a text has characters over which brokers may end the connection: see section 1.5.4 of the
// specification.
func isUnsafe(s string) bool { return !utf8.ValidString(s) || strings.ContainsFunc(s, isUnsafeRune) }

func isUnsafeRune(r rune) bool {
	isNoncharacter := r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe
	return unicode.IsControl(r) || isNoncharacter
}

// safe returns a text without such characters.
func safe(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r):
			return ' '
		case isUnsafeRune(r):
			return unicode.ReplacementChar
		default:
			return r
		}
	}, strings.ToValidUTF8(s, string(unicode.ReplacementChar)))
}
