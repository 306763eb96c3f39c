package tmpl

import (
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// TestTime: a template whose time is over ends within its next steps. A short one does not read the clock.
func TestTime(t *testing.T) {
	t.Parallel()
	list := "[" + strings.Repeat("1,", 300) + "1]"
	d, err := NewData(&delivery.Event{ID: 1, Type: "a", Payload: []byte(list)})
	if err != nil {
		t.Fatal(err)
	}
	for text, isLong := range map[string]bool{
		`{{ range .Payload }}{{ if eq (json $.Payload) "x" }}{{ end }}{{ end }}`: true,
		`{{ json .Payload }}`: false,
	} {
		tmpl, err := Text.Parse("body", text)
		if err != nil {
			t.Fatal(err)
		}
		for _, isOver := range []bool{false, true} {
			w := limitWriter{until: time.Now().Add(time.Hour)}
			if isOver {
				w.until = time.Now().Add(-time.Nanosecond)
			}
			err := tmpl.plain.exec(&w, d)
			refused := err != nil && strings.Contains(err.Error(), "it takes more than 10s")
			if refused != (isLong && isOver) || w.steps > 302 {
				t.Errorf("%s, over %v: %v after %d steps", text, isOver, err, w.steps)
			}
		}
	}
}
