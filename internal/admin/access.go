package admin

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/notifyd/notifyd/handlers"
)

// maxAnswer bounds the part of an answer that is read, in bytes.
const maxAnswer = 8 << 20

// Access is how a program on the same machine queries a [Server].
type Access struct {
	// Address is the server's host:port; "" for no server.
	Address string
	// CertFile is the server's own certificate; "" queries without TLS. The server must present exactly this certificate,
	// so neither its name nor its issuer matters.
	CertFile string
	// Token is the token that the server requires; empty for none.
	Token handlers.Secret
}

// Get returns the status code and the answer to a GET, up to 8 MiB of it. It follows
// no redirects, uses no proxy, and leaves no connection open.
func (a Access) Get(ctx context.Context, path string) (code int, body []byte, err error) {
	// No proxy, no redirects, no connection that outlives the query.
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()

	scheme := "http://"
	if a.CertFile != "" {
		scheme = "https://"
		transport.TLSClientConfig, err = exactly(a.CertFile)
		if err != nil {
			return 0, nil, err
		}
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+a.Address+path, http.NoBody)
	if err != nil {
		return 0, nil, err
	}

	if !a.Token.IsZero() {
		request.Header.Set("Authorization", "Bearer "+a.Token.Reveal())
	}

	response, err := transport.RoundTrip(request)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return 0, nil, fmt.Errorf("notifyd at %s does not answer: %w", a.Address, err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read

	body, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return 0, nil, fmt.Errorf("the answer of notifyd at %s was cut short: %w", a.Address, err)
	}
	return response.StatusCode, body, nil
}

// errOther is the error of a handshake with a server that presents a different certificate.
var errOther = errors.New("it shows another certificate than the one in admin.tls.cert_file")

// exactly trusts the certificate in a file, and no other.
func exactly(file string) (*tls.Config, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("admin.tls.cert_file: %w", err)
	}

	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("admin.tls.cert_file: %s has no certificate in it: give a PEM file with BEGIN CERTIFICATE", file)
	}

	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		//nolint:gosec // verified below, by something stricter: it must be this certificate
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error { // also for a resumed session
			if certs := state.PeerCertificates; len(certs) == 0 || !bytes.Equal(certs[0].Raw, block.Bytes) {
				return errOther
			}
			return nil
		},
	}, nil
}

// CheckOutcomes is the name of the check that names the outcomes of single events that are withheld.
const CheckOutcomes = "outcomes"

// Advice returns the lines of an advisory check that fails, from the answer of /readyz?verbose.
func Advice(answer, check string) (all []string) {
	for line := range strings.Lines(answer) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "[!] "+check+": "); ok {
			all = append(all, text)
		}
	}
	return all
}

// Failures returns why a relay is not ready, from the answer of /readyz?verbose: a line for each failed check that is not
// advisory. An answer without details is returned unchanged.
func Failures(answer string) (all []string) {
	for line := range strings.Lines(answer) {
		if failed, ok := strings.CutPrefix(strings.TrimSpace(line), "[-] "); ok {
			all = append(all, failed)
		}
	}
	if all == nil {
		all = append(all, strings.TrimSpace(answer))
	}
	return all
}
