package email

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/emersion/go-msgauth/dkim"
	gomail "github.com/wneessen/go-mail"

	"github.com/notifyd/notifyd/delivery"
)

// lookupTXT asks the DNS for the texts of a name.
type lookupTXT func(ctx context.Context, name string) ([]string, error)

// Advise asks the DNS, as receivers do, whether the published keys fit those of [Config.DKIM], and whether the domain of the sender
// has SPF and DMARC records. Without DKIM it asks nothing. It implements [delivery.Adviser].
func (h *Handler) Advise(ctx context.Context) []string {
	var all []string
	for _, s := range h.signatures {
		all = append(all, h.adviseKey(ctx, s))
	}

	sender := senderDomain(h.cfg.From)
	if len(h.signatures) > 0 && sender != "" {
		all = append(all, h.adviseSPF(ctx, sender), h.adviseDMARC(ctx, sender))
	}

	return slices.DeleteFunc(all, func(text string) bool { return text == "" })
}

// adviseKey signs a mail, and verifies it by the published key.
func (h *Handler) adviseKey(ctx context.Context, s *dkim.SignOptions) string {
	msg := gomail.NewMsg()
	msg.SetBodyString(gomail.TypeTextPlain, "")
	if err := msg.From("check@" + s.Domain); err != nil {
		return fmt.Sprintf("dkim: %s is no domain of a sender", s.Domain)
	}

	var mail, signed bytes.Buffer
	_, err := msg.WriteTo(&mail)
	if err == nil {
		err = dkim.Sign(&signed, &mail, s)
	}
	if err != nil {
		return "dkim: the key signs no mail: " + err.Error()
	}

	var silence error // of the DNS
	verifications, err := dkim.VerifyWithOptions(&signed, &dkim.VerifyOptions{LookupTXT: func(name string) ([]string, error) {
		texts, err := h.lookup(ctx, name)
		if err != nil && !isMissing(err) {
			silence = err
		}
		return texts, err
	}})
	if err == nil && len(verifications) > 0 {
		err = verifications[0].Err
	}

	name := s.Selector + "._domainkey." + s.Domain
	switch {
	case err == nil:
		return ""
	case silence != nil:
		return fmt.Sprintf("dkim: the DNS could not be asked for %s: %v", name, silence)
	default:
		return fmt.Sprintf("dkim: receivers will not verify the signature by %s: %v: publish this TXT record there: %s", name, err, record(s.Signer))
	}
}

// record returns the record to publish for a key (RFC 6376, 3.6.1; RFC 8463, 4.2).
func record(key crypto.Signer) string {
	var kind string
	var public []byte
	switch k := key.Public().(type) {
	case *rsa.PublicKey:
		kind = "rsa"
		public, _ = x509.MarshalPKIXPublicKey(k) // never fails for this type
	case ed25519.PublicKey:
		kind = "ed25519"
		public = k
	}

	return "v=DKIM1; k=" + kind + "; p=" + base64.StdEncoding.EncodeToString(public)
}

// adviseSPF looks for the record that names the machines that may send (RFC 7208).
func (h *Handler) adviseSPF(ctx context.Context, domain string) string {
	found, err := h.hasRecord(ctx, domain, "v=spf1")
	switch {
	case err != nil:
		return fmt.Sprintf("spf: the DNS could not be asked for %s: %v", domain, err)
	case !found:
		return fmt.Sprintf("spf: %s has no TXT record that begins with v=spf1: publish one that names the servers that send", domain)
	default:
		return ""
	}
}

// adviseDMARC looks for the policy of a domain, or of a domain above it (RFC 7489, 6.6.3).
func (h *Handler) adviseDMARC(ctx context.Context, domain string) string {
	for at := domain; strings.Contains(at, "."); _, at, _ = strings.Cut(at, ".") {
		found, err := h.hasRecord(ctx, "_dmarc."+at, "v=DMARC1")
		switch {
		case err != nil:
			return fmt.Sprintf("dmarc: the DNS could not be asked for _dmarc.%s: %v", at, err)
		case found:
			return ""
		}
	}
	return fmt.Sprintf("dmarc: _dmarc.%s has no TXT record that begins with v=DMARC1: publish one, such as v=DMARC1; p=none", domain)
}

// hasRecord reports whether a name has a text with this beginning.
func (h *Handler) hasRecord(ctx context.Context, name, beginning string) (bool, error) {
	texts, err := h.lookup(ctx, name)
	if isMissing(err) {
		return false, nil
	}
	return slices.ContainsFunc(texts, func(text string) bool { return strings.HasPrefix(text, beginning) }), err
}

// isMissing reports whether the DNS has answered, and has no text of this name.
func isMissing(err error) bool {
	answer, ok := errors.AsType[*net.DNSError](err)
	return ok && answer.IsNotFound
}

var _ delivery.Adviser = (*Handler)(nil)
