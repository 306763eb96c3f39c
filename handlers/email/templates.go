package email

import (
	"errors"
	"fmt"
	"maps"
	"net/mail"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"

	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// templates are the parsed templates of a [Config].
type templates struct {
	from, replyTo *tmpl.Template
	to, cc, bcc   []*tmpl.Template
	headers       map[string]*tmpl.Template
	pages         pages
}

// parser collects the mistakes of several templates.
type parser struct{ errs []error }

func (p *parser) parse(path, text string, kind tmpl.Kind) *tmpl.Template {
	if text == "" {
		return nil
	}
	t, err := kind.Parse(path, text)
	if err != nil {
		p.errs = append(p.errs, field.Errorf(path, "%w", err))
		return nil
	}
	return t
}

// address parses a template that yields addresses. Those of a template without actions
// are checked right now.
func (p *parser) address(path, text string) *tmpl.Template {
	t := p.parse(path, text, tmpl.Address)
	if t == nil {
		return nil
	}
	if constant, ok := t.Constant(); ok {
		if _, err := parseAddresses(constant); err != nil {
			p.errs = append(p.errs, field.Errorf(path, "%w", err))
		}
	}
	return t
}

func (p *parser) addresses(path string, texts []string) []*tmpl.Template {
	var all []*tmpl.Template
	for i, text := range texts {
		at := path
		if len(texts) > 1 {
			at = path + "." + strconv.Itoa(i)
		}

		if strings.TrimSpace(text) == "" {
			p.errs = append(p.errs, field.Errorf(at, "is empty: name a recipient, or take it out"))
			continue
		}

		all = append(all, p.address(at, text))
	}
	return all
}

// parseTemplates parses the templates in the configuration itself.
func parseTemplates(c Config) (*templates, error) {
	var p parser
	t := &templates{
		from:    p.address("from", c.From),
		replyTo: p.address("reply_to", c.ReplyTo),
		to:      p.addresses("to", c.To),
		cc:      p.addresses("cc", c.Cc),
		bcc:     p.addresses("bcc", c.Bcc),
		headers: make(map[string]*tmpl.Template),
		pages:   p.pages(c),
	}

	for _, name := range sortedKeys(c.Headers) {
		if h := p.parse("headers."+name, c.Headers[name], tmpl.Header); h != nil {
			t.headers[name] = h
		}
	}

	if t.from != nil {
		if from, ok := t.from.Constant(); ok {
			if list, err := parseAddresses(from); err == nil && len(list) != 1 {
				p.errs = append(p.errs, field.Errorf("from", "must be one address, not %d", len(list)))
			}
		}
	}

	return t, errors.Join(p.errs...)
}

// parseAddresses parses addresses with commas between them. Its errors do not
// repeat the text.
func parseAddresses(text string) ([]*mail.Address, error) {
	text = strings.Trim(text, ", \t\r\n")
	if text == "" {
		return nil, nil
	}

	if strings.ContainsFunc(text, isControl) {
		return nil, errors.New("holds a line end or another control character: keep the addresses on one line")
	}

	list, err := mail.ParseAddressList(text)
	if err != nil {
		return nil, errors.New("is not an e-mail address: write a@example.com, or Name <a@example.com>, with commas between several")
	}

	for _, a := range list {
		a.Name = strings.Join(strings.Fields(a.Name), " ")
		a.Address, err = withASCIIDomain(a.Address)
		if err != nil {
			return nil, err
		}

		if len(a.Address) > maxAddress || len(a.Name) > maxHeader {
			return nil, fmt.Errorf("holds an address of more than %d bytes or a name of more than %d", maxAddress, maxHeader)
		}
	}

	return list, nil
}

// withASCIIDomain returns an address whose domain any server understands: münchen.example becomes
// xn--mnchen-3ya.example.
func withASCIIDomain(address string) (string, error) {
	at := strings.LastIndexByte(address, '@') + 1
	if isASCII(address[at:]) {
		return address, nil
	}
	domain, err := idna.Lookup.ToASCII(address[at:])
	if err != nil { // its text has the domain
		return "", errors.New("holds a domain that cannot exist: see RFC 5891 for the letters of a domain")
	}
	return address[:at] + domain, nil
}

func isASCII(s string) bool { return !strings.ContainsFunc(s, func(r rune) bool { return r > 0x7f }) }

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
