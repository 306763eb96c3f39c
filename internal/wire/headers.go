package wire

import "encoding/json"

// UnreadableHeaders is the name of a header that holds all of them.
const UnreadableHeaders = "notifyd-unreadable-headers"

// DecodeHeaders reads an object. Only SQL clients can write a value that is not a string: its JSON text is passed on.
// PostgreSQL nests deeper than encoding/json reads. An object that is nested too deep is passed on as a whole, under
// [UnreadableHeaders], because an error would hold up all events claimed with it.
func DecodeHeaders(raw []byte) map[string]string {
	if len(raw) == 0 || string(raw) == "{}" {
		return nil
	}

	var values map[string]json.RawMessage
	if json.Unmarshal(raw, &values) != nil {
		return map[string]string{UnreadableHeaders: string(raw)}
	}

	headers := make(map[string]string, len(values))
	for name, value := range values {
		text := string(value)
		if value[0] == '"' {
			_ = json.Unmarshal(value, &text) // the first byte is a quote, so the value is a string
		}
		headers[name] = text
	}

	return headers
}
