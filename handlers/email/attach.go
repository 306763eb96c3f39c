package email

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	gomail "github.com/wneessen/go-mail"

	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/handlers/internal/target"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// Attachment is a file that a mail has: one of File, Base64, Bytes and URL.
type Attachment struct {
	// File that every mail has: of the folder `templates`, or, without it, relative
	// to the configuration file. A reload reads it again.
	File string `json:"file,omitempty" yaml:"file,omitempty" kind:"path" unset:"'file', 'base64', 'bytes' or 'url' is required"`

	// Member of the payload that holds the content in base64: a path as of the
	// function `get`, such as `invoice.pdf`.
	Base64 string `json:"base64,omitempty" yaml:"base64,omitempty"`

	// The payload is the content, as for an event that was written as bytes.
	Bytes bool `json:"bytes,omitempty" yaml:"bytes,omitempty"`

	// URL that the content is fetched from for each attempt.
	URL string `json:"url,omitempty" yaml:"url,omitempty" kind:"template"`

	// Hosts that `url` may lead to, if the event chooses the host: `files.example.com`,
	// or `files.example.com:8443` for another port.
	Hosts []string `json:"hosts,omitempty" yaml:"hosts,omitempty" kind:"list of names"`

	// Name that readers see. Slashes and control characters become `_`.
	Name string `json:"name,omitempty" yaml:"name,omitempty" kind:"template" unset:"the name of 'file'; required without it"`

	// Media type.
	Type string `json:"type,omitempty" yaml:"type,omitempty" unset:"by the ending of 'name', 'application/octet-stream' for an unknown one"`

	// Id by which the HTML shows the file as a picture: `logo` for
	// `<img src="cid:logo">`.
	ContentID string `json:"content_id,omitempty" yaml:"content_id,omitempty" unset:"an attachment"`

	// The mail is sent without it if the payload has no such member, or `url` yields
	// nothing.
	Optional bool `json:"optional,omitempty" yaml:"optional,omitempty"`
}

const (
	maxAttachments            = 50
	defaultMaxAttachmentBytes = 10 << 20
	mostAttachmentBytes       = 100 << 20
	// maxRoom bounds the attachments, in bytes, of all mails that are being sent at one time. go-mail holds each encoded, which
	// takes four times as much.
	maxRoom = 32 << 20
	// maxName bounds a name, in bytes. Most file systems take 255.
	maxName     = 200
	unknownType = "application/octet-stream"
)

// attachment is a parsed [Attachment].
type attachment struct {
	Attachment

	path    string // of the setting
	name    *tmpl.Template
	url     *target.URL
	content []byte // of File
}

// sources returns the names of the settings that say where the content is.
func (a Attachment) sources() []string {
	var names []string
	if a.File != "" {
		names = append(names, "file")
	}
	if a.Base64 != "" {
		names = append(names, "base64")
	}
	if a.Bytes {
		names = append(names, "bytes")
	}
	if a.URL != "" {
		names = append(names, "url")
	}
	return names
}

// attachments parses and checks the attachments.
func (p *parser) attachments(all []Attachment) []attachment {
	if len(all) > maxAttachments {
		p.errs = append(p.errs, field.Errorf("attachments", "has %d files: %d is the limit", len(all), maxAttachments))
	}

	var parsed []attachment
	ids := make(map[string]bool)
	for i, a := range all {
		at := "attachments." + strconv.Itoa(i)
		parsed = append(parsed, p.attachment(at, a))
		if ids[a.ContentID] {
			p.errs = append(p.errs, field.Errorf(at+".content_id", "is that of another attachment: choose another one"))
		}
		ids[a.ContentID] = a.ContentID != ""
	}
	return parsed
}

func (p *parser) attachment(at string, a Attachment) attachment {
	refuse := func(setting, format string, args ...any) {
		p.errs = append(p.errs, field.Errorf(at+"."+setting, format, args...))
	}

	switch sources := a.sources(); {
	case len(sources) == 0:
		refuse("file", "missing: name the content with file, base64, bytes or url")
	case len(sources) > 1:
		refuse(sources[1], "%s is set too: take one of them out", sources[0])
	}

	isFromEvent := a.File == "" && !a.Bytes
	if a.Optional && !isFromEvent {
		refuse("optional", "goes with base64 and url only: take it out")
	}

	if a.File != "" && a.Name == "" {
		a.Name = strings.ReplaceAll(filepath.Base(a.File), "{{", "_")
	}
	if a.Name == "" {
		refuse("name", "missing: name the file, such as invoice.pdf")
	}

	if kind, _, err := mime.ParseMediaType(a.Type); a.Type != "" {
		isForm := strings.HasPrefix(kind, "multipart/") || strings.HasPrefix(kind, "message/")
		if err != nil || !strings.Contains(kind, "/") || isForm {
			refuse("type", "must be the media type of a file, such as application/pdf")
		}
	}

	if a.ContentID != "" && !isDotAtom(a.ContentID) {
		refuse("content_id", "must be letters, digits, dots and hyphens, such as logo")
	}

	parsed := attachment{Attachment: a, path: at, name: p.parse(at+".name", a.Name, tmpl.Header)}
	if a.URL != "" {
		parsed.url = p.source(at, a)
	} else if len(a.Hosts) > 0 {
		refuse("hosts", "goes with url only: take it out")
	}
	return parsed
}

// source parses the URL of an attachment.
func (p *parser) source(at string, a Attachment) *target.URL {
	u, err := target.Parse(at+".url", a.URL, len(a.Hosts) > 0)
	switch {
	case errors.Is(err, target.ErrOpenHost):
		p.errs = append(p.errs, field.Errorf(at+".url", "%w; or list the hosts that events may choose in hosts", err))
	case err != nil:
		p.errs = append(p.errs, field.Errorf(at+".url", "%w", err))
	case u.Base().Host != "" && len(a.Hosts) > 0:
		p.errs = append(p.errs, field.Errorf(at+".hosts", "the host stands in url and no event can change it: take hosts out"))
	}

	for i, host := range a.Hosts {
		if !isHost(host) {
			p.errs = append(p.errs, field.Errorf(at+".hosts."+strconv.Itoa(i),
				"must be the name of a host, such as files.example.com, or with a port, files.example.com:8443"))
		}
	}

	return u
}

// isHost reports whether a text is a host as it stands in a URL.
func isHost(text string) bool {
	u, err := url.Parse(httpsURL + text)
	isWhole := err == nil && u.Host == text
	return isWhole && text != "" && !strings.Contains(text, "*")
}

// enter waits for room for the attachments of a mail. A mail with more than [maxRoom] is sent alone. The caller calls leave at the
// end.
func (h *Handler) enter(ctx context.Context, parts []*part) (leave func(), err error) {
	size := 0
	for _, p := range parts {
		size += p.size
		if p.from != nil {
			size = h.cfg.MaxAttachmentBytes // as many as may come
			break
		}
	}

	weight := int64(min(size, maxRoom))
	if err := h.room.Acquire(ctx, weight); err != nil {
		return nil, context.Cause(ctx)
	}
	return func() { h.room.Release(weight) }, nil
}

// readAttachments reads the files.
func (t *templates) readAttachments(c Config, baseDir string) error {
	if c.files() != nil {
		return nil // Validate reports it
	}

	from, done, err := c.openFolder(baseDir)
	if err != nil {
		return nil // readFiles reports it
	}
	defer done()

	var errs []error
	most := c.WithDefaults().MaxAttachmentBytes
	left := most
	for i := range t.attachments {
		a := &t.attachments[i]
		if a.File == "" {
			continue
		}

		content, err := readAttachment(from, baseDir, a.File, most)
		if err != nil {
			errs = append(errs, field.Errorf(a.path+".file", "%w", err))
			continue
		}

		a.content = content
		left -= len(content)
		if left < 0 {
			errs = append(errs, field.Errorf("max_attachment_bytes",
				"the files of attachments have more than %d bytes together: raise it, or shorten them", most))
			break
		}
	}
	return errors.Join(errs...)
}

// readAttachment reads a file of the folder of templates, or, without such a folder, one that the configuration names.
func readAttachment(folder fs.FS, baseDir, name string, most int) ([]byte, error) {
	if folder == nil {
		return readBytes(baseDir, name, most)
	}

	f, err := folder.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot be read in templates: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	return readUpTo(f, most)
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
	return readUpTo(f, most)
}

func readUpTo(r io.Reader, most int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot be read: %w", err)
	case len(data) > most:
		return nil, fmt.Errorf("has more than %d bytes: shorten it", most)
	default:
		return data, nil
	}
}

// part is the content of an attachment for one mail.
type part struct {
	*attachment

	name  string
	size  int
	write func(io.Writer) (int64, error)
	from  *url.URL // to fetch the content from; nil for all others
}

// parts returns the attachments of the mail for an event, without those that an event may lack. Contents that are fetched
// are missing.
func (h *Handler) parts(data *tmpl.Data, payload []byte) ([]*part, error) {
	var all []*part
	size := 0
	for i := range h.tmpl.attachments {
		a := &h.tmpl.attachments[i]
		p, err := a.of(data, payload)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.path, err)
		}
		if p == nil {
			continue
		}

		size += p.size
		if size > h.cfg.MaxAttachmentBytes {
			return nil, errors.New(tooLarge(h.cfg.MaxAttachmentBytes))
		}
		all = append(all, p)
	}
	return all, nil
}

// of returns the part for an event; nil for one that is left out.
func (a *attachment) of(data *tmpl.Data, payload []byte) (*part, error) {
	p := &part{attachment: a}
	switch {
	case a.File != "":
		p.hold(a.content)
	case a.Bytes:
		p.hold(payload)
	case a.Base64 != "":
		text, err := a.member(data)
		if err != nil || text == "" {
			return nil, err
		}
		if err := p.decode(text); err != nil {
			return nil, err
		}
	default:
		u, err := a.url.Place(data)
		if errors.Is(err, target.ErrEmpty) && a.Optional {
			return nil, nil //nolint:nilnil // left out
		}
		if err != nil {
			return nil, err
		}
		if err := a.admits(u); err != nil {
			return nil, err
		}
		p.from = u
	}

	name, err := header(a.name, data)
	if err != nil {
		return nil, err
	}
	p.name = shownName(name)
	if p.name == "" {
		return nil, fmt.Errorf("template %q yields no name", a.name.Name())
	}

	return p, nil
}

// member returns the text in the payload; "" for one that may be absent, and is.
func (a *attachment) member(data *tmpl.Data) (string, error) {
	payload, err := data.Payload()
	if err != nil {
		return "", err
	}

	switch v := tmpl.Get(payload, a.Base64).(type) {
	case string:
		if v != "" || a.Optional {
			return v, nil
		}
	case nil:
		if a.Optional {
			return "", nil
		}
	default:
		return "", fmt.Errorf("the payload's %s is no text in base64", a.Base64)
	}

	return "", fmt.Errorf("the payload has no %s: fix the event, or set optional: true", a.Base64)
}

// admits refuses a URL whose host is not listed.
func (a *attachment) admits(u *url.URL) error {
	isListed := func(host string) bool { return strings.EqualFold(host, u.Host) }
	if a.url.Base().Host == "" && !slices.ContainsFunc(a.Hosts, isListed) {
		return fmt.Errorf("url leads to the host %q, which hosts does not list", oneline.Of(u.Host, oneline.MaxReply))
	}
	return nil
}

// hold takes content that is in memory.
func (p *part) hold(content []byte) {
	p.size = len(content)
	p.write = func(w io.Writer) (int64, error) {
		n, err := w.Write(content)
		return int64(n), err
	}
}

// decode takes content in base64, with either alphabet, with padding or without. It is decoded anew whenever it is written.
func (p *part) decode(text string) error {
	encoding := base64.StdEncoding
	if strings.ContainsAny(text, "-_") {
		encoding = base64.URLEncoding
	}
	if !strings.HasSuffix(strings.TrimRight(text, "\r\n"), "=") {
		encoding = encoding.WithPadding(base64.NoPadding)
	}

	p.write = func(w io.Writer) (int64, error) {
		return io.Copy(w, base64.NewDecoder(encoding, strings.NewReader(text)))
	}

	size, err := p.write(io.Discard)
	p.size = int(size)
	if err != nil {
		return fmt.Errorf("the payload's %s is not base64", p.Base64)
	}
	return nil
}

// file returns the part as go-mail writes it.
func (p *part) file() *gomail.File {
	kind := p.Type
	if kind == "" {
		kind = mime.TypeByExtension(strings.ToLower(filepath.Ext(p.name)))
	}
	if kind == "" {
		kind = unknownType
	}

	disposition := "attachment"
	headers := textproto.MIMEHeader{}
	if p.ContentID != "" {
		disposition = "inline"
		headers.Set("Content-Id", "<"+p.ContentID+">")
	}

	// go-mail would write letters outside of ASCII as encoded words, which stand in no quoted text (RFC 2047, 5).
	headers.Set("Content-Disposition", mime.FormatMediaType(disposition, map[string]string{"filename": p.name}))
	headers.Set("Content-Type", kind)
	return &gomail.File{Name: p.name, Header: headers, Writer: p.write}
}

// described returns a part with a description in place of its content.
func (p *part) described() *gomail.File {
	content := strconv.Itoa(p.size) + " bytes"
	if p.from != nil {
		content = "fetched from " + p.from.Host
	}

	f := p.file()
	f.Enc = gomail.NoEncoding
	f.Writer = func(w io.Writer) (int64, error) {
		n, err := io.WriteString(w, "["+content+"]")
		return int64(n), err
	}
	return f
}

// setParts adds the parts to a mail.
func setParts(msg *gomail.Msg, parts []*part, file func(*part) *gomail.File) {
	var attached, shown []*gomail.File
	for _, p := range parts {
		if p.ContentID == "" {
			attached = append(attached, file(p))
		} else {
			shown = append(shown, file(p))
		}
	}
	msg.SetAttachments(attached)
	msg.SetEmbeds(shown)
}

// shownName makes a name of a text: no path, no control character, not too long.
func shownName(text string) string {
	name := strings.Map(func(r rune) rune {
		if isControl(r) || strings.ContainsRune(`/\:<>"|?*`, r) {
			return '_'
		}
		return r
	}, text)

	if len(name) > maxName {
		ending := filepath.Ext(name)
		if len(ending) > maxName/2 {
			ending = ""
		}
		name = oneline.Cut(strings.TrimSuffix(name, ending), maxName-len(ending)) + ending
	}
	return name
}
