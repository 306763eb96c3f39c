package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// The headers of Standard Webhooks.
const (
	headerID        = "webhook-id"
	headerTimestamp = "webhook-timestamp"
	headerSignature = "webhook-signature"
)

// userAgent is the User-Agent unless headers sets one.
const userAgent = "notifyd"

// headerTemplates parses those of headers.
func (c Config) headerTemplates() (map[string]*tmpl.Template, error) {
	var errs []error
	headers := make(map[string]*tmpl.Template)
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		path := "headers." + name
		t, err := tmpl.Header.Parse(path, c.Headers[name])
		if err != nil {
			errs = append(errs, field.Errorf(path, "%w", err))
			continue
		}

		if text, constant := t.Constant(); constant && !isValue(text) {
			errs = append(errs, field.Errorf(path, "holds a line end or another control character: a header has one line"))
		}
		headers[name] = t
	}

	return headers, errors.Join(errs...)
}

// draft is a request without the parts of one attempt: the time and the signature.
type draft struct {
	url    *url.URL
	header http.Header
	body   []byte
	id     string
	batch  int     // how many events the body of a batch holds; 0 without a batch
	named  results // of an answer of 207 to a batch
}

// draft makes the request for an event. Its errors are about the event and the
// templates: another attempt would end the same way.
func (h *Handler) draft(e *delivery.Event) (*draft, error) {
	data, err := h.data(e)
	if err != nil {
		return nil, err
	}

	place, err := h.target.Place(data)
	if err != nil {
		return nil, err
	}

	d := &draft{url: place, header: make(http.Header), id: webhookID(h.cfg.IDPrefix, e)}

	msg := h.encoder.Encode(e)
	if err := h.encoder.Render(&msg, e, data); err != nil {
		return nil, err
	}

	d.setHeaders(msg.Headers, h.eventHeaders)
	d.body = msg.Body

	configured, err := h.configuredHeaders(data)
	if err != nil {
		return nil, err
	}

	h.finish(d, msg.ContentType, configured)
	return d, nil
}

// data returns the template data of an event; nil without templates.
func (h *Handler) data(e *delivery.Event) (*tmpl.Data, error) {
	if !h.needsData {
		return nil, nil //nolint:nilnil // most destinations have no templates
	}
	return tmpl.NewData(e)
}

// configuredHeaders returns the headers that the configuration sets, in the order of their names.
func (h *Handler) configuredHeaders(data *tmpl.Data) ([]message.Header, error) {
	var all []message.Header
	for _, name := range slices.Sorted(maps.Keys(h.headers)) {
		t := h.headers[name]
		value, err := t.Render(data)
		if err != nil {
			return nil, err
		}

		value = strings.TrimSpace(value)
		if !isValue(value) {
			return nil, fmt.Errorf("the output of template %q holds a line end or another control character: a header "+
				"has one line", t.Name())
		}

		if value != "" {
			all = append(all, message.Header{Name: name, Value: value})
		}
	}

	return all, nil
}

// finish sets the headers that every request has. The configured ones replace others, but for the id and the credentials.
func (h *Handler) finish(d *draft, contentType string, configured []message.Header) {
	d.header.Set("Content-Type", contentType)
	d.header.Set("User-Agent", userAgent)
	for _, own := range configured {
		d.header.Set(own.Name, own.Value)
	}
	d.header.Set(headerID, d.id)
	if h.authorization != "" {
		d.header.Set("Authorization", h.authorization)
	}
}

// folded returns the name by which WSGI, CGI and PHP know a header: they see no case, and no difference between "-" and "_".
func folded(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// sentHeaders returns the names under which the event's own headers are sent, by their folded names.
func (c Config) sentHeaders() map[string]string {
	names := make(map[string]string)
	for _, name := range append([]string{"traceparent", "tracestate", "baggage"}, c.EventHeaders...) {
		names[folded(name)] = name
	}
	for name := range c.Headers { // the configured value takes the place of the event's
		delete(names, folded(name))
	}
	return names
}

// setHeaders sets the headers of the message: those about the event, and of the event's own those in allowed, which has their
// folded names. A name is sent in one spelling only.
func (d *draft) setHeaders(headers []message.Header, allowed map[string]string) {
	for _, header := range headers {
		name := header.Name
		if !message.IsOwn(name) {
			name = allowed[folded(name)]
		}
		isExact := strings.EqualFold(name, header.Name)
		if name != "" && (isExact || d.header.Get(name) == "") {
			d.header.Set(name, header.Value)
		}
	}
}

// request makes the request of one attempt.
func (h *Handler) request(ctx context.Context, d *draft) (*http.Request, error) {
	now := time.Now()
	req, err := http.NewRequestWithContext(ctx, h.cfg.Method, "", bytes.NewReader(d.body))
	if err != nil {
		return nil, err
	}

	req.URL = d.url
	req.Host = d.url.Host
	req.Header = d.header.Clone()
	req.Header.Set(headerTimestamp, strconv.FormatInt(now.Unix(), 10))

	if len(h.signers) > 0 {
		signature, err := h.sign(d.id, now, d.body)
		if err != nil {
			return nil, err
		}
		req.Header.Set(headerSignature, signature)
	}

	return req, nil
}

// unsendable reports whether a header, folded, is about the connection or set
// by the handler. See RFC 9110, 7.6.1.
func unsendable(lower string) bool {
	switch lower {
	case "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "te", "trailer",
		"transfer-encoding", "upgrade", headerID, headerTimestamp, headerSignature:
		return true
	default:
		return strings.HasPrefix(lower, "proxy-")
	}
}

// isToken reports whether s can be the name of a header (RFC 9110, 5.6.2).
func isToken(s string) bool {
	for _, c := range []byte(s) {
		isLetter := c|0x20 >= 'a' && c|0x20 <= 'z'
		isDigit := c >= '0' && c <= '9'
		if !isLetter && !isDigit && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// isValue reports whether s can be the value of a header: one line.
func isValue(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}
