package smtpsink

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"net/textproto"
	"strings"
	"time"
)

// Mail is an accepted mail.
type Mail struct {
	// From and To are the envelope: the addresses of MAIL and RCPT.
	From string
	To   []string
	// Data is the mail itself, with CRLF line ends and without dot stuffing.
	Data []byte
	// TLS reports whether it came over an encrypted connection.
	TLS bool
	// User is the name given with AUTH, "" without AUTH.
	User string
	// ReceivedAt is the time at which its last byte arrived.
	ReceivedAt time.Time
}

// Message is a parsed [Mail]. Texts are decoded.
type Message struct {
	Header    mail.Header
	Subject   string
	From      string
	To        string
	Cc        string
	MessageID string
	// MediaType is the content type of the whole mail without its parameters.
	MediaType string
	// Parts are the content types of its leaves, in their order.
	Parts []string
	// Text and HTML are the first parts of their type, with LF line ends and
	// without the last one, which SMTP adds to every mail.
	Text string
	HTML string
	// Files are the parts with a file name, in their order.
	Files []File
}

// File is an attachment, or a picture of the HTML.
type File struct {
	Name string
	Type string
	// ContentID is the id by which the HTML shows it, "" for an attachment.
	ContentID string
	Data      []byte
}

// maxParts bounds the parsing of a hostile mail.
const maxParts = 100

// Parse parses the mail.
func (m Mail) Parse() (*Message, error) {
	msg, err := mail.ReadMessage(bytes.NewReader(m.Data))
	if err != nil {
		return nil, fmt.Errorf("smtpsink: reading the mail: %w", err)
	}

	var dec mime.WordDecoder
	text := func(key string) string {
		s, err := dec.DecodeHeader(msg.Header.Get(key))
		if err != nil {
			return msg.Header.Get(key)
		}
		return s
	}

	out := &Message{
		Header:    msg.Header,
		Subject:   text("Subject"),
		From:      text("From"),
		To:        text("To"),
		Cc:        text("Cc"),
		MessageID: msg.Header.Get("Message-Id"),
	}

	out.MediaType, _, err = mime.ParseMediaType(msg.Header.Get("Content-Type"))
	if err != nil {
		return nil, fmt.Errorf("smtpsink: the content type: %w", err)
	}

	err = out.part(textproto.MIMEHeader(msg.Header), msg.Body)
	return out, err
}

// part reads one part and the parts inside it.
func (m *Message) part(header textproto.MIMEHeader, body io.Reader) error {
	media, params, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("smtpsink: the content type of a part: %w", err)
	}
	if strings.HasPrefix(media, "multipart/") {
		return m.parts(multipart.NewReader(body, params["boundary"]))
	}

	if len(m.Parts) >= maxParts {
		return fmt.Errorf("smtpsink: the mail has more than %d parts", maxParts)
	}
	m.Parts = append(m.Parts, media)

	switch strings.ToLower(header.Get("Content-Transfer-Encoding")) {
	case "quoted-printable":
		body = quotedprintable.NewReader(body)
	case "base64":
		body = base64.NewDecoder(base64.StdEncoding, body)
	}

	data, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("smtpsink: decoding a part: %w", err)
	}

	if _, params, _ := mime.ParseMediaType(header.Get("Content-Disposition")); params["filename"] != "" {
		id := strings.Trim(header.Get("Content-Id"), "<>")
		m.Files = append(m.Files, File{Name: params["filename"], Type: media, ContentID: id, Data: data})
		return nil
	}

	text := strings.TrimSuffix(strings.ReplaceAll(string(data), "\r\n", "\n"), "\n")
	switch {
	case media == "text/plain" && m.Text == "":
		m.Text = text
	case media == "text/html" && m.HTML == "":
		m.HTML = text
	}
	return nil
}

// parts reads the parts inside a part.
func (m *Message) parts(inside *multipart.Reader) error {
	for {
		p, err := inside.NextRawPart()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("smtpsink: a part: %w", err)
		}

		if err := m.part(p.Header, p); err != nil {
			return err
		}
	}
}
