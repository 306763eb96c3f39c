package slack

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/internal/tmpl"
)

// sampleText stands for every value of a payload. The quote in it breaks the
// JSON of a template that writes values neither within quotes nor with the function json.
const sampleText = `sample "1"`

// trySample renders a template of blocks with an event that has guessed values for
// the fields of the template, and checks the result. It returns only mistakes that
// are certainly the template's.
func trySample(t *tmpl.Template) error {
	if t == nil {
		return nil
	}

	if _, constant := t.Constant(); constant {
		return nil
	}

	// A value may have to be a number or a time for the template to work.
	for _, leaf := range []any{sampleText, json.Number("1"), "2026-01-02T03:04:05Z"} {
		text, err := t.Render(t.Sample(sampleText, leaf))
		if err != nil {
			continue
		}
		return checkSample(strings.TrimSpace(text))
	}

	return nil // loops over an unknown value, for example
}

func checkSample(text string) error {
	if text == "" {
		return nil // a condition that the sample does not meet
	}

	blocks, err := splitBlocks(text)
	if err != nil {
		if json.Valid([]byte(text)) { // {{ json .Payload.blocks }}: the payload decides
			err = nil
		} else {
			err = errors.New("yields no valid JSON: write each value as {{ json .Payload.x }}, or within quotes, and " +
				"no comma after the last one")
		}
		return err
	}

	ids := make(map[string]bool)
	for i, raw := range blocks {
		err := checkSampleBlock(raw, ids)
		if err != nil {
			return fmt.Errorf("yields a mistake in block %d: %w", i+1, err)
		}
	}

	return nil
}

func checkSampleBlock(raw json.RawMessage, ids map[string]bool) error {
	if holdsSample(raw) {
		// The payload decides whether a value is a text or an object.
		var b struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(raw, &b) == nil && b.Type != sampleText {
			return checkType(b.Type)
		}
		return nil
	}

	if _, err := checkBlock(raw, ids); err != nil {
		return err
	}
	return readable(raw)
}

// holdsSample reports whether a value of the payload stands where a whole block
// or object could.
func holdsSample(raw json.RawMessage) bool {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return true
	}

	var inside func(v any, text bool) bool
	inside = func(v any, text bool) bool {
		switch v := v.(type) {
		case map[string]any:
			// The text of a text object is a text.
			kind, _ := v["type"].(string)
			textual := slices.Contains([]string{"mrkdwn", "plain_text", "markdown", "text"}, kind)
			for key, e := range v {
				if inside(e, textual && key == "text") {
					return true
				}
			}
		case []any:
			for _, e := range v {
				if inside(e, false) {
					return true
				}
			}
		case string:
			return !text && v == sampleText
		case float64:
			return v == 1
		}
		return false
	}

	return inside(v, false)
}
