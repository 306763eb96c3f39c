// Package tlsconf holds the TLS settings that destinations share, and makes a
// tls.Config of them.
package tlsconf

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/notifyd/notifyd/internal/field"
)

// maxFile bounds the size of a file: a bundle of all public authorities has a quarter
// of it.
const maxFile = 1 << 20

// Config names the authorities to trust and the certificate to present. The zero value
// trusts the authorities of the system and presents no certificate.
type Config struct {
	// CAFile is a file of PEM certificates to trust in place of the system's.
	CAFile string `json:"ca_file,omitempty" yaml:"ca_file,omitempty" jsonschema_description:"PEM certificates to trust, relative to the configuration file." kind:"path" unset:"the system's certificates"`
	// CertFile and KeyFile are the PEM files of the certificate to present and of
	// its key. Set both or neither.
	CertFile string `json:"cert_file,omitempty" yaml:"cert_file,omitempty" jsonschema_description:"PEM certificate to present to the server, for servers that require one; with 'key_file'." kind:"path"`
	KeyFile  string `json:"key_file,omitempty" yaml:"key_file,omitempty" jsonschema_description:"PEM key that belongs to 'cert_file'." kind:"path"`
	// ServerName is the name in the server's certificate; the default is the
	// host that is connected to.
	ServerName string `json:"server_name,omitempty" yaml:"server_name,omitempty" jsonschema_description:"Name in the server's certificate." unset:"the host connected to"`
}

// IsZero reports whether nothing is set.
func (c Config) IsZero() bool { return c == Config{} }

// Validate returns all mistakes at once, joined, each as a *handlers.FieldError. It reads
// no files: [Config.Load] does.
func (c Config) Validate() error {
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
func Check(c *Config) error {
	if c == nil {
		return nil
	}
	return field.Under("tls", c.Validate())
}

// Load is [Config.Load] for a setting "tls" that may be left out: it returns nil for nil,
// and the mistakes are below the setting.
func Load(c *Config, baseDir string) (*tls.Config, error) {
	if c == nil {
		return nil, nil //nolint:nilnil // nil is how crypto/tls spells "without"
	}
	out, err := c.Load(baseDir)
	return out, field.Under("tls", err)
}

// Load reads the files, relative to baseDir, and returns a configuration for
// TLS 1.2 and newer. The mistakes are joined, each a *handlers.FieldError, and hold
// no content of the files.
func (c Config) Load(baseDir string) (*tls.Config, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if err := errors.Join(c.authorities(out, baseDir), c.certificate(out, baseDir)); err != nil {
		// A partial configuration would trust the authorities of the system.
		return nil, err
	}
	return out, nil
}

func (c Config) authorities(to *tls.Config, baseDir string) error {
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

func (c Config) certificate(to *tls.Config, baseDir string) error {
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
