package email

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	gomail "github.com/wneessen/go-mail"

	"github.com/notifyd/notifyd/handlers/internal/target"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

const (
	httpsURL  = "https://"
	mailtoURL = "mailto:"
	// oneClick is the value of List-Unsubscribe-Post (RFC 8058, 3.1).
	oneClick = "List-Unsubscribe=One-Click"
)

// unsubscribing checks whether the mails are signed if readers can unsubscribe with one click.
func (c Config) unsubscribing() error {
	isClick := func(text string) bool { return strings.HasPrefix(text, httpsURL) }
	isSigned := len(c.DKIM) > 0 || c.ServerSigns

	var errs []error
	for i, text := range c.ListUnsubscribe {
		if isClick(text) && !isSigned {
			errs = append(errs, field.Errorf(placeInList("list_unsubscribe", i, len(c.ListUnsubscribe)),
				"needs a DKIM signature, without which receivers offer no such click (RFC 8058): "+
					"set dkim, or, if the mail server signs, server_signs: true"))
		}
	}

	if c.ServerSigns && len(c.ListUnsubscribe) == 0 {
		errs = append(errs, field.Errorf("server_signs", "has no effect without list_unsubscribe: take it out"))
	}

	return errors.Join(errs...)
}

// placeInList is the path of an element of a list that may be written as one text.
func placeInList(path string, i, n int) string {
	if n == 1 {
		return path
	}
	return path + "." + strconv.Itoa(i)
}

// unsubscribe is one way to unsubscribe.
type unsubscribe struct {
	click *target.URL    // nil for a mail
	mail  *tmpl.Template // nil for a click
}

// unsubscribes parses the URLs of list_unsubscribe.
func (p *parser) unsubscribes(texts []string) []unsubscribe {
	var all []unsubscribe
	for i, text := range texts {
		at := placeInList("list_unsubscribe", i, len(texts))
		switch {
		case strings.HasPrefix(text, httpsURL):
			click, err := target.Parse(at, text, false)
			if err != nil {
				p.errs = append(p.errs, field.Errorf(at, "%w", err))
				continue
			}
			all = append(all, unsubscribe{click: click})
		case strings.HasPrefix(text, mailtoURL):
			all = append(all, unsubscribe{mail: p.parse(at, text, tmpl.URL)})
		default:
			p.errs = append(p.errs, field.Errorf(at, "must begin with %s or %s", httpsURL, mailtoURL))
		}
	}
	return all
}

// url returns the URL for an event.
func (u unsubscribe) url(data *tmpl.Data) (string, error) {
	if u.mail != nil {
		return u.mail.Render(data)
	}
	at, err := u.click.Place(data)
	if err != nil {
		return "", err
	}
	return at.String(), nil
}

// setUnsubscribe sets the headers by which readers unsubscribe (RFC 2369, RFC 8058).
func (h *Handler) setUnsubscribe(msg *gomail.Msg, data *tmpl.Data) error {
	var values []string
	for _, u := range h.tmpl.unsubscribe {
		text, err := u.url(data)
		if err != nil {
			return err
		}

		if strings.ContainsFunc(text, isOutsideURL) || len(text) > maxHeader {
			return fmt.Errorf("a result of list_unsubscribe has more than %d bytes, or a character that a URL has not: "+
				"shorten it, or write it in percent form", maxHeader)
		}

		values = append(values, "<"+text+">")
		if u.click != nil {
			msg.SetGenHeader(gomail.HeaderListUnsubscribePost, oneClick)
		}
	}

	if len(values) > 0 {
		msg.SetGenHeader(gomail.HeaderListUnsubscribe, values...)
	}
	return nil
}

// isOutsideURL reports whether a character would end a URL in a header.
func isOutsideURL(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`<>"`, r) }
