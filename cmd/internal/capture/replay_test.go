package capture_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/cmd/internal/capture"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// TestReplayGivesTable: a consumer that applies the events in the order of their ids has the rows of the table, after any
// statements: inserts, upserts, updates of many rows, changed and exchanged keys, deletes, merges and truncates, in
// transactions that commit or not.
func TestReplayGivesTable(t *testing.T) {
	t.Parallel()
	b := open(t, false)
	merges := testdb.One[int](t, b.Conn, `SELECT current_setting('server_version_num')::int`) >= 150000
	b.Exec(`CREATE TABLE pairs (a int, b text, v int, PRIMARY KEY (a, b))`)
	b.add(capture.Request{Table: "pairs", Operations: capture.Operations()})
	number := rapid.IntRange(0, 5)
	statement := rapid.Custom(func(t *rapid.T) string {
		x, y, z := number.Draw(t, "x"), number.Draw(t, "y"), number.Draw(t, "z")
		switch kind := rapid.IntRange(0, 9).Draw(t, "kind"); {
		case kind <= 1:
			return fmt.Sprintf(`INSERT INTO pairs SELECT i, chr(97 + i %% 2), %d FROM generate_series(%d, %d) AS i ON CONFLICT DO NOTHING`, z, x, x+y)
		case kind == 2:
			return fmt.Sprintf(`INSERT INTO pairs SELECT i, chr(97 + i %% 2), %d FROM generate_series(%d, %d) AS i ON CONFLICT (a, b) DO UPDATE SET v = excluded.v + pairs.v, a = pairs.a + 100 * (pairs.v %% 2)`, z, x, x+y)
		case kind == 3:
			return fmt.Sprintf(`UPDATE pairs SET v = v + %d WHERE a >= %d`, z%2, x)
		case kind == 4:
			return fmt.Sprintf(`UPDATE pairs SET a = a + 1000 WHERE a %% 7 < %d`, x)
		case kind == 5:
			return fmt.Sprintf(`UPDATE pairs AS p SET b = CASE b WHEN 'a' THEN 'c' ELSE b || 'x' END, v = %d WHERE length(b) < 4 AND NOT EXISTS (SELECT FROM pairs AS q WHERE q.a = p.a AND q.b <> p.b)`, y)
		case kind == 6:
			return fmt.Sprintf(`DELETE FROM pairs WHERE a %% 5 = %d`, x)
		case kind == 7 && merges:
			return fmt.Sprintf(`MERGE INTO pairs AS p USING (SELECT i, chr(97 + i %% 2) AS c FROM generate_series(%d, %d) AS i) AS s ON p.a = s.i AND p.b = s.c
				WHEN MATCHED AND p.v %% 3 = 0 THEN DELETE WHEN MATCHED AND p.v %% 3 = 1 THEN UPDATE SET a = p.a + 5000, v = %d WHEN MATCHED THEN UPDATE SET v = p.v + 1
				WHEN NOT MATCHED THEN INSERT VALUES (s.i, s.c, %d)`, x, x+y, z, z)
		case kind == 8:
			return fmt.Sprintf(`WITH d AS (DELETE FROM pairs WHERE a %% 3 = %d), u AS (UPDATE pairs SET v = v + 1 WHERE a %% 3 <> %d) INSERT INTO pairs VALUES (%d, 'new', 1) ON CONFLICT DO NOTHING`, x%3, x%3, 100000+z)
		case kind == 9 && x == 0:
			return `TRUNCATE pairs`
		default:
			return fmt.Sprintf(`DO $$ BEGIN INSERT INTO pairs VALUES (%d, 'sub', 1); RAISE division_by_zero; EXCEPTION WHEN OTHERS THEN UPDATE pairs SET v = v + 1 WHERE a = %d; END $$`, x, y)
		}
	})
	replica := make(map[string]string)
	rapid.Check(t, func(rt *rapid.T) {
		for range rapid.IntRange(1, 6).Draw(rt, "transactions") {
			tx, err := b.Conn.Begin(t.Context())
			if err != nil {
				rt.Fatal(err)
			}
			fails := false
			for range rapid.IntRange(1, 4).Draw(rt, "statements") {
				if _, err := tx.Exec(t.Context(), statement.Draw(rt, "statement")); err != nil {
					if testdb.SQLState(err) != "23505" { // a changed key that another row has
						rt.Fatal(err)
					}
					fails = true
					break
				}
			}
			if fails || rapid.IntRange(0, 3).Draw(rt, "end") == 0 {
				err = tx.Rollback(t.Context())
			} else {
				err = tx.Commit(t.Context())
			}
			if err != nil {
				rt.Fatal(err)
			}
		}
		for _, e := range b.take() {
			apply(rt, replica, e)
		}
		table := make(map[string]string)
		for _, row := range testdb.List[string](t, b.Conn, `SELECT jsonb_build_array(jsonb_build_array(a, b)::text, to_jsonb(p)::text)::text FROM pairs AS p`) {
			var pair [2]string
			if err := json.Unmarshal([]byte(row), &pair); err != nil {
				rt.Fatal(err)
			}
			table[pair[0]] = normal(rt, pair[1])
		}
		if !maps.Equal(table, replica) {
			rt.Errorf("the events give %v, the table has %v", replica, table)
			clear(replica)
			maps.Copy(replica, table)
		}
	})
}

// apply applies an event to a copy of the table. An event that does not fit the copy is an error.
func apply(rt *rapid.T, replica map[string]string, e event) {
	text := func(row map[string]any) string {
		line, err := json.Marshal(row)
		if err != nil {
			rt.Fatal(err)
		}
		return string(line)
	}
	if e.Payload.Op == "truncate" {
		clear(replica)
		return
	}
	before, there := replica[*e.ID]
	if (e.Payload.Op == "insert") == there || there && before != text(e.Payload.Old) {
		rt.Errorf("%s does not fit the copy, which has %q", e, before)
	}
	if e.Payload.Op == "delete" {
		delete(replica, *e.ID)
		return
	}
	replica[*e.ID] = text(e.Payload.New)
}

// normal returns JSON as [json.Marshal] writes a map.
func normal(rt *rapid.T, row string) string {
	var values map[string]any
	if err := json.Unmarshal([]byte(row), &values); err != nil {
		rt.Fatal(err)
	}
	line, err := json.Marshal(values)
	if err != nil {
		rt.Fatal(err)
	}
	return string(line)
}
