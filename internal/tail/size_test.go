package tail

import (
	"errors"
	"testing"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/wire"
)

// TestLargeEventIsNotRead: neither payload nor headers of an event above the limit are fetched,
// however well they are compressed.
func TestLargeEventIsNotRead(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	l.Exec(`ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_headers_small`) // as for an event that is older
	l.Exec(`INSERT INTO outbox_events (event_type, payload, headers) VALUES
		('payload', to_json(repeat('x', 100000)), '{"a": "b"}'), ('headers', '1', jsonb_build_object('x', repeat('x', 100000))),
		('fits', to_json(repeat('x', 49000)), jsonb_build_object('x', repeat('x', 900))), ('other', to_json(repeat('x', 100000)), NULL)`)
	for _, open := range []idset.Set{nil, {{From: 1, To: 4}}} {
		for _, skip := range [][]string{nil, {"other"}} {
			head := int64(0)
			if open != nil {
				head = 4
			}
			r := follow(l, head, open)
			_, b := r.read(Query{EventBytes: 50_000, Skip: skip})
			if want := 4 - len(skip); len(b.Events) != want || len(b.Refused) != want-1 || b.Bytes > 51_000 {
				t.Fatalf("skip %v, open %v: %d events of %d bytes, refused %v", skip, open, len(b.Events), b.Bytes, b.Refused)
			}
			for i := range b.Events {
				e := &b.Events[i]
				large, refused := errors.AsType[*wire.LargeError](b.Refused[e.ID])
				if refused != (e.Type != "fits") || refused && (len(e.Payload) > 0 || len(e.Headers) > 0 || large.Bytes < 100_000 || large.Bytes > 100_100) {
					t.Errorf("skip %v, open %v: %s: %d bytes of payload, %d headers, %v", skip, open, e.Type, len(e.Payload), len(e.Headers), large)
				}
				if !refused && len(e.Payload) != 49_002 {
					t.Errorf("an event that fits has %d bytes of payload", len(e.Payload))
				}
			}
		}
	}
}
