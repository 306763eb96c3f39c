package email

import (
	"html"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// PreviewHTML returns what a browser shows of the mail for e: its HTML body, or its text as a page if it has no HTML.
func (h *Handler) PreviewHTML(e *delivery.Event) (string, error) {
	text, err := h.renderHTML(e)
	if err != nil {
		return "", h.pool.out.Refuse(err)
	}
	return text, nil
}

func (h *Handler) renderHTML(e *delivery.Event) (string, error) {
	data, err := tmpl.NewData(e)
	if err != nil {
		return "", err
	}

	chosen, err := h.tmpl.pages.choose(data)
	if err != nil {
		return "", err
	}
	if chosen.html != nil {
		return chosen.html.Render(data)
	}

	text, err := chosen.text.Render(data)
	if err != nil {
		return "", err
	}
	return "<!doctype html>\n<pre>" + html.EscapeString(text) + "</pre>\n", nil
}
