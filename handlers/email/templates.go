package email

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/mail"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/net/idna"

	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// templates are the parsed templates of a [Config].
type templates struct {
	from, replyTo, subject *tmpl.Template
	to, cc, bcc            []*tmpl.Template
	text, html             *tmpl.Template // nil if there is none
	headers                map[string]*tmpl.Template
	unsubscribe            []unsubscribe
	attachments            []attachment
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
		at := placeInList(path, i, len(texts))
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
		subject: p.parse("subject", c.Subject, tmpl.Text),
		to:      p.addresses("to", c.To),
		cc:      p.addresses("cc", c.Cc),
		bcc:     p.addresses("bcc", c.Bcc),
		text:    p.parse("text", c.Text, tmpl.Text),
		html:    p.parse("html", c.HTML, tmpl.HTML),
		headers: make(map[string]*tmpl.Template),

		unsubscribe: p.unsubscribes(c.ListUnsubscribe),
		attachments: p.attachments(c.Attachments),
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

// readFiles adds the templates in files.
func (t *templates) readFiles(c Config, baseDir string) error {
	var p parser
	read := func(path, name string, kind tmpl.Kind) *tmpl.Template {
		if name == "" {
			return nil
		}

		text, err := readFile(baseDir, name)
		if err != nil {
			p.errs = append(p.errs, field.Errorf(path, "%w", err))
			return nil
		}

		return p.parse(path, text, kind)
	}

	if text := read("text_file", c.TextFile, tmpl.Text); text != nil {
		t.text = text
	}
	if html := read("html_file", c.HTMLFile, tmpl.HTML); html != nil {
		t.html = html
	}

	hasFile := c.TextFile+c.HTMLFile != ""
	isEmpty := t.text == nil && t.html == nil
	if hasFile && isEmpty && len(p.errs) == 0 {
		at := "text_file"
		if c.TextFile == "" {
			at = "html_file"
		}
		p.errs = append(p.errs, field.Errorf(at, "the file is empty: write a template into it"))
	}

	return errors.Join(p.errs...)
}

// readFile reads a template or a key, up to [tmpl.MaxOutput].
func readFile(baseDir, name string) (string, error) {
	data, err := readBytes(baseDir, name, tmpl.MaxOutput)
	return string(data), err
}

// readBytes reads a file that the configuration names, up to a number of bytes.
func readBytes(baseDir, name string, most int) ([]byte, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(baseDir, name)
	}

	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written

	data, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}

	if len(data) > most {
		return nil, fmt.Errorf("has more than %d bytes: shorten it", most)
	}

	return data, nil
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
