package email

import (
	"crypto"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/emersion/go-msgauth/dkim"
	gomail "github.com/wneessen/go-mail"

	"github.com/notifyd/notifyd/internal/field"
)

// Signature is a DKIM signature that each mail gets (RFC 6376).
type Signature struct {
	// Domain that signs: the domain of `from`, or one above it.
	Domain string `json:"domain" yaml:"domain" unset:"required"`

	// Name of the key in the DNS: receivers look it up as a TXT record of
	// `SELECTOR._domainkey.DOMAIN`.
	Selector string `json:"selector" yaml:"selector" unset:"required"`

	// PEM file with the private key, RSA or Ed25519, relative to the configuration
	// file. A reload reads it again.
	KeyFile string `json:"key_file" yaml:"key_file" kind:"path" unset:"required"`
}

const (
	// leastKeyBits is the size below which receivers refuse a signature of RSA (RFC 8301, 3.2).
	leastKeyBits = 1024
	// maxSignatures bounds the signatures of a mail: one for each kind of key, while both are changed.
	maxSignatures = 4
	maxKeyBytes   = 64 << 10
	signatureName = "DKIM-Signature"
)

// signedHeaders are the headers that a signature covers. A header that stands here twice cannot be added to a signed mail (RFC
// 6376, 5.4.2). The last two are required for unsubscribing with one click (RFC 8058, 4).
func signedHeaders() []string {
	return []string{
		"From", "From", "Reply-To", "Subject", "Subject", "Date", "To", "To", "Cc", "Message-ID",
		"MIME-Version", "Content-Type", "Content-Transfer-Encoding",
		"List-Unsubscribe", "List-Unsubscribe-Post",
	}
}

// signatures checks the settings of DKIM.
func (c Config) signatures() error {
	var errs []error
	if len(c.DKIM) > maxSignatures {
		errs = append(errs, field.Errorf("dkim", "has %d signatures: %d is the limit", len(c.DKIM), maxSignatures))
	}

	sender := senderDomain(c.From)
	for i, s := range c.DKIM {
		at := "dkim." + strconv.Itoa(i)
		switch {
		case s.Domain == "":
			errs = append(errs, field.Errorf(at+".domain", "missing: write the domain of from, such as example.com"))
		case !isDotAtom(s.Domain) || !isASCII(s.Domain):
			errs = append(errs, field.Errorf(at+".domain", "must be a domain such as example.com, xn--... for other letters"))
		case sender != "" && !covers(s.Domain, sender):
			errs = append(errs, field.Errorf(at+".domain",
				"is neither the domain of from, %s, nor above it: receivers would not count the signature as the sender's", sender))
		}

		switch {
		case s.Selector == "":
			errs = append(errs, field.Errorf(at+".selector", "missing: write the name of the key in the DNS"))
		case !isDotAtom(s.Selector) || !isASCII(s.Selector):
			errs = append(errs, field.Errorf(at+".selector", "must be letters, digits and hyphens, such as shop2026"))
		}

		if s.KeyFile == "" {
			errs = append(errs, field.Errorf(at+".key_file", "missing: name the PEM file with the private key"))
		}
	}

	return errors.Join(errs...)
}

// covers reports whether a domain is another one, or above it.
func covers(domain, other string) bool {
	domain = strings.ToLower(domain)
	other = strings.ToLower(other)
	return other == domain || strings.HasSuffix(other, "."+domain)
}

// readSignatures reads the keys.
func readSignatures(c Config, baseDir string) ([]*dkim.SignOptions, error) {
	var all []*dkim.SignOptions
	var errs []error
	for i, s := range c.DKIM {
		if s.KeyFile == "" {
			continue // Validate reports it
		}

		key, err := readKey(baseDir, s.KeyFile)
		if err != nil {
			errs = append(errs, field.Errorf("dkim."+strconv.Itoa(i)+".key_file", "%w", err))
			continue
		}

		all = append(all, &dkim.SignOptions{
			Domain:                 s.Domain,
			Selector:               s.Selector,
			Signer:                 key,
			HeaderCanonicalization: dkim.CanonicalizationRelaxed,
			// Our bodies are encoded, so no server changes their white space. The relaxed form takes three times as long.
			BodyCanonicalization: dkim.CanonicalizationSimple,
			HeaderKeys:           signedHeaders(),
		})
	}

	return all, errors.Join(errs...)
}

// readKey reads a private key. Its errors have nothing of the file.
func readKey(baseDir, name string) (crypto.Signer, error) {
	text, err := readBytes(baseDir, name, maxKeyBytes)
	if err != nil {
		return nil, err
	}

	key, err := gomail.PrivKeyFromPEM(text)
	if err != nil {
		return nil, fmt.Errorf("has no private key of RSA or Ed25519 in PEM: write one with openssl genpkey: %w", err)
	}

	rsaKey, isRSA := key.(*rsa.PrivateKey)
	if isRSA && rsaKey.N.BitLen() < leastKeyBits {
		return nil, fmt.Errorf("has a key of %d bits: receivers want %d at least, write one of 2048", rsaKey.N.BitLen(), leastKeyBits)
	}

	return key, nil
}

// sign adds the signatures to a mail, which must not be changed afterwards. It writes the mail to nowhere, and keeps no copy of it.
func (h *Handler) sign(msg *gomail.Msg) error {
	if len(h.signatures) == 0 {
		return nil
	}

	var signers []*dkim.Signer
	var to []io.Writer
	for _, options := range h.signatures {
		s, err := dkim.NewSigner(options)
		if err != nil {
			return errors.Join(err, closeAll(signers))
		}
		signers = append(signers, s)
		to = append(to, s)
	}

	_, err := msg.WriteTo(io.MultiWriter(to...))
	if err := errors.Join(err, closeAll(signers)); err != nil {
		return fmt.Errorf("sign the mail: %w", err)
	}

	var values []string
	for _, s := range signers {
		value := strings.TrimPrefix(s.Signature(), signatureName+":")
		values = append(values, strings.TrimSpace(value))
	}

	// go-mail takes one text for each header, and writes it as it is.
	msg.SetGenHeaderPreformatted(signatureName, strings.Join(values, "\r\n"+signatureName+": "))
	return nil
}

func closeAll(signers []*dkim.Signer) error {
	var errs []error
	for _, s := range signers {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
