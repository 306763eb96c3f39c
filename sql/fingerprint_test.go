package outboxsql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// alike are errors; each list is one group.
func alike() [][]string {
	return [][]string{
		{`550 5.1.1 no such user`, `552 5.2.2 no such user`},
		{`order 7 has no lines`, `order 81234 has no lines`},
		{`dial tcp 10.0.0.1:5432: connect: connection refused`, `dial tcp [2001:db8::a]:443: connect: connection refused`},
		{`Post "https://a.example/x?token=1": EOF`, `Post "http://b.example/": EOF`},
		{`lookup mail.example.com: no such host`, `lookup mx.other-shop.co.uk: no such host`},
		{`mailbox ann@example.com is full`, `mailbox bob+x@b.org is full`},
		{`job 0d6f9c1e-93b7-4a8e-8c11-4d8b5e6f7a80 failed after 1.5s`, `job 9a failed after 300ms`},
		{`field "name" is missing`, `field "a \"b\" c" is missing`},
		{`field 'name' is missing`, `field 'e-mail' is missing`},
		{"unknown column `a`", "unknown column `b c`"},
		{"a  b\n\tc", "a b c"},
		{`template: mail.text:1: bad "` + strings.Repeat("x", 1000), `template: mail.text:12: bad "` + strings.Repeat("y", 900)},
		{`isn't allowed`},
		{`isn't known`},
		{`timeout`},
		{`refused`},
		{``},
		{"event 7: " + strings.Repeat("no ", 400) + "...", "event 1234567: " + strings.Repeat("no ", 397) + "n..."},
		{"Empfänger unbekannt"},
		{"Empfänger gesperrt"},
		{"収件人不明"},
		{"メールボックス"},
	}
}

// TestFingerprint: errors that differ in numbers, ids, addresses and quoted
// values are one group, and others are not.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	id, groups := 0, map[string]string{}
	for _, list := range alike() {
		var first string
		for _, text := range list {
			id++
			got := testdb.One[string](t, conn, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, last_error)
				VALUES ($1, 'x', 'a', 'dead', $2) RETURNING error_fingerprint`, id, text)
			if len(got) != 12 {
				t.Errorf("%q: fingerprint %q", text, got)
			}
			if first == "" {
				first = got
			}
			if got != first {
				t.Errorf("%.60q is another group than %.60q", text, list[0])
			}
		}
		if other, ok := groups[first]; ok && other != list[0] {
			t.Errorf("%.60q and %.60q are one group", list[0], other)
		}
		groups[first] = list[0]
	}
}

// TestFingerprintOfEveryBurial: by an insert, an update, and ON CONFLICT.
func TestFingerprintOfEveryBurial(t *testing.T) {
	t.Parallel()
	conn := testdb.Connect(t, testenv.Database(t))
	migrate(t, conn, "public", outboxsql.NotifyAuto)
	testdb.Exec(t, conn, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, last_error)
		VALUES (1, 'x', 'a', 'dead', 'order 7 is bad'), (2, 'x', 'a', 'retry', 'order 8 is bad'), (3, 'x', 'a', 'dead', NULL)`)
	testdb.Exec(t, conn, `UPDATE outbox_deliveries SET state = 'dead' WHERE event_id = 2`)
	testdb.Exec(t, conn, `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, last_error) VALUES (4, 'x', 'a', 'retry', 'other')`)
	testdb.Exec(t, conn, `INSERT INTO outbox_deliveries AS d (event_id, destination, event_type, state, last_error) VALUES (4, 'x', 'a', 'dead', 'order 9 is bad')
		ON CONFLICT (event_id, destination) DO UPDATE SET state = excluded.state, last_error = coalesce(excluded.last_error, d.last_error)`)
	got := testdb.List[string](t, conn, `SELECT format('%s %s %s', min(event_id), count(*), count(error_fingerprint)) FROM outbox_deliveries
		WHERE state = 'dead' GROUP BY error_fingerprint ORDER BY 1`)
	if fmt.Sprint(got) != "[1 3 3 3 1 1]" {
		t.Errorf("first event, dead letters, fingerprints of each group: %v", got)
	}
}
