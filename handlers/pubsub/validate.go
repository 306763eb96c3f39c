package pubsub

import (
	"errors"
	"net/url"
	"regexp"
	"strings"

	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

var (
	// fullName matches projects/PROJECT/topics/TOPIC. The id of an older project may begin
	// with a domain and a colon.
	fullName  = regexp.MustCompile(`^projects/([^/]+)/topics/([^/]+)$`)
	projectID = regexp.MustCompile(`^([a-z0-9.-]+:)?[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$`)
	topicID   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._~%+-]{2,254}$`)
)

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its
// cure. It contacts nothing and reads no files: [New] reads them.
func (c Config) Validate() error {
	_, err := parseKey(c)
	return errors.Join(c.place(), c.access(), message.Validate(c.Message), err,
		field.Timeout("request_timeout", c.RequestTimeout, 0, defaultRequestTimeout))
}

// place checks the name and the location of the topic.
func (c Config) place() error {
	project, topic := c.names()
	switch {
	case c.Topic == "":
		return field.Errorf("topic", "missing: name the topic, such as projects/shop/topics/orders")
	case strings.Contains(c.Topic, "/") && !fullName.MatchString(c.Topic):
		return field.Errorf("topic", "must be a name, or of the form projects/shop/topics/orders")
	case !topicID.MatchString(topic) || strings.HasPrefix(topic, "goog"):
		return field.Errorf("topic", "must have 3 to 255 letters, digits and -._~+%%, begin with a letter, and not with goog")
	case c.Project != "" && strings.Contains(c.Topic, "/"):
		return field.Errorf("project", "is in topic already: take it out")
	case project == "":
		return field.Errorf("project", "missing: name it, or write topic as projects/shop/topics/%s", topic)
	case !projectID.MatchString(project):
		return field.Errorf("project", "must be the id of a project, such as shop-123456: small letters, digits and hyphens")
	default:
		return nil
	}
}

// names returns the ids of project and topic, as far as they are there.
func (c Config) names() (project, topic string) {
	if m := fullName.FindStringSubmatch(c.Topic); m != nil {
		return m[1], m[2]
	}
	return c.Project, c.Topic
}

// access checks endpoint and credentials.
func (c Config) access() error {
	errs := []error{tlsconf.Check(c.TLS)}
	if c.Endpoint != "" {
		errs = append(errs, checkEndpoint("endpoint", c.Endpoint))
	}

	if c.CredentialsFile != "" && isPlain(c.Endpoint) {
		errs = append(errs, field.Errorf("credentials_file", "has no effect: an endpoint with http:// gets no "+
			"credentials. Take it out, or use https://"))
	}

	return errors.Join(errs...)
}

func checkEndpoint(at, text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "", u.Scheme != "http" && u.Scheme != "https":
		return field.Errorf(at, "must be a URL such as https://europe-west3-pubsub.googleapis.com or http://localhost:8085")
	case u.User != nil:
		return field.Errorf(at, "must not hold a user or a password")
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return field.Errorf(at, "must end with host or port: take out what follows")
	default:
		return nil
	}
}

// isPlain reports whether an endpoint is without TLS: an emulator.
func isPlain(endpoint string) bool { return strings.HasPrefix(endpoint, "http://") }

// parseKey returns the template of the ordering key, nil for the aggregate id.
func parseKey(c Config) (*tmpl.Template, error) {
	if c.OrderingKey == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	t, err := tmpl.Key.Parse("ordering_key", c.OrderingKey)
	if err != nil {
		return nil, field.Errorf("ordering_key", "%w", err)
	}
	return t, nil
}
