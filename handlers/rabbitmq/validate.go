package rabbitmq

import (
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/notifyd/notifyd/handlers/internal/hostport"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
)

// maxShort is the length of a short string in the protocol, in bytes: names,
// routing keys and all properties but the headers.
const maxShort = 255

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its
// cure. It reads no files: [New] does.
func (c Config) Validate() error {
	_, err := parseTemplates(c)
	return errors.Join(c.server(), c.security(), c.limits(), c.routing(), c.Declare.validate(), message.Validate(c.Message), err)
}

func (c Config) server() error {
	var errs []error
	if !c.URL.IsZero() {
		for name, set := range map[string]bool{
			"host":     c.Host != "",
			"port":     c.Port != 0,
			"username": c.Username != "",
			"password": !c.Password.IsZero(),
			"vhost":    c.Vhost != "",
		} {
			if set {
				errs = append(errs, field.Errorf(name, "url is set too: take one of them out"))
			}
		}
	}

	if _, err := c.target(); err != nil {
		errs = append(errs, err)
	}

	if err := hostport.CheckHost(c.Host); err != nil {
		errs = append(errs, field.Errorf("host", "%w", err))
	}

	errs = append(errs, field.Between("port", c.Port, 1, 65535))
	return errors.Join(errs...)
}

func (c Config) security() error {
	errs := []error{
		field.Word("auth", c.Auth, AuthPlain, AuthExternal),
		field.Login(c.Username, c.Password, "RABBITMQ_PASSWORD"),
		tlsconf.Check(c.TLS),
	}

	if c.Auth == AuthExternal {
		if c.TLS == nil || c.TLS.CertFile == "" {
			errs = append(errs, field.Errorf("auth", "external shows a certificate: set tls.cert_file and "+
				"tls.key_file, or auth: %s", AuthPlain))
		}
		if c.Username != "" {
			errs = append(errs, field.Errorf("username", "has no effect with auth: external, where the certificate is "+
				"the identity: take it out"))
		}
	}

	return errors.Join(errs...)
}

func (c Config) limits() error {
	errs := []error{
		field.Timeout("connect_timeout", c.ConnectTimeout, 0, defaultConnectTimeout),
		field.Timeout("write_timeout", c.WriteTimeout, 0, defaultWriteTimeout),
		field.Timeout("confirm_timeout", c.ConfirmTimeout, 0, defaultConfirmTimeout),
		field.Between("heartbeat", c.Heartbeat, minHeartbeat, maxHeartbeat),
		field.Between("max_message_bytes", c.MaxMessageBytes, 1, limitMaxMessageBytes),
	}

	for name, text := range map[string]string{"app_id": c.AppID, "connection_name": c.ConnectionName} {
		if len(text) > maxShort {
			errs = append(errs, field.Errorf(name, "must have %d bytes at most, not %d", maxShort, len(text)))
		}
	}

	return errors.Join(errs...)
}

func (c Config) routing() error {
	errs := []error{field.Word("unroutable", c.Unroutable, UnroutableAuto, UnroutableRetry, UnroutableWait, UnroutableDrop)}
	if c.Exchange == "" && c.RoutingKey == "" {
		errs = append(errs, field.Errorf("exchange", "missing: name the exchange, or write the name of a queue into routing_key"))
	}
	return errors.Join(errs...)
}

func (d Declare) validate() error {
	var errs []error
	name := func(path, name string) {
		switch {
		case name == "":
			errs = append(errs, field.Errorf(path, "missing"))
		case len(name) > maxShort:
			errs = append(errs, field.Errorf(path, "must have %d bytes at most, not %d", maxShort, len(name)))
		case strings.HasPrefix(name, "amq."):
			errs = append(errs, field.Errorf(path, "names that begin with amq. belong to the broker: take another, or "+
				"take it out of declare"))
		}
	}

	arguments := func(path string, args map[string]any) {
		if _, err := table(args); err != nil {
			errs = append(errs, field.Errorf(path, "%w", err))
		}
	}

	for i, e := range d.Exchanges {
		path := fmt.Sprintf("declare.exchanges.%d.", i)
		name(path+"name", e.Name)
		arguments(path+"arguments", e.Arguments)
	}

	for i, q := range d.Queues {
		path := fmt.Sprintf("declare.queues.%d.", i)
		name(path+"name", q.Name)
		arguments(path+"arguments", q.Arguments)
	}

	for i, b := range d.Bindings {
		path := fmt.Sprintf("declare.bindings.%d.", i)
		for part, value := range map[string]string{"exchange": b.Exchange, "queue": b.Queue} {
			if value == "" {
				errs = append(errs, field.Errorf(path+part, "missing: name it"))
			}
		}

		if len(b.RoutingKey) > maxShort {
			errs = append(errs, field.Errorf(path+"routing_key", "must have %d bytes at most", maxShort))
		}

		arguments(path+"arguments", b.Arguments)
	}

	return errors.Join(errs...)
}

// table converts arguments, as a configuration file or Go code has them, to the
// types of the protocol. Whole numbers become 64 bits wide: the broker compares
// them by value.
func table(args map[string]any) (amqp.Table, error) {
	if len(args) == 0 {
		return nil, nil
	}

	out := make(amqp.Table, len(args))
	for name, value := range args {
		v, err := argument(value)
		if err != nil {
			return nil, fmt.Errorf("%s %w", name, err)
		}
		if len(name) > maxShort {
			return nil, fmt.Errorf("a name has more than %d bytes", maxShort)
		}

		out[name] = v
	}

	return out, nil
}

func argument(value any) (any, error) {
	switch v := value.(type) {
	case nil, string, bool, int64, float64:
		return v, nil
	case int:
		return int64(v), nil
	case int32:
		return int64(v), nil
	case uint32:
		return int64(v), nil

	case uint64:
		if v > 1<<63-1 {
			return nil, errors.New("is too large a number")
		}
		return int64(v), nil

	case map[string]any:
		return table(v)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			var err error
			list[i], err = argument(v[i])
			if err != nil {
				return nil, err
			}
		}
		return list, nil

	default:
		return nil, fmt.Errorf("is a %T: write a text, a number, yes or no, a list or a mapping", value)
	}
}
