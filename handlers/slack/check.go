package slack

import (
	"context"
	"net/http"
	"net/url"

	slackgo "github.com/slack-go/slack"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// Check tests the token (auth.test). A webhook has no such test: Check then looks
// whether the server answers. It implements delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	if h.closed.Load() {
		return h.out.Closed()
	}
	rctx, cancel := outcome.Within(ctx, "request_timeout", h.cfg.RequestTimeout)
	defer cancel()
	return h.verdict(ctx, rctx, h.poster.check(rctx))
}

func (p *apiPoster) check(ctx context.Context) *answer {
	a := &answer{}
	client := slackgo.New(p.token, slackgo.OptionAPIURL(p.url), slackgo.OptionHTTPClient(a.client(p.http)))
	_, err := client.AuthTestContext(ctx)
	a.classify(err)
	a.ok = err == nil
	return a
}

func (p *webhookPoster) check(ctx context.Context) *answer {
	a := &answer{}
	u, err := url.Parse(p.url)
	if err != nil {
		a.sendError = err
		return a
	}

	root := url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/"}
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, root.String(), http.NoBody)
	if err != nil {
		a.sendError = err
		return a
	}

	response, err := a.client(p.http).Do(request)
	if err != nil {
		a.readError = err
		return a
	}

	_ = response.Body.Close() // of HEAD
	a.ok = true
	return a
}

// DescribeCheck implements delivery.CheckDescriber.
func (h *Handler) DescribeCheck() (tested, untested string) {
	if _, ok := h.poster.(*apiPoster); ok {
		return "the token", "the channel, and the right to post there"
	}
	return "that the server answers", "the URL: a webhook of Slack has no request without effect"
}

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
)
