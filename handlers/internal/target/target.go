// Package target parses URLs with templates: the host stands in the setting, or events choose it.
package target

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/notifyd/notifyd/internal/tmpl"
)

// MaxURL is the length that any server takes, in bytes (RFC 9110, 4.1, asks for 8000 octets).
const MaxURL = 8000

// ErrOpenHost means that events would choose the host, or a part of it.
var ErrOpenHost = errors.New("the host is not complete before the first {{: write a / behind it")

// ErrEmpty means that a template yields nothing for an event.
var ErrEmpty = errors.New("is empty")

// URL is the URL of requests.
type URL struct {
	// Constant is the whole URL where it is the same for every event; nil where it is not.
	Constant *url.URL

	base *url.URL       // scheme and host; nil where the event chooses the host
	tmpl *tmpl.Template // nil where the URL is constant
}

// Parse parses the URL of the named setting. Its errors do not repeat it: there may be a token in it. With anyHost, events
// may choose the host, and it returns no [ErrOpenHost]; their values are not escaped then.
func Parse(setting, raw string, anyHost bool) (*URL, error) {
	prefix, _, templated := strings.Cut(raw, "{{")
	base, fixed := hostPart(prefix, templated)
	switch {
	case !fixed && !templated:
		return nil, errors.New("must be a URL such as https://example.com/hook")
	case !fixed && !anyHost:
		return nil, ErrOpenHost
	}

	t := &URL{}
	var err error
	if fixed {
		t.base, err = check(base)
		if err != nil {
			return nil, err
		}
	}

	switch {
	case !templated:
		t.Constant, err = check(raw)
	case fixed:
		t.tmpl, err = tmpl.URL.Parse(setting, raw)
	default:
		t.tmpl, err = tmpl.AnyURL.Parse(setting, raw)
	}

	if err != nil {
		return nil, err
	}

	return t, nil
}

// Base returns scheme and host: both are empty where the event chooses the host. It must not be changed.
func (t *URL) Base() *url.URL {
	if t.base == nil {
		return &url.URL{}
	}
	return t.base
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

// check parses a URL. The error does not repeat it.
func check(raw string) (*url.URL, error) {
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

// Place returns the URL for an event, which must not be changed.
func (t *URL) Place(data *tmpl.Data) (*url.URL, error) {
	if t.Constant != nil {
		return t.Constant, nil
	}

	text, err := t.tmpl.Render(data)
	if err != nil {
		return nil, err
	}

	text = strings.TrimSpace(text)
	switch {
	case text == "":
		return nil, fmt.Errorf("the output of template %q %w", t.tmpl.Name(), ErrEmpty)
	case len(text) > MaxURL:
		return nil, fmt.Errorf("the output of template %q has more than %d bytes", t.tmpl.Name(), MaxURL)
	}

	u, err := check(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the output of template %q %w", t.tmpl.Name(), err)
	case t.base == nil:
		return u, nil
	case u.Scheme != t.base.Scheme || u.Host != t.base.Host:
		return nil, fmt.Errorf("the output of template %q leads to another host", t.tmpl.Name())
	default:
		return u, nil
	}
}
