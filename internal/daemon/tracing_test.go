package daemon

import (
	"io"
	"slices"
	"testing"

	"github.com/notifyd/notifyd/internal/destinations"
)

// TestMessagingSystems: each destination type has a name in the semantic conventions, or is known to have none.
func TestMessagingSystems(t *testing.T) {
	t.Parallel()
	none := []string{"email", "file", "log", "postgres", "slack", "webhook"}
	for name := range destinations.Registry("", io.Discard, io.Discard) {
		if (messagingSystem(name) == "") != slices.Contains(none, name) {
			t.Errorf("%s is %q", name, messagingSystem(name))
		}
	}
}
