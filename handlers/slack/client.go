package slack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	slackgo "github.com/slack-go/slack"

	"github.com/notifyd/notifyd/handlers/internal/oneline"
)

// This file alone knows the library, whose versions break often.

// poster posts a message, or looks whether it could, and returns the answer.
type poster interface {
	post(ctx context.Context, m *message) *answer
	check(ctx context.Context) *answer
}

// apiPoster posts with chat.postMessage.
type apiPoster struct {
	http       http.RoundTripper
	url, token string
}

func (p *apiPoster) post(ctx context.Context, m *message) *answer {
	a := &answer{}
	client := slackgo.New(p.token, slackgo.OptionAPIURL(p.url), slackgo.OptionHTTPClient(a.client(p.http)))
	_, ts, err := client.PostMessageContext(ctx, m.channel, p.options(m)...)
	a.classify(err)
	// An answer without "ok" and without "error" is not an error to the library.
	a.ok = err == nil && ts != ""
	return a
}

// classify takes the library's verdict of an answer.
func (a *answer) classify(err error) {
	if refusal, ok := errors.AsType[slackgo.SlackErrorResponse](err); ok {
		a.code = refusal.Err
		a.details = append(a.details, refusal.ResponseMetadata.Messages...)
		if refusal.Needed != "" {
			a.details = append(a.details, fmt.Sprintf("needs the scope %s, has %s", refusal.Needed, refusal.Provided))
		}
	}
	a.readError = err
}

func (*apiPoster) options(m *message) []slackgo.MsgOption {
	options := []slackgo.MsgOption{
		slackgo.MsgOptionMetadata(slackgo.SlackMetadata{EventType: metadataType, EventPayload: m.metadata}),
	}
	add := func(set bool, o slackgo.MsgOption) {
		if set {
			options = append(options, o)
		}
	}

	add(m.text != "", slackgo.MsgOptionText(m.text, false))
	add(len(m.blocks) > 0, slackgo.MsgOptionBlocks(asBlocks(m.blocks)...))
	add(m.threadTS != "", slackgo.MsgOptionTS(m.threadTS))
	add(m.username != "", slackgo.MsgOptionUsername(m.username))
	add(m.iconEmoji != "", slackgo.MsgOptionIconEmoji(m.iconEmoji))
	add(m.iconURL != "", slackgo.MsgOptionIconURL(m.iconURL))

	if m.unfurlLinks != nil {
		add(*m.unfurlLinks, slackgo.MsgOptionEnableLinkUnfurl())
		add(!*m.unfurlLinks, slackgo.MsgOptionDisableLinkUnfurl())
	}

	// Slack shows previews of media unless a message forbids them.
	add(m.unfurlMedia != nil && !*m.unfurlMedia, slackgo.MsgOptionDisableMediaUnfurl())

	return options
}

// webhookPoster posts to an incoming webhook.
type webhookPoster struct {
	http http.RoundTripper
	url  string
}

func (p *webhookPoster) post(ctx context.Context, m *message) *answer {
	a := &answer{}
	msg := &slackgo.WebhookMessage{
		Text:            m.text,
		ThreadTimestamp: m.threadTS,
		Username:        m.username,
		IconEmoji:       m.iconEmoji,
		IconURL:         m.iconURL,
		UnfurlLinks:     m.unfurlLinks,
		UnfurlMedia:     m.unfurlMedia,
	}

	if len(m.blocks) > 0 {
		msg.Blocks = &slackgo.Blocks{BlockSet: asBlocks(m.blocks)}
	}

	err := slackgo.PostWebhookCustomHTTPContext(ctx, p.url, a.client(p.http), msg)
	a.readError = err
	// 200 alone could as well be the page of a proxy.
	a.ok = err == nil && a.bodyError == nil && isOK(a.body)
	return a
}

// isOK reports whether the body of a webhook's answer says that the message is
// posted: "ok", or for webhooks of workflows {"ok":true}.
func isOK(body []byte) bool {
	var said struct {
		OK bool `json:"ok"`
	}
	return strings.TrimSpace(string(body)) == "ok" || json.Unmarshal(body, &said) == nil && said.OK
}

// rawBlock is a block as it was written: the library's own types would drop unknown
// fields.
type rawBlock struct{ json.RawMessage }

// BlockType and ID implement slackgo.Block; posting does not use them.
func (rawBlock) BlockType() slackgo.MessageBlockType { return "" }

// ID implements slackgo.Block.
func (rawBlock) ID() string { return "" }

func asBlocks(raw []json.RawMessage) []slackgo.Block {
	all := make([]slackgo.Block, len(raw))
	for i := range raw {
		all[i] = rawBlock{raw[i]}
	}
	return all
}

// readable returns an error for a block that the library cannot read.
func readable(raw json.RawMessage) error {
	var b slackgo.Blocks
	err := json.Unmarshal([]byte("["+string(raw)+"]"), &b)
	if err == nil {
		return nil
	}
	if bad, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%q is no %s", bad.Field, bad.Type.Kind())
	}
	return errors.New(oneline.Of(err.Error(), oneline.MaxReply))
}
