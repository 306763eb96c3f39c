package message

import (
	"strings"

	"github.com/notifyd/notifyd/internal/textview"
)

// Preview lays a message out for people: its headers, a line each, an empty line, and
// the body; of one that is not text, how it begins. It is for implementations of delivery.Previewer.
// Line ends in values are shown as \n, so that a line is one field.
func Preview(fields []Header, body []byte) string {
	var b strings.Builder
	escape := strings.NewReplacer("\n", `\n`, "\r", `\r`)
	for _, f := range fields {
		b.WriteString(escape.Replace(f.Name))
		b.WriteString(": ")
		b.WriteString(escape.Replace(f.Value))
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	b.WriteString(textview.Payload(body))
	b.WriteByte('\n')
	return b.String()
}
