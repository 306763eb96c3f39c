package email

import (
	"cmp"
	"fmt"
	"net/mail"
	"slices"
	"strconv"
	"strings"
	"time"

	gomail "github.com/wneessen/go-mail"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/internal/tmpl"
)

const (
	// maxRecipients is the number that every server has to take (RFC 5321, 4.5.3.1.8).
	maxRecipients = 100
	// maxAddress is the longest path that SMTP knows (RFC 5321, 4.5.3.1.3).
	maxAddress = 254
	// maxHeader bounds a header's value: a line may have 998 bytes (RFC 5322,
	// 2.1.1), and a value without spaces cannot be folded.
	maxHeader = 900
)

// build makes the mail for an event. Its errors are about the event and the templates:
// another attempt would end the same way.
func (h *Handler) build(e *delivery.Event) (*gomail.Msg, error) {
	data, err := tmpl.NewData(e)
	if err != nil {
		return nil, err
	}

	page, err := h.tmpl.pages.choose(data)
	if err != nil {
		return nil, err
	}

	msg := gomail.NewMsg(gomail.WithNoDefaultUserAgent())

	from, err := h.setAddresses(msg, data)
	if err != nil {
		return nil, err
	}

	title, err := subject(page.subject, data)
	if err != nil {
		return nil, err
	}

	msg.Subject(title)
	msg.SetDateWithValue(time.Now())
	msg.SetMessageIDWithValue(messageID(e, cmp.Or(h.cfg.MessageIDDomain, domainOf(from))))

	msg.SetGenHeader("Auto-Submitted", "auto-generated")
	msg.SetGenHeader("X-Notifyd-Event-Id", strconv.FormatInt(e.ID, 10))
	msg.SetGenHeader("X-Notifyd-Event-Type", oneline.Of(e.Type, maxHeader))
	h.setTrace(msg, e)

	for _, name := range sortedKeys(h.tmpl.headers) {
		value, err := header(h.tmpl.headers[name], data)
		if err != nil {
			return nil, err
		}
		if value != "" {
			msg.SetGenHeader(gomail.Header(name), value)
		}
	}

	return msg, setBody(msg, data, page)
}

// setTrace names the trace of the event in the mail, unless headers sets traceparent: a
// reader with a question about a mail can quote it.
func (h *Handler) setTrace(msg *gomail.Msg, e *delivery.Event) {
	const name = "traceparent"
	value := oneline.Of(e.Headers[name], maxHeader)
	own := func(configured string) bool { return strings.EqualFold(configured, name) }
	if value != "" && !slices.ContainsFunc(sortedKeys(h.tmpl.headers), own) {
		msg.SetGenHeader("Traceparent", value)
	}
}

// setAddresses sets sender and recipients and returns the sender.
func (h *Handler) setAddresses(msg *gomail.Msg, data *tmpl.Data) (*mail.Address, error) {
	from, err := addresses(data, h.tmpl.from)
	if err != nil {
		return nil, err
	}

	if len(from) != 1 {
		return nil, fmt.Errorf("template %q yields %d addresses: it must yield one", "from", len(from))
	}

	msg.FromMailAddress(from[0])

	to, err := addresses(data, h.tmpl.to...)
	if err != nil {
		return nil, err
	}

	cc, err := addresses(data, h.tmpl.cc...)
	if err != nil {
		return nil, err
	}

	bcc, err := addresses(data, h.tmpl.bcc...)
	if err != nil {
		return nil, err
	}

	replyTo, err := addresses(data, h.tmpl.replyTo)
	if err != nil {
		return nil, err
	}

	seen := make(map[string]bool)
	to = unseen(to, seen)
	cc = unseen(cc, seen)
	bcc = unseen(bcc, seen)

	switch {
	case len(seen) == 0:
		return nil, fmt.Errorf("no recipient: %s yields none: fix the event, or the template", h.recipients())
	case len(seen) > maxRecipients:
		return nil, fmt.Errorf("templates to, cc and bcc yield %d recipients: %d is the limit", len(seen), maxRecipients)
	}

	for _, h := range []struct {
		list []*mail.Address
		set  func(...*mail.Address)
	}{
		{to, msg.ToMailAddress},
		{cc, msg.CcMailAddress},
		{bcc, msg.BccMailAddress},
		{replyTo, msg.ReplyToMailAddress},
	} {
		if len(h.list) > 0 { // go-mail would write a header without a value
			h.set(h.list...)
		}
	}

	return from[0], nil
}

// recipients names the settings of the recipients.
func (h *Handler) recipients() string {
	const most = 200
	var words []string
	for _, t := range slices.Concat(h.tmpl.to, h.tmpl.cc, h.tmpl.bcc) {
		words = append(words, fmt.Sprintf("%s: %s", t.Name(), oneline.Of(t.Source(), most)))
	}
	return oneline.Of(strings.Join(words, ", "), 2*most)
}

// addresses renders templates and parses the results. A nil template yields none.
func addresses(data *tmpl.Data, ts ...*tmpl.Template) ([]*mail.Address, error) {
	var all []*mail.Address
	for _, t := range ts {
		if t == nil {
			continue
		}

		text, err := t.Render(data)
		if err != nil {
			return nil, err
		}

		list, err := parseAddresses(text)
		if err != nil {
			return nil, fmt.Errorf("the output of template %q %w", t.Name(), err)
		}

		all = append(all, list...)
	}
	return all, nil
}

// unseen leaves out addresses that get the mail already.
func unseen(list []*mail.Address, seen map[string]bool) []*mail.Address {
	var fresh []*mail.Address
	for _, a := range list {
		if !seen[a.Address] {
			seen[a.Address] = true
			fresh = append(fresh, a)
		}
	}
	return fresh
}

// header renders a header's value, which must be one line.
func header(t *tmpl.Template, data *tmpl.Data) (string, error) {
	text, err := t.Render(data)
	if err != nil {
		return "", err
	}
	text = strings.TrimSpace(text)
	if strings.ContainsFunc(text, isControl) {
		return "", fmt.Errorf("the output of template %q holds a line end or another control character: a header has one line", t.Name())
	}
	return fit(t, text)
}

// subject renders the subject, and makes one line of it.
func subject(t *tmpl.Template, data *tmpl.Data) (string, error) {
	text, err := t.Render(data)
	if err != nil {
		return "", err
	}
	return fit(t, text)
}

// fit makes a text fit for a header: single spaces, and not too long. go-mail folds at
// spaces, and writes lines of spaces alone where there are many in a row, which some
// servers take for the end of the headers.
func fit(t *tmpl.Template, text string) (string, error) {
	text = oneline.Of(text, len(text))
	if len(text) > maxHeader {
		return "", fmt.Errorf("the output of template %q has more than %d bytes: shorten it with trunc", t.Name(), maxHeader)
	}
	return text, nil
}

// setBody sets text, HTML, or both as alternatives.
func setBody(msg *gomail.Msg, data *tmpl.Data, page page) error {
	set := msg.SetBodyString
	for _, part := range []struct {
		kind gomail.ContentType
		tmpl *tmpl.Template
	}{{gomail.TypeTextPlain, page.text}, {gomail.TypeTextHTML, page.html}} {
		if part.tmpl == nil {
			continue
		}

		body, err := part.tmpl.Render(data)
		if err != nil {
			return err
		}

		set(part.kind, body)
		set = msg.AddAlternativeString
	}
	return nil
}

// messageID is the same for every attempt, so that servers and readers recognise a
// mail that is sent again, and a replay has another. The destination is in it because two destinations
// may send different mails for one event.
func messageID(e *delivery.Event, domain string) string {
	plain := strings.Map(func(r rune) rune {
		isLetter := r|0x20 >= 'a' && r|0x20 <= 'z'
		isDigit := r >= '0' && r <= '9'
		if isLetter || isDigit || strings.ContainsRune("-_", r) {
			return r
		}
		return '-'
	}, cmp.Or(e.Destination, "email"))

	return fmt.Sprintf("notifyd.%s.%s@%s", e.DedupeID(), plain, domain)
}

// domainOf returns the domain of an address, or one that does not exist if the domain
// cannot stand in a Message-ID.
func domainOf(a *mail.Address) string {
	domain := a.Address[strings.LastIndexByte(a.Address, '@')+1:]
	if !isDotAtom(domain) {
		return "notifyd.invalid"
	}
	return domain
}
