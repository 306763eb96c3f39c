package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/hostport"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

const (
	// versionLatest is the version that was registered last.
	versionLatest = "latest"
	// subjectSuffix makes the default subject of a topic: the one of Confluent's serializers for values.
	subjectSuffix = "-value"
	// maxIndex bounds an index of a message, and maxIndexes how deep messages are nested.
	maxIndex, maxIndexes = 1 << 16, 64
)

// SchemaRegistry names the schema of the payloads. A record's value then begins with the id of the schema,
// as the deserializers of Confluent, Apicurio and Karapace read it: a zero byte and four bytes, big endian;
// with a Protobuf schema the path of the message follows.
type SchemaRegistry struct {
	// The registry's API, with its path if it has one, such as `/apis/ccompat/v7`
	// for Apicurio.
	URL string `json:"url" yaml:"url" kind:"URL" unset:"required"`

	// Name for the registry; with `password`, or neither.
	//
	// It is sent as "Authorization: Basic".
	Username string `json:"username,omitempty" yaml:"username,omitempty"`

	// Password for the registry.
	Password handlers.Secret `json:"password,omitzero" yaml:"password,omitempty"`

	// Send the password without TLS to another machine.
	AllowUnencrypted bool `json:"allow_unencrypted,omitempty" yaml:"allow_unencrypted,omitempty"`

	// Certificates to trust and to present, for an `https` URL.
	TLS *handlers.TLS `json:"tls,omitempty" yaml:"tls,omitempty" unset:"the system's certificates"`

	// Subject of the schema.
	Subject string `json:"subject,omitempty" yaml:"subject,omitempty" kind:"template" unset:"the topic and '-value'"`

	// Version of the subject: `latest`, or a number in quotes, such as `"3"`.
	Version string `json:"version,omitempty" yaml:"version,omitempty" kind:"template" unset:"'latest'"`

	// With a Protobuf schema: index of the message, counted from 0, then the index
	// of each message nested in it.
	MessageIndexes []int `json:"message_indexes,omitempty" yaml:"message_indexes,omitempty" unset:"'[0]'"`
}

func (r *SchemaRegistry) withDefaults() *SchemaRegistry {
	if r == nil {
		return nil
	}
	c := *r
	c.Version = cmp.Or(c.Version, versionLatest)
	if len(c.MessageIndexes) == 0 {
		c.MessageIndexes = []int{0}
	}
	return &c
}

// validate returns the mistakes with paths below "schema_registry", except mistakes in
// templates.
func (r *SchemaRegistry) validate(m handlers.Message) error {
	if r == nil {
		return nil
	}
	errs := []error{r.where(), field.Login(r.Username, r.Password, "REGISTRY_PASSWORD"), tlsconf.Check(r.TLS)}

	outside := func(i int) bool { return i < 0 || i > maxIndex }
	if len(r.MessageIndexes) > maxIndexes || slices.ContainsFunc(r.MessageIndexes, outside) {
		errs = append(errs, field.Errorf("message_indexes", "must be at most %d numbers from 0 to %d, such as [0]", maxIndexes, maxIndex))
	}

	err := field.Under("schema_registry", errors.Join(errs...))
	if m.Format == handlers.FormatCloudEventsStructured {
		err = errors.Join(err, field.Errorf("format", "no schema of the payload describes format: %s: use %s, or take schema_registry out",
			handlers.FormatCloudEventsStructured, handlers.FormatCloudEventsBinary))
	}

	return err
}

func (r *SchemaRegistry) where() error {
	u, err := url.Parse(r.URL)
	switch {
	case r.URL == "":
		return field.Errorf("url", "missing: write where the registry is, such as https://registry.example.com")
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.RawQuery != "" || u.Fragment != "":
		return field.Errorf("url", "must be a URL such as https://registry.example.com or http://127.0.0.1:8081")
	case u.User != nil:
		return field.Errorf("url", "must not hold a user or password: use username and password")
	case u.Scheme == "http" && r.TLS != nil:
		return field.Errorf("tls", "has no effect with http://: write https://, or take it out")
	case r.showsPassword(u):
		return field.Errorf("url", "the password would be readable on the way: use https://, or set allow_unencrypted: true")
	default:
		return nil
	}
}

// showsPassword reports whether the password would go unencrypted over a network.
func (r *SchemaRegistry) showsPassword(u *url.URL) bool {
	isGuarded := r.Password.IsZero() || r.AllowUnencrypted
	return u.Scheme == "http" && !isGuarded && !hostport.IsLoopback(u.Hostname())
}

// checkConstant checks a template whose text is the same for all events. The template may be nil.
func checkConstant(t *tmpl.Template, path string, check func(string) error) error {
	if t == nil {
		return nil
	}
	text, isConstant := t.Constant()
	if !isConstant {
		return nil
	}
	return field.Under(path, check(text))
}

// checkSubject refuses names that a URL cannot have in its path.
func checkSubject(text string) error {
	switch text {
	case "":
		return errors.New("is empty")
	case ".", "..":
		return errors.New("must be more than dots")
	default:
		return nil
	}
}

// checkVersion accepts the word latest, or a number of at least 1.
func checkVersion(text string) error {
	n, err := strconv.ParseInt(text, 10, 32)
	isNumber := err == nil && n >= 1 && strconv.FormatInt(n, 10) == text
	if text == versionLatest || isNumber {
		return nil
	}
	return errors.New("must be a number from 1 on, or latest")
}

// subjects finds the schema of an event.
type subjects struct {
	subject *tmpl.Template // nil: made of the topic
	version *tmpl.Template
}

// ref returns the schema to ask the registry for. An error is about the
// event.
func (s *subjects) ref(topic string, v *view) (ref schemaRef, err error) {
	ref.subject = topic + subjectSuffix
	if s.subject != nil {
		ref.subject, err = v.render(s.subject)
		if err != nil {
			return ref, err
		}
	}

	if err := checkSubject(ref.subject); err != nil {
		return ref, fmt.Errorf("the subject made of this event %w", err)
	}

	ref.version, err = v.render(s.version)
	if err != nil {
		return ref, err
	}

	if err := checkVersion(ref.version); err != nil {
		return ref, fmt.Errorf("the version made of this event, of subject %s, %w", ref.subject, err)
	}

	return ref, nil
}

// fixed returns the schema if it is the same for all events, else the zero value.
func (s *subjects) fixed(topic string) schemaRef {
	ref := schemaRef{subject: topic + subjectSuffix}
	known := topic != ""
	if s.subject != nil {
		ref.subject, known = s.subject.Constant()
	}
	version, ok := s.version.Constant()
	if !known || !ok {
		return schemaRef{}
	}
	ref.version = version
	return ref
}

// headerFunc returns the bytes before the payload of a record with a schema.
type headerFunc func(schemaRef) ([]byte, error)

// ofEvent reports which parts of the schema's name are made of the event.
func (s *subjects) ofEvent(fixedTopic string) (subject, version bool) {
	subject = fixedTopic == ""
	if s.subject != nil {
		_, constant := s.subject.Constant()
		subject = !constant
	}
	_, constant := s.version.Constant()
	return subject, !constant
}

// refused returns the error of an event whose schema the registry refuses. The refusal of a name that all events share is a
// fault of the destination.
func (s *subjects) refused(err error, fixedTopic string) error {
	said, ok := errors.AsType[*refusal](err)
	if !ok {
		return err
	}

	subject, version := s.ofEvent(fixedTopic)
	isOwn := subject || version && !said.ofSubject()
	switch {
	case said.ofSchema() && isOwn:
		return &eventError{err, outcome.Unclear, noSchema + ", and replay the event"}
	case said.status == http.StatusForbidden && subject:
		_, cure := registryStatuses().Find(false, said.status)
		return &eventError{err, outcome.UnclearRetry, cure}
	default:
		return err
	}
}

// headers returns the headerFunc of a batch, nil without a registry. A schema that the registry refuses is asked for once.
func (b *batch) headers() headerFunc {
	if b.h.registry == nil {
		return nil
	}
	refused := make(map[schemaRef]error)
	return func(ref schemaRef) ([]byte, error) {
		if err := refused[ref]; err != nil {
			return nil, err
		}

		header, err := b.h.registry.header(b.ctx, ref)
		if err == nil {
			return header, nil
		}
		if b.ctx.Err() != nil && !errors.Is(context.Cause(b.ctx), errTimeout) {
			return nil, errUndecided // the call was given up
		}

		err = b.h.encoder.schemas.refused(err, b.h.encoder.fixedTopic)
		if is[*eventError](err) {
			refused[ref] = err
		}
		return nil, err
	}
}

// checkRegistry is the part of Check about the schema registry.
func (h *Handler) checkRegistry(ctx context.Context) error {
	if h.registry == nil {
		return nil
	}
	ref := h.encoder.schemas.fixed(h.encoder.fixedTopic)
	if ref != (schemaRef{}) {
		_, err := h.registry.lookUp(ctx, ref)
		return err
	}
	var types []string // any registry says them, and it is little
	return h.registry.get(ctx, "/schemas/types", &types)
}
