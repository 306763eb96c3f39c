package deliveries_test

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/wire"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// query reads all rows in the order of their events.
func query(limit int) string {
	return `SELECT ` + deliveries.Columns(limit) + `, d.event_id = 1 FROM outbox_deliveries AS d ` + deliveries.Event(limit) + ` ORDER BY d.event_id, d.destination`
}

// read reads the row of a delivery that is stored with these values, of the last event.
func read(t *testing.T, d *testdb.DB, limits engine.Limits, row string, args ...any) deliveries.Row {
	t.Helper()
	d.Exec(`DELETE FROM outbox_deliveries`)
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at, attempts, replays, ordering_key, lease_owner, lease_token, lease_until)
		SELECT coalesce((SELECT id FROM outbox_events ORDER BY id DESC LIMIT 1), 1), 'x', 'stored', v.*,
			CASE v.state WHEN 'running' THEN 1 END, CASE v.state WHEN 'running' THEN 2 END, CASE v.state WHEN 'running' THEN now() END
		FROM (SELECT `+row+`) AS v(state, at, attempts, replays, key)`, args...)
	rows, cut, err := deliveries.Read(t.Context(), session.Direct(d.Relay()), limits, nil, query(limits.EventBytes))
	if err != nil || len(rows) != 1 || cut {
		t.Fatalf("%s: %d rows, cut %t: %v", row, len(rows), cut, err)
	}
	return rows[0]
}

const plain = `'retry', now(), 0, 0, NULL`

var limits = engine.Limits{Bytes: 1 << 20, EventBytes: 1 << 16}

// TestDecodeEvents: what an event may have.
func TestDecodeEvents(t *testing.T) {
	t.Parallel()
	d := testdb.New(t, testdb.Tables{})
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	deep := `{"a": ` + strings.Repeat("[", 12_000) + strings.Repeat("]", 12_000) + `}`
	century := 100 * 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		event string
		args  []any
		check func(*deliveries.Row) bool
	}{
		"all": {`event_type, aggregate_type, aggregate_id, payload, headers, created_at, traceparent) VALUES
			('a', 'order', '7', '{"x":  1}', '{"k": "v"}', '2026-01-02 03:04:05.678901+00', $1`, []any{trace}, func(r *deliveries.Row) bool {
			e := &r.Event
			return e.Type == "a" && e.AggregateType == "order" && e.AggregateID == "7" && string(e.Payload) == `{"x":  1}` && e.ContentType == delivery.ContentTypeJSON &&
				e.Headers["k"] == "v" && e.Headers["traceparent"] == trace && e.CreatedAt.Equal(time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)) && r.Delay == 0 && r.Available().IsZero()
		}},
		"nothing else": {`event_type, payload) VALUES ('a', 'null'`, nil, func(r *deliveries.Row) bool {
			return r.Event.AggregateID == "" && r.Event.Headers == nil && string(r.Event.Payload) == "null"
		}},
		"bytes": {`event_type, payload_bytes) VALUES ('a', '\x00ff00'`, nil, func(r *deliveries.Row) bool {
			return string(r.Event.Payload) == "\x00\xff\x00" && r.Event.ContentType == delivery.ContentTypeBytes
		}},
		"no bytes": {`event_type, payload_bytes, content_type) VALUES ('a', '', 'application/avro'`, nil, func(r *deliveries.Row) bool {
			return len(r.Event.Payload) == 0 && r.Event.ContentType == "application/avro"
		}},
		"headers that are no strings": {`event_type, payload, headers) VALUES ('a', '1', '{"n": 1, "o": {"p": []}}'`, nil, func(r *deliveries.Row) bool {
			return r.Event.Headers["n"] == "1" && r.Event.Headers["o"] == `{"p": []}`
		}},
		"deep headers": {`event_type, payload, headers) VALUES ('a', '1', $1::text::jsonb`, []any{deep}, func(r *deliveries.Row) bool {
			return r.Event.Headers[wire.UnreadableHeaders] == deep
		}},
		"too large": {`event_type, payload) VALUES ('a', to_json(repeat('x', 100000))`, nil, func(r *deliveries.Row) bool {
			large, ok := errors.AsType[*wire.LargeError](r.Refused)
			return ok && large.Bytes == 100_002 && large.Limit == 1<<16 && r.Event.Payload == nil && r.Event.Type == "a"
		}},
		"too large together": {`event_type, payload_bytes, headers) VALUES ('a', convert_to(repeat('x', 40000), 'UTF8'), jsonb_build_object('x', repeat('x', 30000))`, nil, func(r *deliveries.Row) bool {
			return r.Refused != nil && r.Event.Payload == nil && r.Event.Headers == nil
		}},
		"at infinity":      {`event_type, payload, created_at, available_at) VALUES ('a', '1', 'infinity', 'infinity'`, nil, atTheEnds(9999, century)},
		"at -infinity":     {`event_type, payload, created_at, available_at) VALUES ('a', '1', '-infinity', '-infinity'`, nil, atTheEnds(1, -century)},
		"late":             {`event_type, payload, created_at, available_at) VALUES ('a', '1', '294276-12-31', '294276-12-31'`, nil, atTheEnds(9999, century)},
		"early":            {`event_type, payload, created_at, available_at) VALUES ('a', '1', '4713-01-01 BC', '4713-01-01 BC'`, nil, atTheEnds(1, -century)},
		"available before": {`event_type, payload, available_at) VALUES ('a', '1', now() - interval '1 hour'`, nil, atTheEnds(time.Now().UTC().Year(), -time.Hour)},
	} {
		d.Exec(`DELETE FROM outbox_events`)
		d.Exec(`INSERT INTO outbox_events (`+c.event+`)`, c.args...)
		if r := read(t, d, limits, plain); !c.check(&r) || r.Missing || (r.Refused != nil) != strings.HasPrefix(name, "too large") {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// atTheEnds checks the year in which an event was written, and how long it must wait within days.
func atTheEnds(year int, delay time.Duration) func(*deliveries.Row) bool {
	return func(r *deliveries.Row) bool {
		return r.Event.CreatedAt.Year() == year && (r.Delay-delay).Abs() < max(delay.Abs()/1000, 10*time.Minute) && !r.Available().IsZero()
	}
}

// TestDecodeRows: what a row may have.
func TestDecodeRows(t *testing.T) {
	t.Parallel()
	d := testdb.New(t, testdb.Tables{})
	d.Insert("a", 1)
	r := read(t, d, limits, `'parked', timestamptz '2026-01-02 03:04:05.678901+00', 3, 2, 'order/7'`)
	if r.Event.ID != 1 || r.Event.Type != "a" || r.Destination != "x" || r.State != deliveries.Parked || r.Failures != 3 || r.Event.Attempt != 4 || r.Event.Replay != 2 || r.Key != "order/7" ||
		!r.Due || !r.First || !r.At.Time.Equal(time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)) {
		t.Errorf("%+v", r)
	}
	for at, want := range map[string]pgtype.InfinityModifier{"infinity": pgtype.Infinity, "-infinity": pgtype.NegativeInfinity, "294276-12-31": pgtype.Finite, "4713-01-01 BC": pgtype.Finite} {
		r := read(t, d, limits, `'running', $1::text::timestamptz, 0, 0, NULL`, at)
		if r.State != deliveries.Running || r.At.InfinityModifier != want || r.Due != strings.ContainsAny(at, "-B") && at[0] != '2' {
			t.Errorf("%s: %+v", at, r)
		}
		// A place in the order of the rows is exact.
		if !testdb.One[bool](t, d.Conn, `SELECT $1 = $2::text::timestamptz`, r.At, at) {
			t.Errorf("%s is read as %v", at, r.At)
		}
	}

	read(t, d, limits, plain)
	for letters, want := range map[string]*delivery.DeadLetter{
		`[null, {"destination": "y"}]`: nil,
		`[]`:                           nil,
		`[{"destination": "y", "replay": 1, "attempts": 3, "since": "2026-01-02T03:04:05.678901Z", "at": "2026-01-02T03:04:06Z", "class": "event", "error": "no"}, {}]`: {
			Destination: "y", Replay: 1, Attempts: 3, Class: "event", Error: "no",
			Since: time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC), At: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC),
		},
	} {
		d.Exec(`UPDATE outbox_deliveries SET dead_letters = $1`, letters)
		rows, _, err := deliveries.Read(t.Context(), session.Direct(d.Relay()), limits, nil, query(limits.EventBytes))
		if err != nil || rows[0].Refused != nil || !reflect.DeepEqual(rows[0].Event.DeadLetter, want) || rows[0].Lasts() != (want != nil) {
			t.Errorf("%s: %+v, %v", letters, rows, err)
		}
	}
	d.Exec(`UPDATE outbox_deliveries SET dead_letters = '[{"attempts": "many"}]'`)
	if rows, _, err := deliveries.Read(t.Context(), session.Direct(d.Relay()), limits, nil, query(limits.EventBytes)); err != nil || rows[0].Refused == nil {
		t.Errorf("a list that a person has edited: %+v, %v", rows, err)
	}

	d.Exec(`DELETE FROM outbox_events`)
	r = read(t, d, limits, `'dead', now(), 7, 1, NULL`)
	if !r.Missing || r.Event.ID != 1 || r.Event.Type != "stored" || r.State != deliveries.Dead || r.Failures != 7 || r.Event.Replay != 1 || r.Event.Payload != nil || !r.Event.CreatedAt.IsZero() {
		t.Errorf("a row without its event: %+v", r)
	}
	if e := r.Entry("x", deliveries.Retry); e != (deliveries.Entry{Ref: deliveries.Ref{EventID: 1, Destination: "x"}, EventType: "stored", State: deliveries.Retry, Failures: 7}) {
		t.Errorf("it is written again as %+v", e)
	}
}

// TestCareful: of an event that cannot be read, the rest is.
func TestCareful(t *testing.T) {
	t.Parallel()
	d := testdb.New(t, testdb.Tables{})
	d.Exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, headers) VALUES ('ä', 'order', '7', '1', '{"k": "v"}')`)
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (1, 'x', 'ä', 'retry')`)
	why := errors.New("damaged")
	for limit, eventType := range map[int]string{wire.Bare: "ä", wire.Escaped: `\303\244`} {
		rows, _, err := deliveries.Read(t.Context(), session.Direct(d.Relay()), limits, why, query(limit))
		if err != nil || len(rows) != 1 || !errors.Is(rows[0].Refused, why) || rows[0].Event.Type != eventType || rows[0].Event.AggregateID != "7" ||
			rows[0].Event.Payload != nil || rows[0].Event.Headers != nil || rows[0].Event.CreatedAt.IsZero() {
			t.Errorf("limit %d: %+v, %v", limit, rows, err)
		}
	}
}

// TestReadIsBounded: at least one row is kept, and no more bytes than allowed.
func TestReadIsBounded(t *testing.T) {
	t.Parallel()
	d := testdb.New(t, testdb.Tables{})
	d.Exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', to_json(repeat('x', 1000)) FROM generate_series(1, 100)`)
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT id, 'x', 'a', 'retry' FROM outbox_events`)
	for bytes, want := range map[int][2]int{1: {1, 1}, 10_000: {5, 9}, 1 << 20: {100, 100}} {
		rows, cut, err := deliveries.Read(t.Context(), session.Direct(d.Relay()), engine.Limits{Bytes: bytes, EventBytes: math.MaxInt32}, nil, query(math.MaxInt32))
		if err != nil || len(rows) < want[0] || len(rows) > want[1] || cut != (len(rows) < 100) {
			t.Errorf("%d bytes: %d rows, cut %t: %v", bytes, len(rows), cut, err)
		}
	}
}
