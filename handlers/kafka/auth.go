package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/secret"
)

// maxToken bounds the bytes read from a token file. Brokers accept at most
// sasl.server.max.receive.size, 524288 bytes by default.
const maxToken = 512 << 10

// mechanism returns the SASL mechanism.
func mechanism(c SASL, baseDir string, s *secrets) sasl.Mechanism {
	switch c.Mechanism {
	case SASLPlain:
		return plain.Auth{User: c.Username, Pass: c.Password.Reveal()}.AsMechanism()
	case SASLSCRAM512:
		return scram.Auth{User: c.Username, Pass: c.Password.Reveal()}.AsSha512Mechanism()
	case SASLOAuthBearer:
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
			token, err := readToken(c, baseDir)
			s.add(token)
			return oauth.Auth{Token: token}, err
		})
	default:
		return scram.Auth{User: c.Username, Pass: c.Password.Reveal()}.AsSha256Mechanism()
	}
}

// readToken returns the token, which another program may renew in its file.
func readToken(c SASL, baseDir string) (string, error) {
	if c.TokenFile == "" {
		return c.Token.Reveal(), nil
	}
	name := c.TokenFile
	if !filepath.IsAbs(name) {
		name = filepath.Join(baseDir, name)
	}
	f, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("sasl.token_file: %w", err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	text, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	switch token := strings.TrimSpace(string(text)); {
	case err != nil:
		return "", fmt.Errorf("sasl.token_file: %w", err)
	case token == "":
		return "", errors.New("sasl.token_file: the file is empty")
	case len(text) > maxToken:
		return "", fmt.Errorf("sasl.token_file: the file has more than %d bytes", maxToken)
	default:
		return token, nil
	}
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
	if s.all = append(s.all, text); len(s.all) > most {
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
