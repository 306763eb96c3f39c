package kafka

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
)

const (
	// askWithin bounds one request to the registry.
	askWithin = 10 * time.Second
	// latestFor is how long the id of a latest version is used before the registry is asked again.
	// The id of a numbered version does not change.
	latestFor = time.Minute
	// maxAnswer bounds an answer, which holds the text of the schema.
	maxAnswer = 16 << 20
	// maxMessage is how many bytes of a registry's words get into an error, which has a cure, too.
	maxMessage = 120
	// protobuf is the type of schemas whose messages have an index.
	protobuf = "PROTOBUF"
)

// The errors of a registry that are about the schema that was asked for.
const (
	codeNoSubject      = 40401
	codeNoVersion      = 40402
	codeNoSchema       = 40403
	codeSubjectDeleted = 40404
)

// registry looks up the ids of schemas. It is safe for concurrent use, and keeps no connection: it asks
// once a minute at most for a schema that is in use.
type registry struct {
	cfg     SchemaRegistry
	client  *sr.Client
	secrets *secrets
	now     func() time.Time

	mu    sync.Mutex
	known map[schemaRef]known
}

// schemaRef names a schema: the version is latest or a number.
type schemaRef struct{ subject, version string }

// known is an answer of the registry.
type known struct {
	header []byte // goes before the payload
	until  time.Time
}

// newRegistry returns the registry of cfg, nil for nil, and makes no connection.
func newRegistry(cfg *SchemaRegistry, baseDir string, s *secrets) (*registry, error) {
	if cfg == nil {
		return nil, nil //nolint:nilnil // nil is without one
	}
	conf, err := tlsconf.Load(cfg.TLS, baseDir)
	if err != nil {
		return nil, field.Under("schema_registry", err)
	}

	if conf == nil {
		conf = &tls.Config{MinVersion: tls.VersionTLS12}
	}

	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: conf, DisableKeepAlives: true}
	options := []sr.ClientOpt{
		sr.URLs(cfg.URL),
		sr.UserAgent("notifyd"),
		sr.HTTPClient(&http.Client{Transport: bounded{transport}}),
	}
	if !cfg.Password.IsZero() {
		options = append(options, sr.BasicAuth(cfg.Username, cfg.Password.Reveal()))
	}
	client, err := sr.NewClient(options...)
	if err != nil {
		return nil, field.Under("schema_registry", err)
	}

	return &registry{cfg: *cfg, client: client, secrets: s, now: time.Now, known: make(map[schemaRef]known)}, nil
}

// bounded reads no more than maxAnswer of an answer, and leaves out the place of a redirect: the client would take the password
// there, or write the place into an error.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := b.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	res.Header.Del("Location")
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(res.Body, maxAnswer), res.Body}
	return res, nil
}

// header returns the bytes before the payload of a record with that schema. The error is a registryError, or about the
// context.
func (r *registry) header(ctx context.Context, ref schemaRef) ([]byte, error) {
	r.mu.Lock()
	k, ok := r.known[ref]
	r.mu.Unlock()
	if ok && (k.until.IsZero() || r.now().Before(k.until)) {
		return k.header, nil
	}

	asked := r.now()
	header, err := r.lookUp(ctx, ref)
	if err != nil {
		return nil, err
	}

	k = known{header: header}
	if ref.version == versionLatest {
		k.until = asked.Add(latestFor)
	}

	r.mu.Lock()
	r.known[ref] = k
	r.mu.Unlock()
	return header, nil
}

// lookUp asks the registry.
func (r *registry) lookUp(ctx context.Context, ref schemaRef) ([]byte, error) {
	var answer struct {
		ID         *uint32 `json:"id"`
		SchemaType string  `json:"schemaType"`
	}
	err := r.get(ctx, "/subjects/"+url.PathEscape(ref.subject)+"/versions/"+ref.version, &answer)
	if said, ok := errors.AsType[*refusal](err); ok && said.ofSchema() {
		return nil, &registryError{fmt.Errorf("it has no version %s of subject %s: %w", ref.version, ref.subject, said)}
	}
	if err == nil && answer.ID == nil {
		err = &registryError{errNoRegistry}
	}
	if err != nil {
		return nil, err
	}

	var indexes []int
	if answer.SchemaType == protobuf {
		indexes = r.cfg.MessageIndexes
	}
	return new(sr.ConfluentHeader).AppendEncode(nil, int(*answer.ID), indexes)
}

// errNoRegistry is the failure of a server that answers as no registry does.
var errNoRegistry = errors.New("the answer is not one of a schema registry")

// registryError is a fault of the registry, or of the way to it.
type registryError struct{ error }

func (e *registryError) Error() string { return "schema registry: " + e.error.Error() }
func (e *registryError) Unwrap() error { return e.error }

// registryStatuses is the table of the statuses of a registry that are not about a schema.
func registryStatuses() outcome.Table[int] {
	return outcome.Table[int]{
		{Codes: []int{http.StatusUnauthorized}, Class: outcome.Unauthorized, Cure: "check username and password of schema_registry"},
		{Codes: []int{http.StatusForbidden}, Class: outcome.Unavailable, Cure: "allow this user to read the subject"},
		{Codes: []int{http.StatusNotFound}, Class: outcome.Unavailable, Cure: notRegistry},
	}
}

const (
	notRegistry = "schema_registry.url must lead to the API of a schema registry, with its path if it has one"
	noSchema    = "register the schema, or correct subject and version of schema_registry"
)

// lookUp returns the class and the cure.
func (e *registryError) lookUp() (class outcome.Class, cure string) {
	if said, ok := errors.AsType[*refusal](e); ok {
		if said.ofSchema() {
			return outcome.Unavailable, noSchema
		}
		class, cure = registryStatuses().Find(false, said.status)
		if class != outcome.Unknown {
			return class, cure
		}
		if said.status < http.StatusBadRequest {
			return outcome.Unavailable, notRegistry
		}
		return outcome.Unavailable, ""
	}

	if errors.Is(e, errNoRegistry) {
		return outcome.Unavailable, notRegistry
	}

	return outcome.Unavailable, outcome.TLS{
		Certificate: "check schema_registry.tls: server_name, or ca_file for the authority's certificate",
		Plain:       "check schema_registry.url",
	}.Cure(e)
}

// refusal is an answer that is not 200.
type refusal struct {
	status, code int // of HTTP, and of the registry, 0 for none
	message      string
}

// Error names the code and has the words of the registry.
func (e *refusal) Error() string {
	if e.code == 0 {
		return fmt.Sprintf("it answered %d %s", e.status, http.StatusText(e.status))
	}
	return fmt.Sprintf("error %d, %s", e.code, e.message)
}

// ofSchema reports whether the requested schema is at fault, and not the
// registry.
func (e *refusal) ofSchema() bool {
	switch e.code {
	case codeNoSubject, codeNoVersion, codeNoSchema, codeSubjectDeleted:
		return true
	default:
		return e.status == http.StatusUnprocessableEntity
	}
}

// ofSubject reports whether the refusal is about the subject, whatever the version.
func (e *refusal) ofSubject() bool { return e.code == codeNoSubject || e.code == codeSubjectDeleted }

// get decodes the answer to a GET. The error is a registryError; a refusal is in its chain.
func (r *registry) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, askWithin, fmt.Errorf("no answer within %v", askWithin))
	defer cancel()

	err := r.client.Do(ctx, http.MethodGet, path, nil, into)
	if err == nil {
		return nil
	}

	if said, ok := errors.AsType[*sr.ResponseError](err); ok {
		message := oneline.Of(r.secrets.Redact(said.Message), maxMessage)
		return &registryError{&refusal{status: said.StatusCode, code: said.ErrorCode, message: message}}
	}
	return &registryError{failure(ctx, err)}
}

// failure returns the reason of a request that got no answer, or one that is not of a registry. It leaves out the URL and passwords.
func failure(ctx context.Context, err error) error {
	_, isSyntax := errors.AsType[*json.SyntaxError](err)
	_, isType := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case isSyntax || isType:
		return errNoRegistry
	case strings.Contains(err.Error(), "proxy address"):
		return errors.New("HTTP_PROXY or HTTPS_PROXY is not a URL")
	}

	if request, ok := errors.AsType[*url.Error](err); ok {
		return request.Err
	}
	return errors.Unwrap(err)
}
