package kafka

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/handlers/internal/hostport"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
)

// maxTopic is the length of a topic's name, in bytes, that Kafka allows.
const maxTopic = 249

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its
// cure. It reads no files: [New] does.
func (c Config) Validate() error {
	_, err := parseTemplates(c)
	return errors.Join(c.where(), err, message.Validate(c.Message), c.security(), c.limits(), c.SchemaRegistry.validate(c.Message))
}

// brokers returns the addresses of the brokers, as host:port.
func (c Config) brokers() []string {
	all := make([]string, len(c.Brokers))
	for i, b := range c.Brokers {
		all[i] = hostport.WithPort(b, defaultPort)
	}
	return all
}

func (c Config) where() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, field.Errorf("brokers", "missing: name one, such as kafka.example.com:9092"))
	}

	for i, b := range c.Brokers {
		if err := hostport.Check(b, "kafka.example.com:9092"); err != nil {
			errs = append(errs, field.Errorf("brokers."+strconv.Itoa(i), "%w", err))
		}
	}

	if c.Topic == "" {
		errs = append(errs, field.Errorf("topic", "missing: name one, such as orders, or {{ .Event.AggregateType }}"))
	}

	return errors.Join(errs...)
}

// checkTopic wants a valid topic name. The error does not repeat the
// name, which may come from a payload.
func checkTopic(name string) error {
	switch {
	case name == "":
		return errors.New("is empty")
	case name == ".", name == "..":
		return errors.New("must be more than dots")
	case len(name) > maxTopic:
		return fmt.Errorf("has more than %d bytes", maxTopic)
	}

	for i := range len(name) {
		b := name[i]
		if !isTopicByte(b) {
			return errors.New("must be letters, digits, dots, dashes and underscores")
		}
	}
	return nil
}

func isTopicByte(b byte) bool {
	isLetter := b|0x20 >= 'a' && b|0x20 <= 'z'
	isDigit := b >= '0' && b <= '9'
	return isLetter || isDigit || strings.IndexByte("._-", b) >= 0
}

func (c Config) security() error {
	errs := []error{tlsconf.Check(c.TLS)}
	if c.SASL == nil {
		return errors.Join(errs...)
	}

	errs = append(errs, field.Under("sasl", c.SASL.validate()))
	if c.SASL.Mechanism == SASLMSKIAM && c.TLS == nil {
		errs = append(errs, field.Errorf("sasl.mechanism", "%s needs encryption: set tls: {}", SASLMSKIAM))
	}

	readable := c.SASL.Mechanism == SASLPlain || c.SASL.Mechanism == SASLOAuthBearer
	isOpen := readable && c.TLS == nil && !c.SASL.AllowUnencrypted
	if isOpen && slices.ContainsFunc(c.brokers(), hostport.IsRemote) {
		errs = append(errs, field.Errorf("sasl.mechanism", "%s would be readable on the way: set tls: {}, or "+
			"mechanism: %s, or allow_unencrypted: true",
			c.SASL.Mechanism, SASLSCRAM256))
	}

	return errors.Join(errs...)
}

// validate returns the mistakes with paths below "sasl".
func (s SASL) validate() error {
	var errs []error

	wrong := func(path, format string, args ...any) { errs = append(errs, field.Errorf(path, format, args...)) }
	switch s.Mechanism {
	case SASLPlain, SASLSCRAM256, SASLSCRAM512:
		if s.Username == "" {
			wrong("username", "missing: %s needs one", s.Mechanism)
		}
		if s.Password.IsZero() {
			wrong("password", "missing: %s needs one, such as ${env:KAFKA_PASSWORD}", s.Mechanism)
		}
		if s.tokenSources() > 0 {
			wrong("token", "is for %s: take it out", SASLOAuthBearer)
		}
	case SASLOAuthBearer, SASLMSKIAM:
		if n := s.tokenSources(); s.Mechanism == SASLOAuthBearer && n != 1 {
			wrong("token", "set either token, token_file, token_command or oauth")
		} else if s.Mechanism == SASLMSKIAM && n > 0 {
			wrong("token", "has no effect with %s: take it out", SASLMSKIAM)
		}
		if s.Username != "" || !s.Password.IsZero() {
			wrong("username", "has no effect with %s: take username and password out", s.Mechanism)
		}
	case "":
		wrong("mechanism", "missing: use %s", strings.Join(mechanisms(), ", "))
	default:
		wrong("mechanism", "unknown word %q: use %s", s.Mechanism, strings.Join(mechanisms(), ", "))
	}

	if len(s.TokenCommand) > 0 && strings.TrimSpace(s.TokenCommand[0]) == "" {
		wrong("token_command", "begins with an empty word: name a program, then its arguments")
	}
	if s.TokenLifetime < 0 || s.TokenLifetime > 0 && len(s.TokenCommand) == 0 {
		wrong("token_lifetime", "must be above 0, and needs token_command")
	}

	if s.OAuth != nil {
		errs = append(errs, field.Under("oauth", s.OAuth.validate()))
	}

	return errors.Join(errs...)
}

// tokenSources counts the sources of a token.
func (s SASL) tokenSources() (n int) {
	for _, is := range []bool{!s.Token.IsZero(), s.TokenFile != "", len(s.TokenCommand) > 0, s.OAuth != nil} {
		if is {
			n++
		}
	}
	return n
}

func (o *OAuth) validate() error {
	var errs []error
	switch u, err := url.Parse(o.TokenURL); {
	case o.TokenURL == "":
		errs = append(errs, field.Errorf("token_url", "missing: write https://login.example.com/oauth2/token"))
	case err != nil || u.Host == "", u.Scheme != "https" && u.Scheme != "http":
		errs = append(errs, field.Errorf("token_url", "is not a URL: write https://login.example.com/oauth2/token"))
	case u.Scheme == "http" && !hostport.IsLoopback(u.Hostname()):
		errs = append(errs, field.Errorf("token_url", "the secret would be readable on the way: use https://"))
	}

	if o.ClientID == "" {
		errs = append(errs, field.Errorf("client_id", "missing: oauth needs one"))
	}
	if o.ClientSecret.IsZero() {
		errs = append(errs, field.Errorf("client_secret", "missing: oauth needs one, such as ${env:KAFKA_CLIENT_SECRET}"))
	}

	return errors.Join(errs...)
}

func mechanisms() []string {
	return []string{SASLPlain, SASLSCRAM256, SASLSCRAM512, SASLOAuthBearer, SASLMSKIAM}
}

func (c Config) limits() error {
	errs := []error{
		field.Word("compression", c.Compression, CompressionNone, CompressionSnappy, CompressionLZ4, CompressionZstd, CompressionGzip),
		field.Between("max_message_bytes", c.MaxMessageBytes, minMaxMessageBytes, limitMaxMessageBytes),
		field.Timeout("delivery_timeout", c.DeliveryTimeout, maxDeliveryTimeout, defaultDeliveryTimeout),
	}

	if c.TransactionalID != "" && !c.Transactional && !c.ExactlyOnce {
		errs = append(errs, field.Errorf("transactional_id", "has no effect without transactional: true or "+
			"exactly_once: true: take it out"))
	}

	if c.Transactional && c.ExactlyOnce {
		errs = append(errs, field.Errorf("transactional", "is a part of exactly_once: true: take one of them out"))
	}

	if c.PositionsTopic != "" && !c.ExactlyOnce {
		errs = append(errs, field.Errorf("positions_topic", "has no effect without exactly_once: true: take it out"))
	}

	if err := checkTopic(c.PositionsTopic); c.PositionsTopic != "" && err != nil {
		errs = append(errs, field.Errorf("positions_topic", "%w", err))
	}

	if c.ExactlyOnce && c.Topic == c.WithDefaults().PositionsTopic {
		errs = append(errs, field.Errorf("topic", "is the topic of the positions: name another one"))
	}

	return errors.Join(errs...)
}
