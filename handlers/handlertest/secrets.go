package handlertest

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// minSecret keeps a secret from being found in unrelated texts.
const minSecret = 6

// maxShown is how much of a text with a secret is shown.
const maxShown = 500

// checkSecrets searches every error of all properties, as it is printed
// and logged, and at the log.
func checkSecrets(p *probe) {
	var forms []string
	for _, secret := range p.d.Secrets {
		if len(secret) < minSecret {
			p.Fatalf("a secret of %d bytes can be found anywhere: take one of %d at least", len(secret), minSecret)
		}
		forms = append(forms, disguises(secret)...)
	}

	p.mu.Lock()
	errs := p.errs
	p.mu.Unlock()

	for _, err := range errs {
		for _, e := range chain(err) {
			for _, text := range []string{fmt.Sprintf("%v", e), fmt.Sprintf("%+v", e), fmt.Sprintf("%#v", e)} {
				if shows(text, forms) {
					p.Errorf("an error (%T) shows a secret: %s", e, redact(text, forms))
				}
			}
		}
	}

	if p.d.Log == nil {
		p.Logf("%d errors looked at; the Destination has no Log", len(errs))
		return
	}

	for line := range strings.SplitSeq(p.d.Log(), "\n") {
		if shows(line, forms) {
			p.Errorf("the log shows a secret: %s", redact(line, forms))
		}
	}
}

// chain returns err and all that it wraps.
func chain(err error) []error {
	if err == nil {
		return nil
	}
	all := []error{err}

	switch e := err.(type) { //nolint:errorlint // this is the walk of errors.As
	case interface{ Unwrap() error }:
		all = append(all, chain(e.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			all = append(all, chain(inner)...)
		}
	}

	return all
}

// disguises returns the forms in which a secret gets into texts.
func disguises(secret string) []string {
	forms := []string{
		secret, url.QueryEscape(secret), url.PathEscape(secret), url.User(secret).String(),
		strings.Trim(strconv.Quote(secret), `"`),
		hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret))),
	}

	// In base64 a text looks different after one and after two other bytes: a
	// password is seldom encoded without the name before it.
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			all := enc.EncodeToString(append(make([]byte, before), secret...))
			// Each letter holds 6 bits. Those with bits of a neighbour are left out.
			from := (before*8 + 5) / 6
			to := (before + len(secret)) * 8 / 6
			forms = append(forms, all[from:to])
		}
	}

	return forms
}

func shows(text string, forms []string) bool {
	return slices.ContainsFunc(forms, func(form string) bool { return strings.Contains(text, form) })
}

// redact makes a text fit for the log of a test.
func redact(text string, forms []string) string {
	const mark = "[secret]"
	for _, form := range forms {
		text = strings.ReplaceAll(text, form, mark)
	}
	if len(text) > maxShown {
		at := max(strings.Index(text, mark)-maxShown/2, 0)
		text = text[at:min(at+maxShown, len(text))]
	}
	return text
}
