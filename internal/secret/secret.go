// Package secret holds the type of every value that must not be shown.
package secret

import "log/slog"

// Redacted is printed in place of a secret.
const Redacted = "[redacted]"

// String is a text that hides itself from fmt, slog, JSON and YAML. The zero
// value is the empty secret, which prints as "". Compare what Reveal returns,
// not the Strings.
type String struct {
	// value is a pointer because fmt does not always call the methods below: not for
	// %d, and not inside a value that a verb does not fit. It then prints the
	// fields, and for a pointer only the address.
	value *string
}

// New returns the secret s.
func New(s string) String {
	if s == "" {
		return String{}
	}
	return String{&s}
}

// Reveal returns the text. Call it only where a library needs the text.
func (s String) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero reports whether the secret is empty.
func (s String) IsZero() bool { return s.value == nil }

// String returns [Redacted], or "" for the empty secret.
func (s String) String() string {
	if s.IsZero() {
		return ""
	}
	return Redacted
}

// GoString is String: %#v must not be a way around it.
func (s String) GoString() string { return s.String() }

// LogValue implements slog.LogValuer.
func (s String) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText implements encoding.TextMarshaler, for JSON and YAML.
func (s String) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *String) UnmarshalText(text []byte) error {
	*s = New(string(text))
	return nil
}
