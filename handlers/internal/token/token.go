// Package token gets tokens that expire, for the logins of destinations: from the configuration, from a file that another
// program renews, or from a program that prints one.
package token

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/credential"
)

// MaxBytes bounds a token. Kafka's brokers accept at most sasl.server.max.receive.size, 524288 bytes by default.
const MaxBytes = 512 << 10

// Settings name the source of a token: exactly one of Text, File and Command.
type Settings struct {
	// Text is a token that does not change.
	Text string
	// File is read for each login; Base is the folder of a relative name.
	File, Base string
	// Command is a program with its arguments, and Lifetime how long its output is used; 0 is the default.
	Command  []string
	Lifetime time.Duration
	// Prefix begins the names of the settings in errors, such as "sasl.".
	Prefix string
}

// Source gets tokens. It is safe for concurrent use.
type Source struct {
	settings Settings
	command  *credential.Command // nil without one
}

// New returns the source of the settings.
func New(s Settings) *Source {
	t := &Source{settings: s}
	if len(s.Command) > 0 {
		if s.Lifetime == 0 {
			s.Lifetime = credential.DefaultLifetime
		}
		t.command = credential.NewCommand(s.Command, s.Lifetime)
	}
	return t
}

// Get returns the token for a login. Its error names the setting.
func (t *Source) Get(ctx context.Context) (string, error) {
	s := &t.settings
	switch {
	case t.command != nil:
		text, err := t.command.Get(ctx)
		if err != nil {
			return "", fmt.Errorf("%stoken_command: %w", s.Prefix, err)
		}
		return text, nil
	case s.File != "":
		text, err := read(s.File, s.Base)
		if err != nil {
			return "", fmt.Errorf("%stoken_file: %w", s.Prefix, err)
		}
		return text, nil
	}

	return s.Text, nil
}

func read(name, base string) (string, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(base, name)
	}

	f, err := os.Open(name)
	if err != nil {
		return "", err //nolint:wrapcheck // the caller names the setting
	}
	defer f.Close() //nolint:errcheck // nothing was written

	text, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	switch token := strings.TrimSpace(string(text)); {
	case err != nil:
		return "", err //nolint:wrapcheck // the caller names the setting
	case token == "":
		return "", errors.New("the file is empty")
	case len(text) > MaxBytes:
		return "", fmt.Errorf("the file has more than %d bytes", MaxBytes)
	default:
		return token, nil
	}
}
