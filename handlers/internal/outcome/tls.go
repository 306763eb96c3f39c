package outcome

import (
	"cmp"
	"crypto/tls"
	"errors"
)

// TLS names the settings that cure a failed TLS handshake.
type TLS struct {
	// Prefix goes before server_name and ca_file: "tls." or "".
	Prefix string
	// Certificate is the cure for a certificate that is not trusted, in place of one with Prefix.
	Certificate string
	// Plain is the cure for a server that does not speak TLS.
	Plain string
}

// Cure returns the cure of a failed handshake, "" if err is another failure.
func (t TLS) Cure(err error) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return cmp.Or(t.Certificate, "check "+t.Prefix+"server_name, or name the authority's certificate with "+t.Prefix+"ca_file")
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok && t.Plain != "" {
		return "the port does not speak TLS: " + t.Plain
	}
	return ""
}
