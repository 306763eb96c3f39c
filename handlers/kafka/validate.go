package kafka

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/internal/field"
)

// maxTopic is the length of a topic's name, in bytes, that Kafka allows.
const maxTopic = 249

// Validate returns all mistakes at once, joined, each as a field.Error with its
// cure. It reads no files: [New] does.
func (c Config) Validate() error {
	_, err := parseTemplates(c)
	return errors.Join(c.where(), err, c.Config.Validate(), c.security(), c.limits())
}

func (c Config) where() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, field.Errorf("brokers", "missing: name one, such as kafka.example.com:9092"))
	}
	for i, b := range c.Brokers {
		if err := checkBroker(b); err != nil {
			errs = append(errs, field.Errorf("brokers."+strconv.Itoa(i), "%w", err))
		}
	}
	if c.Topic == "" {
		errs = append(errs, field.Errorf("topic", "missing: name one, such as orders, or {{ .Event.AggregateType }}"))
	}
	return errors.Join(errs...)
}

// checkBroker wants a host, or host:port.
func checkBroker(addr string) error {
	host, port, err := net.SplitHostPort(withPort(addr))
	n, portErr := strconv.Atoi(port)
	switch {
	case strings.Contains(addr, "://"):
		return errors.New("must be host:port alone: leave out what stands before ://")
	case strings.Contains(addr, ","):
		return errors.New("must be one broker: write several as a list")
	case err != nil || host == "" || strings.ContainsAny(host, "/@ \t\r\n"):
		return errors.New("must be host:port, such as kafka.example.com:9092")
	case portErr != nil || n < 1 || n > 65535:
		return errors.New("must have a port of 1 to 65535")
	default:
		return nil
	}
}

// withPort adds the default port where there is none.
func withPort(addr string) string {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	return net.JoinHostPort(strings.Trim(addr, "[]"), defaultPort)
}

// checkTopic wants what Kafka takes for a topic. The error does not repeat the
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
	var errs []error
	if c.TLS != nil {
		for _, err := range field.Split(c.TLS.Validate()) {
			errs = append(errs, below("tls", err))
		}
	}
	if c.SASL == nil {
		return errors.Join(errs...)
	}
	for _, err := range field.Split(c.SASL.validate()) {
		errs = append(errs, below("sasl", err))
	}
	readable := c.SASL.Mechanism == SASLPlain || c.SASL.Mechanism == SASLOAuthBearer
	if readable && c.TLS == nil && !c.SASL.AllowUnencrypted && slices.ContainsFunc(c.Brokers, isRemote) {
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
			wrong("username", "is of no use with %s: take username and password out", SASLOAuthBearer)
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
	var errs []error
	known := []string{CompressionNone, CompressionSnappy, CompressionLZ4, CompressionZstd, CompressionGzip}
	if c.Compression != "" && !slices.Contains(known, c.Compression) {
		errs = append(errs, field.Errorf("compression", "unknown word %q: use %s", c.Compression, strings.Join(known, ", ")))
	}
	if n := c.MaxMessageBytes; n != 0 && (n < minMaxMessageBytes || n > limitMaxMessageBytes) {
		errs = append(errs, field.Errorf("max_message_bytes", "must be %d to %d, not %d", minMaxMessageBytes, limitMaxMessageBytes, n))
	}
	if d := c.DeliveryTimeout; d < 0 || d > maxDeliveryTimeout {
		errs = append(errs, field.Errorf("delivery_timeout", "must be above 0 and at most %v, such as %v", maxDeliveryTimeout, DefaultDeliveryTimeout))
	}
	if c.TransactionalID != "" && !c.Transactional {
		errs = append(errs, field.Errorf("transactional_id", "is of no use without transactional: true: take it out"))
	}
	return errors.Join(errs...)
}

// below puts a mistake's path under another.
func below(path string, err error) error {
	var fe *field.Error
	if !errors.As(err, &fe) {
		return field.Errorf(path, "%w", err)
	}
	return field.Errorf(path+"."+fe.Path, "%w", fe.Err)
}

// isRemote reports whether a broker may be on another machine.
func isRemote(addr string) bool {
	host, _, err := net.SplitHostPort(withPort(addr))
	if err != nil {
		return false // checkBroker complains
	}
	ip := net.ParseIP(host)
	return !strings.EqualFold(host, "localhost") && (ip == nil || !ip.IsLoopback())
}
