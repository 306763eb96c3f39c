package handlers

import (
	"errors"
	"log/slog"

	"github.com/notifyd/notifyd/internal/secret"
)

// Secret is a text that hides itself: a password, a token, a URL that is enough to post. It prints as
// "[redacted]" with fmt and slog, and in JSON and YAML. The zero value is the empty secret, which prints as "".
// [NewSecret] makes one:
//
//	cfg.Password = handlers.NewSecret(os.Getenv("SMTP_PASSWORD"))
//
// Compare what Reveal returns, not the Secrets.
type Secret struct {
	// value is a pointer because fmt does not always call the methods below: not for
	// %d, and not inside a value that a verb does not fit. It then prints the
	// fields, and for a pointer only the address.
	value *string
}

// errRedacted is the error for a text that stands for a secret.
var errRedacted = errors.New(secret.Redacted + " stands for a secret that was hidden: put the secret itself there")

// NewSecret returns the text as a Secret.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{&text}
}

// Reveal returns the text. Call it only where a library needs the text.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero reports whether the secret is empty.
func (s Secret) IsZero() bool { return s.value == nil }

// String returns "[redacted]", or "" for the empty secret.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return secret.Redacted
}

// GoString is String: %#v must not be a way around it.
func (s Secret) GoString() string { return s.String() }

// LogValue implements [slog.LogValuer].
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText implements encoding.TextMarshaler, for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: the secret is the text. It refuses "[redacted]", and then leaves the
// secret as it is: what MarshalText has written is not the secret.
func (s *Secret) UnmarshalText(text []byte) error {
	if string(text) == secret.Redacted {
		return errRedacted
	}
	*s = NewSecret(string(text))
	return nil
}
