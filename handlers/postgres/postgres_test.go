package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

func TestRowIsTheEvent(t *testing.T) {
	t.Parallel()
	url := inbox(t)
	bare := &delivery.Event{ID: 2, Replay: 1, Type: "tick", Payload: []byte(`7`), CreatedAt: time.Unix(1, 0)}
	deliverytest.WantClasses(t, append(open(t, url).DeliverBatch(t.Context(), append(events(1), bare)), nil), "delivered")
	rows, err := testdb.Connect(t, url).Query(t.Context(), `SELECT concat_ws('|', source, dedupe_id, event_id, event_type, aggregate_type, aggregate_id, payload::text, headers ->> 'tenant',
		created_at AT TIME ZONE 'UTC', received_at > created_at) FROM received_events ORDER BY n`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	want := []string{`shop|1|1|order.created|order|k0|{ "n":  1, "z": 1, "a": "é" }|a"b|2026-11-21 10:00:00.123456|t`, `shop|2r1|2|tick|7|1970-01-01 00:00:01|t`}
	for rows.Next() {
		var got string
		if err := rows.Scan(&got); err != nil || len(want) == 0 || got != want[0] {
			t.Fatalf("row %s, %v", got, err)
		}
		want = want[1:]
	}
	if len(want) > 0 {
		t.Errorf("missing: %q, %v", want, rows.Err())
	}
}

// TestRepeatIsNoRow: alone, in a batch, twice in a batch, and at the same time by two relays.
func TestRepeatIsNoRow(t *testing.T) {
	t.Parallel()
	url := inbox(t)
	first, second := open(t, url), open(t, url)
	all := events(500)
	deliverytest.WantClasses(t, first.DeliverBatch(t.Context(), all[:100]), "")
	done := make(chan []error, 2)
	for _, h := range []*Handler{first, second} {
		go func() { done <- h.DeliverBatch(t.Context(), append(slices.Clone(all), all[:10]...)) }()
	}
	deliverytest.WantClasses(t, <-done, "")
	deliverytest.WantClasses(t, <-done, "")
	if err := second.Deliver(t.Context(), all[7]); err != nil {
		t.Error(err)
	}
	got := ids(t, url)
	if len(got) != 500 || !slices.IsSorted(got) {
		t.Errorf("%d rows: %v", len(got), got)
	}
	other := open(t, url, func(c *Config) { c.Source = "stock" })
	deliverytest.WantClasses(t, other.DeliverBatch(t.Context(), all[:2]), "")
	if n := len(ids(t, url)); n != 502 {
		t.Errorf("%d rows with those of another source", n)
	}
}

// TestAnotherEventIsNoRepeat: an id that another event has, of an outbox with the same source, is not lost.
func TestAnotherEventIsNoRepeat(t *testing.T) {
	t.Parallel()
	url := inbox(t)
	h := open(t, url)
	all := events(4)
	deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), all[:2]), "")
	strange := *all[1]
	strange.CreatedAt = strange.CreatedAt.Add(time.Microsecond)
	errs := h.DeliverBatch(t.Context(), []*delivery.Event{all[0], &strange, all[2]})
	deliverytest.WantClasses(t, errs, "delivered permanent delivered")
	if errs != nil && !strings.Contains(errs[1].Error(), "id 2 of source shop") {
		t.Error(errs[1])
	}
	if got := ids(t, url); !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("rows %v", got)
	}
}

// TestPoisonedRows: whichever rows of a batch are refused, the others are written, in order.
func TestPoisonedRows(t *testing.T) {
	t.Parallel()
	url := inbox(t)
	h, conn := open(t, url), testdb.Connect(t, url)
	rapid.Check(t, func(r *rapid.T) {
		if _, err := conn.Exec(t.Context(), `TRUNCATE received_events`); err != nil {
			r.Fatal(err)
		}
		all := events(rapid.IntRange(1, 60).Draw(r, "events"))
		bad := make(map[int64]bool)
		for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(all)-1), 0, 4).Draw(r, "bad") {
			bad[all[i].ID] = true
			all[i].Payload = []byte(`{"n": `)
		}
		errs := h.DeliverBatch(t.Context(), all)
		var want []int64
		for i, e := range all {
			if !bad[e.ID] {
				want = append(want, e.ID)
			}
			if got := errs != nil && errs[i] != nil; got != bad[e.ID] || got && !delivery.IsPermanent(errs[i]) {
				r.Fatalf("event %d: %v", e.ID, errs)
			}
		}
		if got := ids(t, url); !slices.Equal(got, want) {
			r.Fatalf("rows %v, want %v", got, want)
		}
	})
}

// TestRefusedRows: whatever refuses rows of a batch, which every row may meet, the others are written, and in an order none
// behind a refused one of its aggregate.
func TestRefusedRows(t *testing.T) {
	t.Parallel()
	url := inbox(t, `CREATE TABLE journal (event_id bigint) PARTITION BY LIST (event_id)`,
		`CREATE FUNCTION journal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.headers ->> 'fate' = 'partition' THEN INSERT INTO journal VALUES (NEW.event_id); END IF;
			IF NEW.headers ->> 'fate' = 'raised' THEN RAISE 'not this one'; END IF;
			RETURN NEW; END $$`,
		`CREATE TRIGGER journal BEFORE INSERT ON received_events FOR EACH ROW EXECUTE FUNCTION journal()`,
		`ALTER TABLE received_events ADD CHECK (headers ->> 'fate' <> 'constraint'), ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY`,
		`CREATE POLICY fate ON received_events WITH CHECK (headers ->> 'fate' <> 'policy')`, `CREATE POLICY shown ON received_events FOR SELECT USING (true)`)
	conn := testdb.Connect(t, url)
	writer := testdb.One[string](t, conn, `SELECT current_database()`) // a superuser meets no policy
	execute(t, url, `CREATE ROLE `+writer+` LOGIN`, `GRANT ALL ON received_events, journal TO `+writer)
	h := open(t, asRole(t, url, writer))
	classes := map[string]string{
		"none": "delivered", "JSON": "permanent",
		"partition": "unclear-retry", "policy": "unclear-permanent", "constraint": "unclear-permanent", "raised": "unclear-permanent",
	}
	rapid.Check(t, func(r *rapid.T) {
		if _, err := conn.Exec(t.Context(), `TRUNCATE received_events`); err != nil {
			r.Fatal(err)
		}
		ctx, order := t.Context(), rapid.SampledFrom([]string{"aggregate", "total", "none"}).Draw(r, "order")
		switch order {
		case "total":
			ctx = delivery.WithCall(ctx, delivery.Call{TotalOrder: true})
		case "none":
			ctx = delivery.WithCall(ctx, delivery.Call{Unordered: true})
		}
		all := events(rapid.IntRange(1, 40).Draw(r, "events"))
		for _, e := range all {
			fate := rapid.SampledFrom([]string{"none", "none", "none", "none", "JSON", "partition", "policy", "constraint", "raised"}).Draw(r, "fate")
			e.Headers = map[string]string{"fate": fate}
			if fate == "JSON" {
				e.Payload = []byte(`{"n": `)
			}
		}
		errs := h.DeliverBatch(ctx, all)

		var rows []int64
		held := make(map[string]bool)
		for i, e := range all {
			unit := map[string]string{"aggregate": e.AggregateID, "total": "all", "none": fmt.Sprint(e.ID)}[order]
			want := classes[e.Headers["fate"]]
			if held[unit] {
				want = "throttled"
			}
			var got error
			if errs != nil {
				got = errs[i]
			}
			if deliverytest.Class(got) != want {
				r.Fatalf("event %d is %s, want %s: %v", e.ID, deliverytest.Class(got), want, errs)
			}
			held[unit] = held[unit] || strings.HasPrefix(want, "unclear")
			if want == "delivered" {
				rows = append(rows, e.ID)
			}
		}
		if got := testdb.List[int64](t, conn, `SELECT event_id FROM received_events ORDER BY n`); !slices.Equal(got, rows) {
			r.Fatalf("rows %v, want %v", got, rows)
		}
	})
}

// TestLargeBatch is written in several statements, and up to where one fails.
func TestLargeBatch(t *testing.T) {
	t.Parallel()
	url := inbox(t, `ALTER TABLE received_events ADD CHECK (event_id <> 4)`)
	all := events(6)
	for _, e := range all {
		e.Payload = fmt.Appendf(nil, `"%s"`, strings.Repeat("x", maxStatement/2))
	}
	deliverytest.WantClasses(t, open(t, url).DeliverBatch(t.Context(), all), "delivered delivered delivered unclear-permanent delivered delivered") //nolint:dupword // by event
	if got := ids(t, url); !slices.Equal(got, []int64{1, 2, 3, 5, 6}) {
		t.Errorf("rows %v", got)
	}
}

// TestKilledServer: whatever the kill meets, each event is a row once it was delivered, and no further one.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	s := testenv.OwnPostgres(t, nil)
	execute(t, s.URL(""), Schema(Config{}), arrival)
	h := open(t, s.URL(""))
	const kills, size = 3, 200
	all := events(10 * kills * size)
	killed := make(chan error, kills)
	for from := 0; from < len(all); from += size {
		if from%(10*size) == 0 {
			go func() { killed <- s.RestartBy(t.Context(), syscall.SIGKILL) }()
		}
		for {
			errs := h.DeliverBatch(t.Context(), all[from:from+size])
			if errs == nil {
				break
			}
			deliverytest.WantClasses(t, errs, strings.TrimSpace(strings.Repeat("unavailable ", size)))
			if t.Failed() {
				t.FailNow()
			}
		}
		if from%(10*size) == 9*size {
			if err := <-killed; err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := ids(t, s.URL("")); len(got) != len(all) || !slices.IsSorted(got) {
		t.Errorf("%d rows of %d events, in order %t", len(got), len(all), slices.IsSorted(got))
	}
}

// TestLockedTable: a statement that waits for a lock ends with its context, or with request_timeout.
func TestLockedTable(t *testing.T) {
	t.Parallel()
	url := inbox(t)
	tx, err := testdb.Connect(t, url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK received_events`); err != nil {
		t.Fatal(err)
	}
	short := open(t, url, func(c *Config) { c.RequestTimeout = 200 * time.Millisecond })
	deliverytest.WantClasses(t, short.DeliverBatch(t.Context(), events(2)), "unavailable unavailable") //nolint:dupword // by event
	h := open(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan []error)
	go func() { answer <- h.DeliverBatch(ctx, events(2)) }()
	cancel()
	deliverytest.WantClasses(t, <-answer, "relay relay") //nolint:dupword // by event
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), events(3)), "")
	if got := ids(t, url); !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("rows %v", got)
	}
}

// TestLostConnection: a connection that the server has ended while it was idle costs no failure.
func TestLostConnection(t *testing.T) {
	t.Parallel()
	url := inbox(t)
	h := open(t, url)
	deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), events(1)), "")
	execute(t, url, `SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'notifyd'`)
	deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), events(2)), "")
}

// TestPooler: nothing depends on a session.
func TestPooler(t *testing.T) {
	t.Parallel()
	url := inbox(t)
	h := open(t, testenv.PgBouncer(t, url, "transaction"))
	for n := 1; n <= 3; n++ {
		deliverytest.WantClasses(t, h.DeliverBatch(t.Context(), events(n)), "")
	}
	if err := h.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestCheck leaves nothing, not even what triggers do, and finds what a delivery would.
func TestCheck(t *testing.T) {
	t.Parallel()
	url := inbox(t, `CREATE TABLE seen (at timestamptz)`,
		`CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES (now()); RETURN NULL; END $$`,
		`CREATE TRIGGER see AFTER INSERT ON received_events EXECUTE FUNCTION see()`)
	if err := open(t, url).Check(t.Context()); err != nil {
		t.Error(err)
	}
	var n int
	if err := testdb.Connect(t, url).QueryRow(t.Context(), `SELECT count(*) FROM seen`).Scan(&n); err != nil || n != 0 {
		t.Errorf("the check has left %d rows, %v", n, err)
	}
	deliverytest.WantClasses(t, []error{open(t, url, func(c *Config) { c.Table = "nowhere" }).Check(t.Context())}, "unavailable")
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"least":     {func(*Config) {}, ""},
		"empty":     {func(c *Config) { *c = Config{} }, "url source"},
		"names":     {func(c *Config) { c.Schema, c.Table = strings.Repeat("x", 64), "a\x00" }, "schema table"},
		"source":    {func(c *Config) { c.Source = strings.Repeat("x", 256) }, "source"},
		"timeout":   {func(c *Config) { c.RequestTimeout = -1 }, "request_timeout"},
		"no URL":    {func(c *Config) { c.URL = handlers.NewSecret("postgres://a:hush@[/db") }, "url"},
		"two @":     {func(c *Config) { c.URL = handlers.NewSecret("postgres://a:x@hush@h/db") }, "url"},
		"other URL": {func(c *Config) { c.URL = handlers.NewSecret("mysql://a:hush@h/db") }, "url"},
		"no file": {func(c *Config) {
			c.URL = handlers.NewSecret("postgres://a:hush@h/db?sslmode=verify-full&sslrootcert=/nowhere.pem")
		}, "url"},
		"many hosts": {func(c *Config) { c.URL = handlers.NewSecret("postgres://a:hush@h,i/db") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{URL: handlers.NewSecret("postgres://a:hush@h/db"), Source: "shop"}
			c.change(&cfg)
			h, err := New(cfg)
			if err == nil {
				err = h.Close()
			}
			var paths []string
			for _, e := range field.Split(err) {
				paths = append(paths, field.Path(e))
			}
			if got := strings.Join(paths, " "); got != c.want {
				t.Errorf("mistakes in %q, want %q: %v", got, c.want, err)
			}
			if err != nil && strings.Contains(err.Error(), "hush") {
				t.Errorf("%v tells the password", err)
			}
		})
	}
}

// TestUnreachable: the error names one attempt for each address, in one line, and the server that accepts no connection.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	err := open(t, "postgres://relay:marker7@127.0.0.1:1,127.0.0.1:2/b?sslmode=prefer").Deliver(t.Context(), events(1)[0])
	text := fmt.Sprint(err)
	if strings.Count(text, "127.0.0.1:1 (127.0.0.1)") != 1 || strings.Count(text, "connection refused") != 2 || strings.Contains(text, "...") || strings.Contains(text, "marker7") {
		t.Errorf("%v", err)
	}
}
