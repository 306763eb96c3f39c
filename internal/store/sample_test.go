package store

import (
	"slices"
	"testing"
)

// TestSampleWaiting has payloads of both kinds. The large ones are left out.
func TestSampleWaiting(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	//nolint:dupword // columns
	d.exec(`INSERT INTO outbox_events (event_type, payload, payload_bytes, content_type, headers) VALUES
		('a', ' 1 ', NULL, NULL, '{"tenant": "acme"}'), ('a', NULL, '\x00ff', 'avro/binary', NULL), ('a', NULL, '', NULL, NULL),
		('a', to_json(repeat('x', 70000)), NULL, NULL, NULL), ('a', NULL, convert_to(repeat('x', 70000), 'UTF8'), NULL, NULL), ('b', '2', NULL, NULL, NULL)`)
	all, err := SampleWaiting(t.Context(), d.conn, []string{"a"}, 100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all {
		got = append(got, string(e.Payload)+"|"+e.ContentType+"|"+e.Headers["tenant"])
	}
	if want := []string{" 1 |application/json|acme", "\x00\xff|avro/binary|", "|application/octet-stream|"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
