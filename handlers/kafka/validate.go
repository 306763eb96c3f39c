package kafka

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/handlers/internal/hostport"
	"github.com/notifyd/notifyd/handlers/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
)

// maxTopic is the length of a topic's name, in bytes, that Kafka allows.
const maxTopic = 249

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its
// cure. It reads no files: [New] does.
func (c Config) Validate() error {
	_, err := parseTemplates(c)
	return errors.Join(c.where(), err, c.Config.Validate(), c.security(), c.limits(), c.SchemaRegistry.validate(c.Config))
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
		if (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && (b < '0' || b > '9') && b != '.' && b != '_' && b != '-' {
			return errors.New("must be letters, digits, dots, dashes and underscores")
		}
	}
	return nil
}

func (c Config) security() error {
	errs := []error{tlsconf.Check(c.TLS)}
	if c.SASL == nil {
		return errors.Join(errs...)
	}
	errs = append(errs, field.Under("sasl", c.SASL.validate()))
	readable := c.SASL.Mechanism == SASLPlain || c.SASL.Mechanism == SASLOAuthBearer
	if readable && c.TLS == nil && !c.SASL.AllowUnencrypted && slices.ContainsFunc(c.brokers(), hostport.IsRemote) {
		errs = append(errs, field.Errorf("sasl.mechanism", "%s would be readable on the way: set tls: {}, or mechanism: %s, or allow_unencrypted: true",
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
		if !s.Token.IsZero() || s.TokenFile != "" {
			wrong("token", "is for %s: take it out", SASLOAuthBearer)
		}
	case SASLOAuthBearer:
		if s.Token.IsZero() == (s.TokenFile == "") {
			wrong("token", "set either token or token_file")
		}
		if s.Username != "" || !s.Password.IsZero() {
			wrong("username", "has no effect with %s: take username and password out", SASLOAuthBearer)
		}
	case "":
		wrong("mechanism", "missing: use %s", strings.Join(mechanisms(), ", "))
	default:
		wrong("mechanism", "unknown word %q: use %s", s.Mechanism, strings.Join(mechanisms(), ", "))
	}
	return errors.Join(errs...)
}

func mechanisms() []string {
	return []string{SASLPlain, SASLSCRAM256, SASLSCRAM512, SASLOAuthBearer}
}

func (c Config) limits() error {
	errs := []error{
		field.Word("compression", c.Compression, CompressionNone, CompressionSnappy, CompressionLZ4, CompressionZstd, CompressionGzip),
		field.Between("max_message_bytes", c.MaxMessageBytes, minMaxMessageBytes, limitMaxMessageBytes),
		field.Timeout("delivery_timeout", c.DeliveryTimeout, maxDeliveryTimeout, defaultDeliveryTimeout),
	}
	if c.TransactionalID != "" && !c.Transactional && !c.ExactlyOnce {
		errs = append(errs, field.Errorf("transactional_id", "has no effect without transactional: true or exactly_once: true: take it out"))
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
