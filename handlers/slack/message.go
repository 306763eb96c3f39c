package slack

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/tmpl"
)

const (
	// maxText is where Slack begins to cut a text off silently.
	// See https://docs.slack.dev/reference/methods/chat.postMessage.
	maxText = 40_000
	// maxLine bounds channel, user name and icon, far above Slack's limits.
	maxLine = 3000
	// metadataType is the event_type of every message's metadata.
	metadataType = "notifyd_event"
)

// message is a message in the form in which it is sent, with a token or a
// webhook.
type message struct {
	channel, threadTS            string
	text                         string
	blocks                       []json.RawMessage
	username, iconEmoji, iconURL string
	unfurlLinks, unfurlMedia     *bool
	metadata                     map[string]any // the event it came of
}

// templates are the parsed templates of a [Config], nil where it has no
// template.
type templates struct {
	channel, threadTS            *tmpl.Template
	text, blocks                 *tmpl.Template
	username, iconEmoji, iconURL *tmpl.Template
	unfurlLinks, unfurlMedia     *bool
	unescape                     *strings.Replacer // of values in blocks; nil if they are not escaped
}

// parseTemplates parses all templates, and checks them as far as possible without an
// event.
func parseTemplates(c Config) (*templates, error) {
	var errs []error
	parse := func(kind tmpl.Kind, path, text string, check func(string) error) *tmpl.Template {
		if strings.TrimSpace(text) == "" {
			return nil
		}

		t, err := kind.Parse(path, text)
		if err != nil {
			errs = append(errs, field.Errorf(path, "%w", err))
			return nil
		}

		if constant, ok := t.Constant(); ok {
			if err := check(strings.TrimSpace(constant)); err != nil {
				errs = append(errs, field.Errorf(path, "%w", err))
			}
		}

		return t
	}

	text, blocks := kinds(c)
	t := &templates{
		channel:  parse(tmpl.SlackChannel, "channel", c.Channel, checkLine),
		threadTS: parse(tmpl.Checked, "thread_ts", c.ThreadTS, checkTS),
		text:     parse(text, "text", c.Text, checkText),
		blocks: parse(blocks, "blocks", c.Blocks, func(s string) error {
			_, err := parseBlocks(s)
			return err
		}),
		username:    parse(tmpl.Text, "username", c.Username, checkLine),
		iconEmoji:   parse(tmpl.Checked, "icon_emoji", c.IconEmoji, checkEmoji),
		iconURL:     parse(iconKind(c.IconURL), "icon_url", c.IconURL, checkLine),
		unfurlLinks: c.UnfurlLinks,
		unfurlMedia: c.UnfurlMedia,
	}

	escaped := []string{"&amp;", "&", "&lt;", "<", "&gt;", ">"}
	if blocks == tmpl.SlackMarkdown {
		escaped = append(escaped, `\[`, "[", `\]`, "]")
	}

	if !c.RawValues {
		t.unescape = strings.NewReplacer(escaped...)
	}

	if err := trySample(t.blocks); err != nil {
		errs = append(errs, field.Errorf("blocks", "%w", err))
	}

	return t, errors.Join(errs...)
}

// kinds returns how values are escaped in text and blocks.
func kinds(c Config) (text, blocks tmpl.Kind) {
	switch {
	case c.RawValues:
		return tmpl.Text, tmpl.JSON
	case strings.Contains(c.Blocks, `"markdown"`): // a block with texts in Markdown
		return tmpl.SlackText, tmpl.SlackMarkdown
	default:
		return tmpl.SlackText, tmpl.SlackBlocks
	}
}

// iconKind returns how values are escaped in icon_url: the event may choose the whole URL where the host is a value.
func iconKind(text string) tmpl.Kind {
	fixed, _, _ := strings.Cut(text, "{{")
	_, rest, ok := strings.Cut(fixed, "://")
	if ok && strings.Contains(rest, "/") {
		return tmpl.URL
	}
	return tmpl.AnyURL
}

// build makes the message for an event. Its errors are about the event and the
// templates: another attempt would end the same way.
func (t *templates) build(e *delivery.Event) (*message, error) {
	data, err := tmpl.NewData(e)
	if err != nil {
		return nil, err
	}

	m := &message{
		unfurlLinks: t.unfurlLinks,
		unfurlMedia: t.unfurlMedia,
		metadata: map[string]any{
			// As text, because JavaScript rounds large numbers.
			"event_id":    strconv.FormatInt(e.ID, 10),
			"event_type":  oneline.Cut(e.Type, oneline.MaxReply),
			"destination": e.Destination,
		},
	}

	if e.Replay > 0 {
		m.metadata["replay"] = e.Replay
	}
	if trace := e.Headers["traceparent"]; trace != "" {
		m.metadata["traceparent"] = oneline.Cut(trace, oneline.MaxReply)
	}

	r := renderer{data: data}
	m.channel = r.line(t.channel, checkLine)
	m.threadTS = r.line(t.threadTS, checkTS)
	m.username = r.line(t.username, checkLine)
	m.iconEmoji = r.line(t.iconEmoji, checkEmoji)
	m.iconURL = r.line(t.iconURL, checkLine)

	m.text = r.render(t.text, checkText)
	blocks := r.render(t.blocks, func(string) error { return nil })

	if r.err != nil {
		return nil, r.err
	}

	if t.channel != nil && m.channel == "" {
		return nil, errors.New(`template "channel" yields nothing: fix the event, or the template`)
	}

	if blocks != "" {
		m.blocks, err = parseBlocks(blocks)
		if err != nil {
			return nil, fmt.Errorf("the output of template %q %w", "blocks", err)
		}
		if t.unescape != nil {
			unescapeURLs(m.blocks, t.unescape)
		}
	}

	if m.text == "" && len(m.blocks) == 0 {
		return nil, errors.New("templates text and blocks yield nothing: fix the event, or the templates")
	}

	return m, nil
}

// renderer renders templates until the first error.
type renderer struct {
	data *tmpl.Data
	err  error
}

func (r *renderer) render(t *tmpl.Template, check func(string) error) string {
	if t == nil || r.err != nil {
		return ""
	}

	text, err := t.Render(r.data)
	if err != nil {
		r.err = err
		return ""
	}

	text = strings.TrimSpace(text)
	if err := check(text); err != nil {
		r.err = fmt.Errorf("the output of template %q %w", t.Name(), err)
		return ""
	}

	return text
}

// line is render for a single line.
func (r *renderer) line(t *tmpl.Template, check func(string) error) string {
	return strings.Join(strings.Fields(r.render(t, check)), " ")
}

func checkLine(s string) error {
	if len(s) > maxLine {
		return fmt.Errorf("has more than %d bytes: shorten it", maxLine)
	}
	return nil
}

// tsRegexp matches Slack's timestamps: "1700000000.000100".
var tsRegexp = regexp.MustCompile(`^[0-9]{1,12}\.[0-9]{1,6}$`)

func checkTS(s string) error {
	if s != "" && !tsRegexp.MatchString(s) {
		return errors.New("is not the timestamp of a message: write one such as 1700000000.000100")
	}
	return nil
}

func checkEmoji(s string) error {
	isInColons := len(s) > 2 && s[0] == ':' && s[len(s)-1] == ':'
	hasBlanks := strings.ContainsAny(s, " \t\r\n")
	if s != "" && (!isInColons || hasBlanks) {
		return errors.New("is not the name of an emoji: write one in colons, such as :package: for example")
	}

	return checkLine(s)
}

func checkText(s string) error {
	if n := utf8.RuneCountInString(s); n > maxText {
		return fmt.Errorf("has %d characters, and Slack cuts off after %d: shorten it", n, maxText)
	}
	return nil
}

// unescapeURLs undoes the escaping outside of displayed text: Slack takes URLs and
// values of buttons as they are.
func unescapeURLs(blocks []json.RawMessage, unescape *strings.Replacer) {
	for i, block := range blocks {
		if !bytes.ContainsAny(block, `&\`) {
			continue
		}

		dec := json.NewDecoder(bytes.NewReader(block))
		dec.UseNumber()

		var v any
		if dec.Decode(&v) != nil {
			continue // parseBlocks has read it already
		}

		unescapeIn(v, unescape)
		if out, err := json.Marshal(v); err == nil {
			blocks[i] = out
		}
	}
}

func unescapeIn(v any, unescape *strings.Replacer) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			unescapeIn(e, unescape)
		}
	case map[string]any:
		for key, e := range v {
			if s, ok := e.(string); ok && isVerbatim(key) {
				v[key] = unescape.Replace(s)
				continue
			}
			unescapeIn(e, unescape)
		}
	}
}

// isVerbatim reports whether Slack takes the text of a member as it is, without escapes.
func isVerbatim(key string) bool {
	switch key {
	case "url", "value":
		return true
	}
	return strings.HasSuffix(key, "_url") || strings.HasSuffix(key, "_id")
}
