package awsapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/httpconn"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/internal/field"
)

const (
	// pingAfter and pingTimeout find a dead HTTP/2 connection, which requests that
	// time out do not.
	pingAfter, pingTimeout = 15 * time.Second, 10 * time.Second
	// idleTimeout is how long a connection waits for the next request. AWS closes
	// its own later.
	idleTimeout = 20 * time.Second
	maxIdle     = 64
)

// load makes the configuration of a client. It reads the SDK's files and environment, and
// makes no connection.
func load(cfg handlers.AWS, conf *tls.Config) (aws.Config, *httpconn.Transport, error) {
	options := []func(*awsconfig.LoadOptions) error{
		// The outbox tries again, and only failed events.
		awsconfig.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
		awsconfig.WithLogger(logging.Nop{}),
	}

	if cfg.Region != "" {
		options = append(options, awsconfig.WithRegion(cfg.Region))
	}
	if cfg.Profile != "" {
		options = append(options, awsconfig.WithSharedConfigProfile(cfg.Profile))
	}
	if cfg.AccessKeyID != "" {
		options = append(options, awsconfig.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(
			cfg.AccessKeyID, cfg.SecretAccessKey.Reveal(), cfg.SessionToken.Reveal())))
	}

	loaded, err := awsconfig.LoadDefaultConfig(context.Background(), options...) //nolint:forbidigo // it reads files and the environment
	if err != nil {
		return aws.Config{}, nil, loadMistake(err)
	}

	if loaded.Region == "" {
		return aws.Config{}, nil, field.Errorf("region", "missing: name it, such as eu-central-1, or set AWS_REGION")
	}

	transport := httpconn.New(newTransport(loaded, conf), idle.MaxAge)
	loaded.HTTPClient = &http.Client{
		Transport:     plainBody{transport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}

	if cfg.AssumeRoleARN != "" {
		loaded.Credentials = aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(sts.NewFromConfig(loaded), cfg.AssumeRoleARN,
			func(o *stscreds.AssumeRoleOptions) {
				o.RoleSessionName = cfg.RoleSessionName
				if !cfg.ExternalID.IsZero() {
					o.ExternalID = aws.String(cfg.ExternalID.Reveal())
				}
			}))
	}

	return loaded, transport, nil
}

// plainBody hides the WriteTo of requests' bodies. The SDK closes a body once
// it has an answer. Only then may the transport look for more bytes in the
// body, and WriteTo reports an error where Read reports the end. The transport
// would take the error for a failed write and drop the connection with the
// rest of the answer on it, and the events would be sent twice.
type plainBody struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p plainBody) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return p.next.RoundTrip(req)
	}
	own := *req
	own.Body = struct{ io.ReadCloser }{req.Body}
	return p.next.RoundTrip(&own)
}

// newTransport is the SDK's own, with the certificates of AWS_CA_BUNDLE.
func newTransport(loaded aws.Config, conf *tls.Config) *http.Transport {
	client, ok := loaded.HTTPClient.(*awshttp.BuildableClient)
	if !ok {
		client = awshttp.NewBuildableClient()
	}
	t := client.GetTransport() // a copy
	t.IdleConnTimeout = idleTimeout
	t.MaxIdleConnsPerHost = maxIdle
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
	if conf != nil {
		t.TLSClientConfig = conf
	}
	return t
}

// loadMistake names the setting that an error of the SDK's configuration is about.
func loadMistake(err error) error {
	if missing, ok := errors.AsType[awsconfig.SharedConfigProfileNotExistError](err); ok {
		return field.Errorf("profile", "there is no profile %q: look into ~/.aws/config, or set AWS_CONFIG_FILE", missing.Profile)
	}
	// Files with mistakes are not repeated: they hold credentials.
	if load, ok := errors.AsType[awsconfig.SharedConfigLoadError](err); ok {
		return fmt.Errorf("the file %s cannot be read as a configuration of AWS", load.Filename)
	}
	return fmt.Errorf("the configuration of AWS in files and environment has a mistake: %s", oneline.Of(err.Error(), oneline.MaxReply))
}
