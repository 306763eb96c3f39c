package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// hostile are defaults of a role that change bytes, meanings or plans.
const hostile = `client_encoding=SQL_ASCII DateStyle=German IntervalStyle=sql_standard TimeZone=Pacific/Kiritimati bytea_output=escape
	extra_float_digits=-15 quote_all_identifiers=on standard_conforming_strings=off array_nulls=off transform_null_equals=on
	default_transaction_isolation=serializable default_transaction_deferrable=on search_path=pg_catalog
	statement_timeout=60s lock_timeout=20s idle_in_transaction_session_timeout=20s idle_session_timeout=20s row_security=off
	jit=on jit_above_cost=0 plan_cache_mode=force_custom_plan enable_indexscan=off enable_indexonlyscan=off enable_nestloop=off enable_tidscan=off`

// foreignDatabase makes a database in an encoding, and returns its URL for the superuser, and for a role with
// hostile defaults that owns it.
func foreignDatabase(t *testing.T, encoding string) (super, direct string) {
	t.Helper()
	super = testenv.DatabaseIn(t, encoding)
	u, err := url.Parse(super)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(u.Path, "/")
	role := name + "_r"
	role = role[max(0, len(role)-60):]
	execute(t, super, `CREATE ROLE "`+role+`" LOGIN; ALTER DATABASE "`+name+`" OWNER TO "`+role+`"; ALTER SCHEMA public OWNER TO "`+role+`"`)
	for setting := range strings.FieldsSeq(hostile) {
		name, value, _ := strings.Cut(setting, "=")
		execute(t, super, `ALTER ROLE "`+role+`" SET `+name+` = '`+value+`'`)
	}
	u.User = url.User(role)
	return super, u.String()
}

// hookOf answers with the given code and text until it is told otherwise, and keeps what it got.
type hookOf struct {
	*httptest.Server

	mu   sync.Mutex
	code int
	got  []string
}

func newHook(t *testing.T) *hookOf {
	t.Helper()
	h := &hookOf{code: http.StatusUnprocessableEntity}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.got = append(h.got, string(body))
		w.WriteHeader(h.code)
		_, _ = io.WriteString(w, "Nö, 5 € 🙂")
	}))
	t.Cleanup(h.Close)
	return h
}

// TestForeignDefaults: what is written in another encoding than UTF-8 leaves in UTF-8, and is found by its routes,
// whatever the defaults of the role.
func TestForeignDefaults(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, c := range map[string]struct{ encoding, mode, pooler string }{
		"LATIN1, a queue":                         {"LATIN1", "queue", ""},
		"LATIN1, a stream":                        {"LATIN1", "stream", ""},
		"LATIN1, through a pooler of sessions":    {"LATIN1", "stream", "session"},
		"LATIN9, beside a pooler of transactions": {"LATIN9", "queue", "transaction"},
		"UTF8, a stream":                          {"UTF8", "stream", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			super, direct := foreignDatabase(t, c.encoding)
			hook := newHook(t)
			ok := func(args ...string) string {
				t.Helper()
				got := invoke(t, args...)
				if got.code != 0 {
					t.Fatalf("%q: %+v", args, got)
				}
				return got.stdout
			}
			ok("migrate", "--database-url", direct, "--mode", c.mode)
			database := "url: '" + direct + "'"
			switch c.pooler {
			case "session":
				database = "url: '" + testenv.PgBouncer(t, direct, c.pooler) + "'"
			case "transaction":
				database = "url: '" + testenv.PgBouncer(t, direct, c.pooler) + "', listen_url: '" + direct + "'"
			}
			path := file(t, `version: 1
database: {`+database+`}
log: {format: json}
admin: {listen: '127.0.0.1:0', console: true}
destinations:
  audit: {type: log}
  hook: {type: webhook, url: '`+hook.URL+`', max_attempts: 1}
routes: [{match: 'größe.*', to: [audit, hook]}]
`)
			d := startDaemon(t, nil, "run", "-c", path)
			d.stderr.await(t, `"relay started"`)
			id := ok("publish", "--database-url", direct, "größe.neu", `{"name": "Zoë, 5 £"}`, "--aggregate", "größe/ä/ö")
			d.stdout.await(t, "\n")
			var line struct {
				EventType string `json:"event_type"`
				Payload   struct{ Name string }
			}
			if err := json.Unmarshal([]byte(d.stdout.text()), &line); err != nil || line.EventType != "größe.neu" || line.Payload.Name != "Zoë, 5 £" {
				t.Errorf("the destination has %s, %v", d.stdout.text(), err)
			}
			// The text of the error has characters that the database has not.
			until(t, super, `SELECT EXISTS (SELECT FROM outbox_deliveries WHERE state = 'dead')`)
			text := `N\u00f6, 5 \u20ac \U0001f642`
			if c.encoding == "UTF8" {
				text = "Nö, 5 € 🙂"
			}
			if got := ok("dlq", "list", "--database-url", direct); !strings.Contains(got, "größe.neu") {
				t.Errorf("dead letters: %s", got)
			}
			if got := ok("dlq", "show", "--database-url", direct, strings.TrimSpace(id)); !strings.Contains(got, text) || !strings.Contains(got, "Zoë, 5 £") {
				t.Errorf("the dead letter has no %s: %s", text, got)
			}
			hook.mu.Lock()
			hook.code = http.StatusOK
			hook.mu.Unlock()
			ok("dlq", "replay", "--database-url", direct, strings.TrimSpace(id))
			untilDone(t, super)
			hook.mu.Lock()
			defer hook.mu.Unlock()
			for _, body := range hook.got {
				if !strings.Contains(body, "Zoë, 5 £") {
					t.Errorf("the hook got %q", body)
				}
			}
			if len(hook.got) < 2 {
				t.Errorf("the hook got %q", hook.got)
			}
			if n := query[int](t, super, `SELECT octet_length(event_type) FROM outbox_events LIMIT 1`); c.encoding != "UTF8" && n != len("groesse.neu")-2 {
				t.Errorf("the type is stored in %d bytes", n)
			}
			if code := d.end(t); code != 0 {
				t.Errorf("it ended with %d:\n%s", code, d.stderr.text())
			}
		})
	}
}

// TestNoEncoding: a database without an encoding is named where the tables are made, and by doctor.
func TestNoEncoding(t *testing.T) {
	t.Parallel()
	databaseURL := testenv.DatabaseIn(t, "SQL_ASCII")
	for _, args := range [][]string{{"migrate"}, {"doctor"}} {
		if got := invoke(t, append(args, "--database-url", databaseURL)...); !strings.Contains(got.stdout+got.stderr, "has the encoding SQL_ASCII") {
			t.Errorf("%q does not name it: %+v", args, got)
		}
	}
	// An event that is not UTF-8 keeps back no other.
	d := startDaemon(t, nil, "run", "-c", file(t, logConfig("database: {url: '"+databaseURL+"'}\n")))
	execute(t, databaseURL, `INSERT INTO outbox_events (event_type, payload) VALUES ('order.broken', convert_from('\x22fc22', 'SQL_ASCII')::json)`)
	publishTo(t, databaseURL, "order.placed", `{"name": "Zoë"}`)
	d.stdout.await(t, "Zoë")
	untilDone(t, databaseURL)
	d.end(t)
}
