package delivery

import (
	"testing"
)

func TestDedupeID(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		e    Event
		want string
	}{
		{Event{ID: 42}, "42"},
		{Event{ID: 42, Attempt: 3}, "42"},
		{Event{ID: 42, Replay: 1}, "42r1"},
		{Event{ID: -7, Replay: 12}, "-7r12"},
		{Event{ID: 42, Outbox: "north"}, "north/42"},
		{Event{ID: 42, Outbox: "north", Replay: 1}, "north/42r1"},
		{Event{ID: 42, DeadLetter: &DeadLetter{Destination: "mail"}}, "42-mail"},
		{Event{ID: 42, Outbox: "north", Replay: 2, DeadLetter: &DeadLetter{Destination: "mail", Replay: 1}}, "north/42r2-mailr1"},
	} {
		if got := c.e.DedupeID(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.e, got, c.want)
		}
	}
}
