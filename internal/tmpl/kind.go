package tmpl

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/mail"
	"net/url"
	"strings"
	"unicode"
)

// Kind is the place that the result of a template goes to. It decides what a printed value may be, so that a value of an
// event stays one value of that place: [Kind.rule] is the table for all destinations.
type Kind int

const (
	// Text is shown as it is: the text of a mail, a body of an unknown media type.
	Text Kind = iota
	// Key groups or partitions events, and nothing reads a part of it.
	Key
	// Checked is parsed as a whole afterwards: a number, a duration, a timestamp.
	Checked
	// AnyURL is a URL, and the event may choose every part.
	AnyURL
	// HTML is a document: html/template escapes a value for its context.
	HTML
	// JSON is a JSON text. A value stands in a quoted text, unless function json has written it.
	JSON
	// XML is an XML document. A value stands in an element or in a quoted attribute.
	XML
	// Form is a URL-encoded form.
	Form
	// URL is a URL with a fixed host. A value stays in its segment of the path, or in its parameter.
	URL
	// Path is the path of a file. A value stays in its part of the path.
	Path
	// Header is the value of a header: one line.
	Header
	// Address is a list of e-mail addresses. A value is one address, or a part of one.
	Address
	// SlackText is a text in Slack's mrkdwn.
	SlackText
	// SlackBlocks is a JSON text with texts in Slack's mrkdwn.
	SlackBlocks
	// SlackMarkdown is SlackBlocks with texts in Markdown.
	SlackMarkdown
	// SlackChannel is the id or the name of a channel.
	SlackChannel
	// NATSSubject is a subject. A value is one of its tokens, or a part of one.
	NATSSubject
	// KafkaTopic is a topic. A value has no dot, by which topics are grouped.
	KafkaTopic
	// RegistrySubject is a subject of a schema registry.
	RegistrySubject
	// RedisKey is a stream or a channel. A value is one part between colons.
	RedisKey
	// EventSource is the source of an event of EventBridge. A value is one part between dots.
	EventSource
)

// Levels is the kind of a name with levels, such as a topic, that a destination describes itself. It has the characters that a
// value must not have: those that begin another level, and those that stand for several.
type Levels string

// Parse is [Kind.Parse] for such a name.
func (l Levels) Parse(name, text string) (*Template, error) {
	return Set{Kind: Checked, levels: l}.parseOne(name, text)
}

const oneLevel = "a value must be one level: fix the event, or write the levels into the template"

// Parse parses a template. The name appears in every error: take the setting's path.
func (k Kind) Parse(name, text string) (*Template, error) {
	return Set{Kind: k}.parseOne(name, text)
}

// rule is what a kind makes of printed values. The zero rule prints them as they are.
type rule struct {
	// escape returns the text of a value.
	escape func(v any) (string, error)
	// refused are characters that a value must not have, and control characters are refused with them.
	refused string
	// blanks refuses white space in addition.
	blanks bool
	// cure ends the error of a refused value.
	cure string
	// segments splits the result at slashes: no value may make a segment that is empty or dots.
	segments bool
}

// rule returns the row of a kind. Each template of each destination has one of these kinds.
func (k Kind) rule() rule {
	switch k {
	case JSON:
		return rule{escape: func(v any) (string, error) { return inJSON(v, nil) }}
	case XML:
		return rule{escape: printed(escapeXML)}
	case Form:
		return rule{escape: text1(escapeURL)}
	case URL, Path:
		return rule{escape: text1(escapeURL), segments: true}

	case Header:
		return rule{refused: "\n", cure: "a header has one line"}
	case Address:
		return rule{escape: oneAddress}

	case SlackText:
		return rule{escape: printed(escapeSlack)}
	case SlackBlocks:
		return rule{escape: func(v any) (string, error) { return inJSON(v, escapeSlack) }}
	case SlackMarkdown:
		return rule{escape: func(v any) (string, error) { return inJSON(v, escapeMarkdown) }}
	case SlackChannel:
		return rule{refused: "@,", blanks: true, cure: "a value must be the id or the name of a channel"}

	case NATSSubject:
		return rule{refused: ".*>", blanks: true, cure: oneLevel}
	case KafkaTopic, EventSource:
		return rule{refused: ".", blanks: true, cure: oneLevel}
	case RegistrySubject:
		return rule{refused: `:/\`, blanks: true, cure: "a value must not name another context"}
	case RedisKey:
		return rule{refused: ":{}", blanks: true, cure: oneLevel}
	default: // Text, Key, Checked, AnyURL, HTML
		return rule{}
	}
}

// value escapes or refuses a value. The dots of an event's type are levels on purpose: routes match them.
func (r rule) value(v any, ofType bool) (any, error) {
	switch {
	case r.escape != nil:
		return r.escape(v)
	case r.refused == "":
		return v, nil
	}

	s, err := toText(v)
	if err != nil {
		return nil, err
	}

	for _, c := range s {
		isLevel := ofType && c == '.'
		isBlank := r.blanks && unicode.IsSpace(c)
		isControl := unicode.IsControl(c) && c != '\t'
		switch {
		case isControl:
			return nil, funcErrorf("the value holds a line end or another control character: %s", r.cure)
		case isBlank:
			return nil, funcErrorf("the value holds white space: %s", r.cure)
		case strings.ContainsRune(r.refused, c) && !isLevel:
			return nil, funcErrorf("the value holds %q: %s", c, r.cure)
		}
	}
	return s, nil
}

// printed makes an escaper of any value, in the form in which templates print it.
func printed(escape func(string) string) func(any) (string, error) {
	return func(v any) (string, error) {
		s, err := bounded(fmt.Sprint(v))
		if err != nil {
			return "", err
		}
		return escape(s), nil
	}
}

// escapeURL escapes a value for a segment of a path and for a query alike.
func escapeURL(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

func escapeXML(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}

// escapeSlack makes Slack show characters that it would interpret.
// See https://docs.slack.dev/messaging/formatting-message-text#escaping.
func escapeSlack(s string) string {
	if !strings.ContainsAny(s, "&<>") {
		return s
	}
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}

// escapeMarkdown is escapeSlack for Markdown, where brackets make links and images.
func escapeMarkdown(s string) string {
	return strings.NewReplacer("[", `\[`, "]", `\]`).Replace(escapeSlack(s))
}

// jsonText is the result of function json: a whole JSON value.
type jsonText string

// String returns the text.
func (t jsonText) String() string { return string(t) }

// inJSON returns a value for a JSON text: a result of function json as it is, and anything else for the inside of a quoted
// text. escape, if not nil, changes each text first.
func inJSON(v any, escape func(string) string) (string, error) {
	whole, ok := v.(jsonText)
	if ok && json.Valid([]byte(whole)) { // slice of text/template may have cut it
		return eachText(string(whole), escape), nil
	}

	s, err := bounded(fmt.Sprint(v))
	if err != nil {
		return "", err
	}
	if escape != nil {
		s = escape(s)
	}
	return insideQuotes(s)
}

// insideQuotes writes a text as JSON, without the quotes.
func insideQuotes(s string) (string, error) {
	quoted, err := toJSON(s)
	if err != nil {
		return "", err
	}
	return string(quoted[1 : len(quoted)-1]), nil
}

// eachText applies escape to each quoted text of valid JSON that toJSON has written, where no character that escape
// changes is in the form \u003c.
func eachText(text string, escape func(string) string) string {
	if escape == nil {
		return text
	}

	var b strings.Builder
	from := 0
	quoted := false
	for i := 0; i < len(text); i++ {
		switch {
		case quoted && text[i] == '\\':
			i++
		case quoted && text[i] == '"':
			// A backslash that escape adds must be one in the text.
			inside := strings.ReplaceAll(text[from:i], `\`, "\x00")
			inside = strings.ReplaceAll(escape(inside), `\`, `\\`)
			b.WriteString(strings.ReplaceAll(inside, "\x00", `\`))
			from = i
			quoted = false
		case text[i] == '"':
			b.WriteString(text[from : i+1])
			from = i + 1
			quoted = true
		}
	}

	b.WriteString(text[from:])
	return b.String()
}

// addressText is one e-mail address, or several, that no value can add another one to.
type addressText string

// String returns the text.
func (t addressText) String() string { return string(t) }

// oneAddress returns a value for a list of addresses: one address, or a part of one.
func oneAddress(v any) (string, error) {
	if safe, ok := v.(addressText); ok {
		return string(safe), nil
	}
	s, err := toText(v)
	if err != nil {
		return "", err
	}

	if strings.ContainsFunc(s, unicode.IsControl) {
		return "", funcErrorf("the value holds a line end or another control character: keep the addresses on one line")
	}
	if !strings.ContainsAny(s, `,;:<>()[]"\`) {
		return s, nil
	}
	if a, err := mail.ParseAddress(s); err == nil {
		return a.String(), nil
	}
	return "", funcErrorf(`the value is not one e-mail address: write a name with address, and several addresses with join ", " or range`)
}

// joinAddresses is function join where the result is a list of addresses.
func joinAddresses(sep string, list any) (addressText, error) {
	var parts []any
	switch list := list.(type) {
	case []any:
		parts = list
	case []string:
		for _, s := range list {
			parts = append(parts, s)
		}
	default:
		return "", funcErrorf("join: the value is not a list")
	}

	var texts []string
	for _, v := range parts {
		s, err := oneAddress(v)
		if err != nil {
			return "", err
		}
		texts = append(texts, s)
	}
	all, err := bounded(strings.Join(texts, sep))
	return addressText(all), err
}

// mark stands in front of each action of a template with segments, and tells which segments actions have made.
const mark = "\x00"

// segments returns the result without marks, or an error for a segment that values have made, and that is empty or dots:
// it leads to another path. decode looks behind the escaping too, because some servers do so before they look for dots.
func segments(marked string, decode bool) (string, error) {
	path := marked
	if decode {
		if end := strings.IndexAny(path, "?#"); end >= 0 {
			path = path[:end]
		}
	}

	for segment := range strings.SplitSeq(path, "/") {
		if !strings.Contains(segment, mark) {
			continue
		}
		segment = strings.ReplaceAll(segment, mark, "")
		if !decode {
			if isDots(segment) {
				return "", funcErrorf("a part of the path is empty or dots, which leads to another path: fix the event, or the template")
			}
			continue
		}
		if plain, err := url.PathUnescape(segment); err == nil {
			segment = plain
		}
		for part := range strings.SplitSeq(strings.ReplaceAll(segment, `\`, "/"), "/") {
			part, _, _ = strings.Cut(part, ";") // the parameters of a segment
			if isDots(part) {
				return "", funcErrorf("a segment of the path is empty or dots, which leads to another path: fix the event, or the template")
			}
		}
	}
	return strings.ReplaceAll(marked, mark, ""), nil
}

func isDots(s string) bool { return s == "" || s == "." || s == ".." }
