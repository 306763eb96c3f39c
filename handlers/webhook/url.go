package webhook

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// maxURL is the length that any server takes (RFC 9110, 4.1, asks for 8000 octets).
const maxURL = 8000

// target is the URL of requests.
type target struct {
	dynamic  bool           // the event chooses the host
	constant *url.URL       // the whole URL where it is the same for every event
	tmpl     *tmpl.Template // where it is not
	// scheme and host are parts of the URL where the host is not dynamic.
	scheme, host string
}

// parseTarget parses the setting url. Its errors do not repeat it: there may be
// a token in it.
func parseTarget(raw string, dynamic bool) (*target, error) {
	prefix, _, templated := strings.Cut(raw, "{{")
	base, fixed := hostPart(prefix, templated)
	switch {
	case strings.TrimSpace(raw) == "":
		return nil, field.Errorf("url", "missing: write where to send to, such as https://example.com/hook")
	case fixed && dynamic:
		return nil, field.Errorf("dynamic_host", "the host stands in url and no event can change it: take dynamic_host out")
	case !fixed && !templated:
		return nil, field.Errorf("url", "must be a URL such as https://example.com/hook")
	case !fixed && !dynamic:
		return nil, field.Errorf("url", "the host is not complete before the first {{: write a / behind it; "+
			"or, if events may choose the host, set dynamic_host: true")
	}

	t := &target{dynamic: dynamic}
	if fixed {
		u, err := checkURL(base)
		if err != nil {
			return nil, field.Errorf("url", "%w", err)
		}
		t.scheme = u.Scheme
		t.host = u.Host
	}

	var err error
	switch {
	case !templated:
		t.constant, err = checkURL(raw)
		if err != nil {
			return nil, field.Errorf("url", "%w", err)
		}
	case fixed:
		t.tmpl, err = tmpl.URL.Parse("url", raw)
	default:
		t.tmpl, err = tmpl.AnyURL.Parse("url", raw)
	}

	if err != nil {
		return nil, field.Errorf("url", "%w", err)
	}

	return t, nil
}

// hostPart returns scheme and host, and whether they end before the first
// value: a value right behind "example.com" could make ".evil.example" of it,
// or "@evil.example".
func hostPart(prefix string, more bool) (string, bool) {
	scheme, rest, ok := strings.Cut(prefix, "://")
	if !ok {
		return "", false
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		return prefix, !more
	}
	return scheme + "://" + rest[:end], true
}

// checkURL parses a URL. The error does not repeat it.
func checkURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, errors.New("is not a URL: write https://example.com/hook, with special characters in percent form")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must begin with https:// or http://")
	case u.Hostname() == "":
		return nil, errors.New("has no host: write https://example.com/hook")
	case u.User != nil:
		return nil, errors.New("must not hold a user or password: use username and password, or bearer_token")
	}

	u.Fragment = ""
	u.RawFragment = ""
	return u, nil
}

// place returns the URL for an event, which must not be changed.
func (t *target) place(data *tmpl.Data) (*url.URL, error) {
	if t.constant != nil {
		return t.constant, nil
	}

	text, err := t.tmpl.Render(data)
	if err != nil {
		return nil, err
	}

	text = strings.TrimSpace(text)
	if len(text) > maxURL {
		return nil, fmt.Errorf("the output of template %q has more than %d bytes", "url", maxURL)
	}

	u, err := checkURL(text)
	if err != nil {
		return nil, fmt.Errorf("the output of template %q %w", "url", err)
	}

	if t.dynamic {
		return u, nil
	}

	if u.Scheme != t.scheme || u.Host != t.host {
		return nil, fmt.Errorf("the output of template %q leads to another host", "url")
	}

	return u, nil
}
