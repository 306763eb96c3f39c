package email

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	gomail "github.com/wneessen/go-mail"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

const (
	// defaultFetchTimeout leaves most of a delivery's time to the mail server.
	defaultFetchTimeout = 10 * time.Second
	// maxFetchHeader is the size in bytes of the header of an answer.
	maxFetchHeader = 64 << 10
)

// newFetcher returns the client that fetches attachments. It follows no redirect, which could lead to any host.
func newFetcher() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			ForceAttemptHTTP2:      true,
			DisableCompression:     true, // the bytes as they are
			IdleConnTimeout:        idleTimeout,
			MaxResponseHeaderBytes: maxFetchHeader,
			TLSHandshakeTimeout:    defaultFetchTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// complete fetches contents by their URL, adds all attachments, and signs the mail. Its error has the class of a failed delivery.
func (h *Handler) complete(ctx context.Context, msg *gomail.Msg, parts []*part) error {
	left := h.cfg.MaxAttachmentBytes
	for _, p := range parts {
		if p.from != nil {
			if err := h.fetch(ctx, p, left); err != nil {
				return err
			}
		}
		left -= p.size
	}

	setParts(msg, parts, (*part).file)
	if err := h.sign(msg); err != nil {
		return h.pool.out.Refuse(err)
	}
	return nil
}

// fetch gets the content of an attachment, of at most this many bytes.
func (h *Handler) fetch(ctx context.Context, p *part, most int) error {
	fctx, cancel := outcome.Within(ctx, "fetch_timeout", h.cfg.FetchTimeout)
	defer cancel()

	req := (&http.Request{Method: http.MethodGet, URL: p.from, Host: p.from.Host}).WithContext(fctx)

	// unavailable is a fault of the source, which other mails may meet too.
	unavailable := func(err error) error {
		if ctx.Err() != nil {
			return h.pool.out.Ended(ctx, "fetching "+p.path)
		}
		if fctx.Err() != nil {
			err = context.Cause(fctx)
		}
		text := fmt.Sprintf("%s: fetch from %s: %v", p.path, p.from.Host, outcome.WithoutURL(err))
		return outcome.Unavailable.Mark(0, h.pool.out.Line(outcome.Failure{Err: err, Text: text}))
	}

	resp, err := h.fetcher.Do(req)
	if err != nil {
		return unavailable(err)
	}
	defer func() { _ = resp.Body.Close() }() // nothing was written

	if resp.StatusCode != http.StatusOK {
		wait, _ := outcome.RetryAfter(resp.Header, time.Now())
		line := h.pool.out.Line(outcome.Failure{
			Text: fmt.Sprintf("%s: fetch from %s: %s", p.path, p.from.Host, outcome.Status(resp.StatusCode)),
			Cure: fetchCure(resp.StatusCode),
		})
		return outcome.OfStatus(resp.StatusCode, p.url.Constant == nil).Mark(wait, line)
	}

	var content bytes.Buffer
	if resp.ContentLength > 0 {
		content.Grow(int(min(resp.ContentLength, int64(most))) + bytes.MinRead)
	}

	n, err := content.ReadFrom(io.LimitReader(resp.Body, int64(most)+1))
	switch {
	case err != nil:
		return unavailable(err)
	case n > int64(most):
		return h.pool.out.Refuse(errors.New(p.path + ": " + tooLarge(h.cfg.MaxAttachmentBytes)))
	}

	p.hold(content.Bytes())
	return nil
}

func fetchCure(code int) string {
	switch {
	case code/100 == 3:
		return "redirects are not followed: let url name the final address"
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return "let url have a token, or let the source admit this machine"
	default:
		return ""
	}
}

func tooLarge(most int) string {
	return fmt.Sprintf("the attachments have more than %d bytes together: shorten them, or raise max_attachment_bytes", most)
}
