// Package awsapi is the code that all AWS destinations share: connections, the party at fault by
// an error, requests of several entries, and the form of messages.
package awsapi

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/httpconn"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
)

// Service describes a service of AWS, for errors.
type Service struct {
	// Name is the type of the destination, which each error begins with.
	Name string
	// ID is the SDK's name of the service: the constant ServiceID of its package.
	ID string
	// Title is its name for people, such as SQS.
	Title string
	// Place is the kind of thing that events are sent to, such as "queue".
	Place string
	// Settings are those that name the place, such as "queue or queue_url".
	Settings string
	// Rights are those that sending takes, such as "sqs:SendMessage on the queue".
	Rights string
}

// Conn is the way to a service. It is safe for concurrent use.
type Conn struct {
	// AWS makes a client: NewFromConfig of the service's package, with [Conn.Endpoint].
	AWS aws.Config

	svc       Service
	endpoint  string
	timeout   time.Duration
	transport *httpconn.Transport
	out       *outcome.Destination
	closed    atomic.Bool
}

// Open makes a Conn for access, with its defaults and valid. It reads the files that access names,
// below baseDir, and the SDK's files and environment, and makes no connection. The errors are
// [*handlers.FieldError] where a setting is at fault. The caller closes the Conn.
func Open(svc Service, access handlers.AWS, baseDir string) (*Conn, error) {
	conf, err := tlsconf.Load(access.TLS, baseDir)
	if err != nil {
		return nil, err
	}

	loaded, transport, err := load(access, conf)
	if err != nil {
		return nil, err
	}

	return &Conn{
		AWS:       loaded,
		svc:       svc,
		endpoint:  access.Endpoint,
		timeout:   access.RequestTimeout,
		transport: transport,
		out: outcome.New(svc.Name, "check endpoint, and proxies",
			access.SecretAccessKey.Reveal(), access.SessionToken.Reveal(), access.ExternalID.Reveal()),
	}, nil
}

// Endpoint sets the endpoint of a client, BaseEndpoint of its options, if an endpoint is
// configured. Otherwise the SDK uses AWS_ENDPOINT_URL and similar variables, or AWS.
func (c *Conn) Endpoint(base **string) {
	if c.endpoint != "" {
		*base = aws.String(c.endpoint)
	}
}

// Ready returns an error if the Conn is closed, or ctx is done.
func (c *Conn) Ready(ctx context.Context) error {
	switch {
	case c.closed.Load():
		return c.out.Closed()
	case ctx.Err() != nil:
		return c.out.Ended(ctx, "")
	default:
		return nil
	}
}

// Request returns the context of one request.
func (c *Conn) Request(ctx context.Context) (context.Context, context.CancelFunc) {
	return outcome.Within(ctx, "request_timeout", c.timeout)
}

// Ask makes a request that holds no event, for a check: a service that accepts the credentials and
// refuses the question passes. The error is marked: no event is at fault.
func (c *Conn) Ask(ctx context.Context, request func(ctx context.Context) error) error {
	if err := c.Ready(ctx); err != nil {
		return err
	}
	rctx, cancel := c.Request(ctx)
	defer cancel()
	if err := request(rctx); err != nil && !c.isDenied(err) {
		return c.ClassifyQuestion(ctx, rctx, err)
	}
	return nil
}

// Close closes the idle connections. A delivery that is under way finishes and closes its own.
// Closing again does nothing; a later delivery fails.
func (c *Conn) Close() error {
	c.closed.Store(true)
	c.transport.CloseIdleConnections()
	return nil
}
