// Package tlsconf checks TLS settings, and makes a tls.Config of them.
package tlsconf

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

// maxFile bounds the size of a file: a bundle of all public authorities has a quarter
// of it.
const maxFile = 1 << 20

// Validate returns all mistakes at once, joined, each as a *handlers.FieldError. It reads
// no files: [Read] does.
func Validate(c handlers.TLS) error {
	switch {
	case c.CertFile != "" && c.KeyFile == "":
		return field.Errorf("key_file", "missing: cert_file needs the key that belongs to it")
	case c.CertFile == "" && c.KeyFile != "":
		return field.Errorf("cert_file", "missing: key_file needs its certificate")
	default:
		return nil
	}
}

// Check is Validate for a setting "tls" that may be left out: the mistakes are below it.
func Check(c *handlers.TLS) error {
	if c == nil {
		return nil
	}
	return field.Under("tls", Validate(*c))
}

// Load is [Read] for a setting "tls" that may be left out: it returns nil for nil,
// and the mistakes are below the setting.
func Load(c *handlers.TLS, baseDir string) (*tls.Config, error) {
	if c == nil {
		return nil, nil //nolint:nilnil // nil is how crypto/tls spells "without"
	}
	out, err := Read(*c, baseDir)
	return out, field.Under("tls", err)
}

// Read reads the files, relative to baseDir, and returns a configuration for
// TLS 1.2 and newer. The mistakes are joined, each a *handlers.FieldError, and hold
// no content of the files.
func Read(c handlers.TLS, baseDir string) (*tls.Config, error) {
	if err := Validate(c); err != nil {
		return nil, err
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if err := errors.Join(authorities(c, out, baseDir), certificate(c, out, baseDir)); err != nil {
		// A partial configuration would trust the authorities of the system.
		return nil, err
	}
	return out, nil
}

func authorities(c handlers.TLS, to *tls.Config, baseDir string) error {
	if c.CAFile == "" {
		return nil
	}
	text, err := read(baseDir, c.CAFile)
	if err != nil {
		return field.Errorf("ca_file", "%w", err)
	}
	to.RootCAs = x509.NewCertPool()
	if !to.RootCAs.AppendCertsFromPEM(text) {
		return field.Errorf("ca_file", "has no certificate in it: give a PEM file with BEGIN CERTIFICATE")
	}
	return nil
}

func certificate(c handlers.TLS, to *tls.Config, baseDir string) error {
	if c.CertFile == "" {
		return nil
	}

	cert, err := read(baseDir, c.CertFile)
	if err != nil {
		return field.Errorf("cert_file", "%w", err)
	}

	key, err := read(baseDir, c.KeyFile)
	if err != nil {
		return field.Errorf("key_file", "%w", err)
	}

	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return field.Errorf("cert_file", "does not go with key_file: %w", err)
	}

	to.Certificates = []tls.Certificate{pair}
	return nil
}

func read(baseDir, name string) ([]byte, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(baseDir, name)
	}

	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written

	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}

	if len(data) > maxFile {
		return nil, fmt.Errorf("has more than %d bytes: is it the right file?", maxFile)
	}

	return data, nil
}
