package slack

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/notifyd/notifyd/handlers/internal/oneline"
)

// The limits of Block Kit, in characters and elements.
// See https://docs.slack.dev/reference/block-kit/blocks.
const (
	maxBlocks       = 50
	maxBlockText    = 3000
	maxHeaderText   = 150
	maxFields       = 10
	maxFieldText    = 2000
	maxContext      = 10
	maxActions      = 25
	maxBlockID      = 255
	maxImageURL     = 3000
	maxAltText      = 2000
	maxMarkdownText = 12_000 // of all markdown blocks together
)

// blockTypes are the known types of blocks.
func blockTypes() []string {
	return []string{
		"actions", "alert", "auth_provider", "call", "card", "carousel", "container", "context", "context_actions",
		"data_table", "data_visualization", "divider", "file", "header", "image", "input", "layout", "markdown",
		"plan", "rich_text", "section", "table", "task_card", "video",
	}
}

// block holds the checked parts of a block. Texts are objects in some blocks and
// strings in others.
type block struct {
	Type     string            `json:"type"`
	ID       string            `json:"block_id"`
	Text     json.RawMessage   `json:"text"`
	Fields   []json.RawMessage `json:"fields"`
	Elements []json.RawMessage `json:"elements"`
	ImageURL string            `json:"image_url"`
	AltText  string            `json:"alt_text"`
}

// parseBlocks takes a JSON array of blocks apart and checks it: by the limits of
// Block Kit, and by the library's types. The error does not repeat the text.
func parseBlocks(text string) ([]json.RawMessage, error) {
	blocks, err := splitBlocks(text)
	if err != nil {
		return nil, err
	}

	ids := make(map[string]bool)
	markdown := 0
	for i, raw := range blocks {
		n, err := checkBlock(raw, ids)
		if err == nil {
			err = readable(raw)
		}

		if err != nil {
			return nil, fmt.Errorf("has a mistake in block %d: %w", i+1, err)
		}

		markdown += n
		if markdown > maxMarkdownText {
			return nil, fmt.Errorf("has more than %d characters in markdown blocks: shorten them", maxMarkdownText)
		}
	}

	return blocks, nil
}

// splitBlocks also takes the object {"blocks": [...]} that the Block Kit Builder
// gives.
func splitBlocks(text string) ([]json.RawMessage, error) {
	var blocks []json.RawMessage
	data := []byte(strings.TrimSpace(text))

	if len(data) > 0 && data[0] == '{' {
		var payload struct {
			Blocks json.RawMessage `json:"blocks"`
		}
		if json.Unmarshal(data, &payload) == nil && payload.Blocks != nil {
			data = payload.Blocks
		}
	}

	if err := json.Unmarshal(data, &blocks); err != nil {
		if bad, ok := errors.AsType[*json.SyntaxError](err); ok {
			line := 1 + strings.Count(text[:min(int(bad.Offset), len(text))], "\n")
			return nil, fmt.Errorf("is not valid JSON (near line %d): write values as {{ json .Payload.x }}, and no "+
				"comma after the last one", line)
		}
		return nil, errors.New("is not a JSON array of blocks: write [ {...}, {...} ]")
	}

	if len(blocks) > maxBlocks {
		return nil, fmt.Errorf("has %d blocks: Slack takes %d", len(blocks), maxBlocks)
	}

	return blocks, nil
}

func checkType(kind string) error {
	if !slices.Contains(blockTypes(), kind) {
		return fmt.Errorf("unknown type %q: use one of %s", oneline.Cut(kind, 60), strings.Join(blockTypes(), ", "))
	}
	return nil
}

// checkBlock checks the limits of one block. It returns how many characters of
// markdown are in it.
func checkBlock(raw json.RawMessage, ids map[string]bool) (markdown int, err error) {
	var b block
	if err := json.Unmarshal(raw, &b); err != nil {
		if bad, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && bad.Field != "" {
			return 0, fmt.Errorf("%q has the wrong type", bad.Field)
		}
		return 0, errors.New("it is not a JSON object")
	}

	if err := checkType(b.Type); err != nil {
		return 0, err
	}

	if b.ID != "" && ids[b.ID] {
		return 0, errors.New("its block_id is that of another block: take it out, or choose another")
	}
	ids[b.ID] = true

	if err := within("block_id", b.ID, maxBlockID); err != nil {
		return 0, err
	}

	switch b.Type {
	case "section":
		return 0, checkSection(b)
	case "header":
		return 0, checkTextObject("text", b.Text, maxHeaderText)
	case "context":
		return 0, count("elements", len(b.Elements), maxContext)
	case "actions":
		return 0, count("elements", len(b.Elements), maxActions)
	case "image":
		return 0, errors.Join(
			within("image_url", b.ImageURL, maxImageURL),
			within("alt_text", b.AltText, maxAltText),
		)
	case "markdown":
		var text string
		if json.Unmarshal(b.Text, &text) != nil || text == "" {
			return 0, errors.New("text is missing or not a string")
		}
		return utf8.RuneCountInString(text), nil
	default:
		return 0, nil
	}
}

func checkSection(b block) error {
	if len(b.Text) == 0 && len(b.Fields) == 0 {
		return errors.New("text and fields are missing: a section needs one of them")
	}

	if len(b.Text) > 0 {
		if err := checkTextObject("text", b.Text, maxBlockText); err != nil {
			return err
		}
	}

	if len(b.Fields) > maxFields {
		return count("fields", len(b.Fields), maxFields)
	}

	for i, f := range b.Fields {
		if err := checkTextObject(fmt.Sprintf("fields.%d", i), f, maxFieldText); err != nil {
			return err
		}
	}

	return nil
}

// checkTextObject checks a text object.
func checkTextObject(name string, raw json.RawMessage, limit int) error {
	var t struct{ Type, Text string }
	if len(raw) == 0 || json.Unmarshal(raw, &t) != nil {
		return fmt.Errorf(`%s is missing or not a text object: write {"type": "mrkdwn", "text": ...}`, name)
	}
	if t.Type != "mrkdwn" && t.Type != "plain_text" {
		return fmt.Errorf("%s.type is neither mrkdwn nor plain_text", name)
	}
	if t.Text == "" {
		return fmt.Errorf("%s.text is empty: Slack requires a character at least", name)
	}
	return within(name+".text", t.Text, limit)
}

func within(name, text string, limit int) error {
	if n := utf8.RuneCountInString(text); n > limit {
		return fmt.Errorf("%s has %d characters: Slack takes %d", name, n, limit)
	}
	return nil
}

func count(name string, n, limit int) error {
	if n == 0 || n > limit {
		return fmt.Errorf("it has %d %s: Slack takes 1 to %d", n, name, limit)
	}
	return nil
}
