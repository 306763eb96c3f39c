package email

import (
	"testing"

	"github.com/notifyd/notifyd/delivery"
)

// TestReplayIsNoDuplicate: servers and readers drop a Message-ID that they know.
func TestReplayIsNoDuplicate(t *testing.T) {
	t.Parallel()
	e := &delivery.Event{ID: 42, Destination: "mail"}
	if got := messageID(e, "example.com"); got != "notifyd.42.mail@example.com" {
		t.Errorf("id %s", got)
	}
	e.Replay = 2
	if got := messageID(e, "example.com"); got != "notifyd.42r2.mail@example.com" {
		t.Errorf("id %s of a replay", got)
	}
}
