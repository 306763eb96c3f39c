package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/twmb/franz-go/pkg/sasl"
	msk "github.com/twmb/franz-go/pkg/sasl/aws"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/token"
	"github.com/notifyd/notifyd/internal/secret"
)

// oauthTimeout bounds a request to an authorization server, and its answer.
const oauthTimeout = 8 * time.Second

// mechanism returns the SASL mechanism.
func mechanism(c SASL, baseDir string, s *secrets) sasl.Mechanism {
	switch c.Mechanism {
	case SASLPlain:
		return plain.Auth{User: c.Username, Pass: c.Password.Reveal()}.AsMechanism()
	case SASLSCRAM512:
		return scram.Auth{User: c.Username, Pass: c.Password.Reveal()}.AsSha512Mechanism()
	case SASLOAuthBearer:
		get := token.New(token.Settings{
			Text:     c.Token.Reveal(),
			File:     c.TokenFile,
			Base:     baseDir,
			Command:  c.TokenCommand,
			Lifetime: c.TokenLifetime,
			Prefix:   "sasl.",
		}).Get
		if c.OAuth != nil {
			get = newTokens(*c.OAuth).get
		}

		return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
			text, err := get(ctx)
			s.add(text)
			return oauth.Auth{Token: text}, err
		})
	case SASLMSKIAM:
		access := &awsAccess{}

		return msk.ManagedStreamingIAM(func(ctx context.Context) (msk.Auth, error) {
			auth, err := access.get(ctx)
			s.add(auth.SecretKey)
			s.add(auth.SessionToken)
			return auth, err
		})
	default:
		return scram.Auth{User: c.Username, Pass: c.Password.Reveal()}.AsSha256Mechanism()
	}
}

// tokens gets tokens from an authorization server, and uses each as long as it is valid.
type tokens struct {
	config clientcredentials.Config
	client *http.Client

	mu   sync.Mutex
	last *oauth2.Token
}

func newTokens(c OAuth) *tokens {
	return &tokens{
		config: clientcredentials.Config{
			ClientID:     c.ClientID,
			ClientSecret: c.ClientSecret.Reveal(),
			TokenURL:     c.TokenURL,
			Scopes:       c.Scopes,
		},
		client: &http.Client{
			Timeout:       oauthTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			// A kept connection would lead each request to the server that has just refused one.
			Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
		},
	}
}

func (t *tokens) get(ctx context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.last.Valid() {
		return t.last.AccessToken, nil
	}

	next, err := t.config.Token(context.WithValue(ctx, oauth2.HTTPClient, t.client))
	if refused, is := errors.AsType[*oauth2.RetrieveError](err); is { // its text has the body, which may repeat the secret
		return "", fmt.Errorf("sasl.oauth: %s: %s (check client_id, client_secret and scopes)",
			refused.Response.Status, cmp.Or(refused.ErrorCode, "no token"))
	}

	if err != nil {
		return "", fmt.Errorf("sasl.oauth: %w", err)
	}

	t.last = next
	return next.AccessToken, nil
}

// awsAccess has the credentials of the AWS SDK, which renews them.
type awsAccess struct {
	mu       sync.Mutex
	provider aws.CredentialsProvider // nil before the first use
}

func (a *awsAccess) get(ctx context.Context) (msk.Auth, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.provider == nil {
		c, err := config.LoadDefaultConfig(ctx)
		if err != nil {
			return msk.Auth{}, fmt.Errorf("sasl: load the configuration of AWS: %w", err)
		}
		a.provider = c.Credentials
	}

	keys, err := a.provider.Retrieve(ctx)
	if err != nil {
		return msk.Auth{}, fmt.Errorf("sasl: get credentials of AWS: %w", err)
	}

	return msk.Auth{AccessKey: keys.AccessKeyID, SecretKey: keys.SecretAccessKey, SessionToken: keys.SessionToken}, nil
}

// secrets are texts that must not get into an error: a broker may repeat them.
type secrets struct {
	mu     sync.Mutex
	all    []string
	redact *secret.Redactor // of all
}

func newSecrets(c Config) *secrets {
	s := &secrets{}

	if c.SASL != nil {
		for _, v := range []handlers.Secret{c.SASL.Password, c.SASL.Token} {
			s.add(v.Reveal())
		}
		if c.SASL.OAuth != nil {
			s.add(c.SASL.OAuth.ClientSecret.Reveal())
		}
	}

	if c.SchemaRegistry != nil {
		s.add(c.SchemaRegistry.Password.Reveal())
	}

	return s
}

// add remembers a secret. Of tokens that are renewed, the last few are enough.
func (s *secrets) add(text string) {
	const most = 8
	s.mu.Lock()
	defer s.mu.Unlock()
	if text == "" || slices.Contains(s.all, text) {
		return
	}
	s.all = append(s.all, text)
	if len(s.all) > most {
		s.all = slices.Delete(s.all, 0, 1)
	}
	s.redact = secret.NewRedactor(s.all...)
}

// Redact returns the text without the secrets.
func (s *secrets) Redact(text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.redact.Redact(text)
}
