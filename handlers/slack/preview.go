package slack

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/notifyd/notifyd/delivery"
	handlermessage "github.com/notifyd/notifyd/handlers/internal/message"
)

// Preview returns the message for e: channel, sender, text and blocks.
func (h *Handler) Preview(e *delivery.Event) (string, error) {
	m, err := h.templates.build(e)
	if err != nil {
		return "", delivery.Permanent(fmt.Errorf("slack: %w", err))
	}

	var fields []handlermessage.Header
	for _, f := range []handlermessage.Header{
		{Name: "channel", Value: m.channel},
		{Name: "thread_ts", Value: m.threadTS},
		{Name: "username", Value: m.username},
		{Name: "icon_emoji", Value: m.iconEmoji},
		{Name: "icon_url", Value: m.iconURL},
	} {
		if f.Value != "" {
			fields = append(fields, f)
		}
	}

	body := []byte(m.text)
	if len(m.blocks) > 0 {
		blocks, err := json.Marshal(m.blocks)
		if err != nil {
			return "", delivery.Permanent(fmt.Errorf("slack: blocks: %w", err))
		}

		var laidOut bytes.Buffer
		if err := json.Indent(&laidOut, blocks, "", "  "); err != nil {
			return "", delivery.Permanent(fmt.Errorf("slack: blocks: %w", err))
		}
		body = append(append(body, "\n\n"...), laidOut.Bytes()...)
	}

	return handlermessage.Preview(fields, body), nil
}

var _ delivery.Previewer = (*Handler)(nil)
