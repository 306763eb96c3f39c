package awsapi

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/message"
)

func TestForeign(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"\t\n\r ä€😀\u007f\ufffd\ue000": false, "\x00": true, "a\x1f": true, "\ufffe": true, "\uffff": true, "\xff": true,
	} {
		if _, got := foreign(s); got != want {
			t.Errorf("%q: %t", s, got)
		}
	}
}

// TestTenAttributes counts to ten, with and without the one for the rest.
func TestTenAttributes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ good, bad, own, more int }{
		{9, 0, 9, 0}, {10, 0, 10, 0}, {11, 0, 9, 2}, {9, 1, 9, 1}, {10, 1, 9, 2}, {0, 3, 0, 3},
	} {
		var m message.Message
		for i := range c.good + c.bad {
			name := fmt.Sprint("h", i)
			if i >= c.good {
				name = "no name " + name
			}
			m.Headers = append(m.Headers, message.Header{Name: name, Value: "x"})
		}
		own := attributes(m)
		var more map[string]string
		if c.more > 0 {
			last := own[len(own)-1]
			own = own[:len(own)-1]
			if err := json.Unmarshal([]byte(last.Value), &more); err != nil || last.Name != attributeMore {
				t.Fatal(last, err)
			}
		}
		if len(own) != c.own || len(more) != c.more {
			t.Errorf("%+v: %d and %d", c, len(own), len(more))
		}
	}
}

// TestReplayIsNoDuplicate: a FIFO place drops messages with a known id.
func TestReplayIsNoDuplicate(t *testing.T) {
	t.Parallel()
	enc, err := NewMessageEncoder("SQS", handlers.Message{}, "", true)
	if err != nil {
		t.Fatal(err)
	}
	e := &delivery.Event{ID: 42, Type: "a", Payload: []byte("1"), Destination: "orders", CreatedAt: time.UnixMicro(36)}
	for replay, want := range []string{"42.10.orders", "42r1.10.orders", "42r2.10.orders"} {
		e.Replay = replay
		out, err := enc.Encode(e)
		if err != nil || out.DedupID != want {
			t.Errorf("replay %d: id %+v, %v; want %s", replay, out, err, want)
		}
	}
}
