package doctor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/position"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestFrozenOutlastsWrites: a relay that writes its positions as late as it may is not reported.
func TestFrozenOutlastsWrites(t *testing.T) {
	t.Parallel()
	if frozen := DefaultLimits().Frozen; frozen <= position.LongestUnwritten {
		t.Errorf("a position is reported after %v, and an acknowledgement may be unwritten for %v", frozen, position.LongestUnwritten)
	}
}

// stream converts the patient's table to a stream, with a position at its end
// that no relay moves.
func (p *patient) stream() {
	p.Helper()
	p.Exec(`INSERT INTO outbox_events (event_type, payload, created_at) SELECT 'a', '1', now() - interval '1 h' FROM generate_series(1, 10)`)
	p.Exec(`UPDATE outbox_events SET state = 'done', processed_at = now()`)
	if err := outboxsql.SetMode(p.Context(), p.Conn, "public", outboxsql.ModeStream, outboxsql.ModeOptions{}); err != nil {
		p.Fatal(err)
	}
	p.Exec(`DELETE FROM outbox_positions`)
	p.Exec(`INSERT INTO outbox_positions (destination, head) VALUES ('', 10), ('mail', 10)`)
}

// member is a relay of the stream that holds the shards of these destinations.
func (p *patient) member(destinations ...string) {
	p.Helper()
	conn := testdb.Connect(p, p.with("application_name", "notifyd/leases"))
	testdb.Member(p, conn, 7, destinations...)
}

// routed routes all events to mail.
func routed(o *Options) {
	o.Route = func(string) []string { return []string{"mail"} }
	o.Destinations = []Destination{{Name: "mail", Type: "log"}}
}

// streamTroubles are illnesses of a stream.
func streamTroubles() map[string]illness {
	return map[string]illness{
		"sequence with a cache": {sql(`ALTER SEQUENCE outbox_events_id_seq CACHE 20`), "stream", Error, "CACHE 20", "ALTER SEQUENCE"},
		"steps of the sequence": {sql(`ALTER SEQUENCE outbox_events_id_seq INCREMENT 2`), "stream", Error, "INCREMENT 2", "INCREMENT BY 1 CACHE 1"},
		"sequence behind":       {sql(`UPDATE outbox_positions SET head = outbox_last_id() + 5 WHERE destination = 'mail'`), "stream", Error, "gives out ids again", "setval"},
		"ids of the writer":     {sql(`INSERT INTO outbox_events (id, event_type, payload) SELECT outbox_last_id() + 100, 'a', '1'`), "stream", Error, "that the sequence, which is at", "setval"},
		"index of a queue": {
			sql(`CREATE INDEX outbox_events_fresh ON outbox_events (id) WHERE state = 'fresh'`), "schema", Warning,
			"outbox_events_fresh belongs to a queue", `DROP INDEX "public"."outbox_events_fresh"`,
		},
		"no relay delivers":      {sql(`INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`), "relays", Error, "No relay uses", "notifyd run"},
		"shard without an owner": {func(p *patient, _ *Options) { p.member("") }, "shards", Error, "none of them owns the shard of the destination mail", "notifyd run"},
		"relays with other shards": {func(p *patient, _ *Options) {
			p.member("", "mail")
			p.Exec(`UPDATE outbox_positions SET layout = '2 x', shards = 2 WHERE destination = 'mail'`)
		}, "shards", Warning, "Relays wait for the destination mail: 1. They are configured with another number of shards", "reload or stop the relays"},
		"router without an owner": {
			func(p *patient, _ *Options) { p.member("mail") }, "shards", Error, "the shard of the unrouted scanner", "notifyd run",
		},
		"destination gone": {func(p *patient, _ *Options) {
			p.member("", "mail")
			p.Exec(`INSERT INTO outbox_positions (destination, head) VALUES ('it''s gone', 3)`)
		}, "shards", Warning, "no destination it's gone, no relay has it, and its position keeps the events above 3", `notifyd positions forget "it's gone"`},
		"stands still": {func(p *patient, _ *Options) {
			p.member("", "mail")
			p.Exec(`UPDATE outbox_positions SET head = 4, updated_at = now() - interval '10 min' WHERE destination = 'mail'`)
		}, "positions", Warning, "The position of the destination mail has not moved for 10m", "notifyd status"},
		"stands still in a total order": {func(p *patient, o *Options) {
			p.member("", "mail")
			p.Exec(`UPDATE outbox_positions SET head = 4, updated_at = now() - interval '10 min' WHERE destination = 'mail'`)
			o.Destinations[0].Total = true
		}, "positions", Warning, "The position of the destination mail has not moved for 10m", "end the open transaction that the check gaps names"},
		"gap": {func(p *patient, o *Options) {
			writer := testdb.Connect(p, p.with("application_name", "import"))
			if _, err := writer.Exec(p.Context(), `BEGIN; INSERT INTO outbox_events (event_type, payload) VALUES ('a secret', '1')`); err != nil {
				p.Fatal(err)
			}
			o.Limits.Gap = time.Microsecond
		}, "gaps", Warning, `application "import", idle in transaction: BEGIN; INSERT INTO`, "pg_terminate_backend"},
		"frozen relay": {func(p *patient, _ *Options) {
			p.Exec(`SELECT pg_advisory_lock(1853122162::bigint << 32 | 'outbox_events'::regclass::oid::bigint)`)
			p.Exec(`UPDATE outbox_positions SET head = 4`)
		}, "suppression", Error, "is frozen", "pg_terminate_backend"},
		"autovacuum off for events": {
			sql(`ALTER TABLE outbox_deliveries SET (autovacuum_enabled = off); ALTER TABLE outbox_positions SET (autovacuum_enabled = off)`),
			"autovacuum", Warning, "Autovacuum is off for outbox_positions", "RESET",
		},
		"payload too large": {func(p *patient, o *Options) {
			p.Exec(`INSERT INTO outbox_events (event_type, payload) VALUES ('big', to_json(repeat('x', 5000)))`)
			o.Destinations = []Destination{{Name: "mail", Type: "email", MaxBytes: 5001}}
		}, "payloads", Warning, "of type big has 5002 bytes and the destination mail accepts 5001", "type big"},
	}
}

// TestStreamIllnesses produces each illness of a stream, in a plain table and in
// a partitioned one.
func TestStreamIllnesses(t *testing.T) {
	t.Parallel()
	for name, ill := range streamTroubles() {
		for _, partitioned := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, partitioned %t", name, partitioned), func(t *testing.T) {
				t.Parallel()
				p := newPatient(t)
				if partitioned {
					p.partition()
				}
				p.stream()
				r := p.examine(func(o *Options) {
					routed(o)
					ill.cause(p, o)
				})
				for _, f := range r.of(ill.check) {
					if f.Severity == ill.severity && strings.Contains(f.Text, ill.text) && strings.Contains(f.Cure, ill.cure) {
						if strings.Contains(fmt.Sprint(r), "a secret") {
							t.Errorf("the text of a query is shown: %+v", r)
						}
						return
					}
				}
				t.Errorf("want %s: %s [%s]\ngot\n%+v", ill.severity, ill.text, ill.cure, r.of(ill.check))
			})
		}
	}
}

// TestHealthyStream: a healthy stream gives no finding, also to a role with no
// more privileges than a relay needs.
func TestHealthyStream(t *testing.T) {
	t.Parallel()
	for _, partitioned := range []bool{false, true} {
		t.Run(fmt.Sprintf("partitioned %t", partitioned), func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			daily := partitioned
			if partitioned {
				p.partition()
			}
			p.stream()
			p.member("", "mail")
			// An event that is being read is not a problem. Neither is an event of another destination.
			p.Exec(`INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`)
			r := p.examine(func(o *Options) {
				routed(o)
				o.Daily = &daily
			})
			for _, f := range r.Findings {
				// Other tests on the same server may disturb these checks.
				if f.Severity != OK && f.Check != "server" && f.Check != "transactions" && f.Check != "notification queue" && f.Check != "connections" {
					t.Errorf("%+v", f)
				}
			}
			if n := len(checks()) + len(streamChecks()) + 1; len(r.Findings) != n {
				t.Errorf("%d findings, want %d", len(r.Findings), n)
			}
		})
	}
}

// TestPreparedGap: a prepared transaction has no process.
func TestPreparedGap(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, map[string]string{"max_prepared_transactions": "2"})
	p := &patient{testdb.At(t, server.URL(""), testdb.Tables{Notify: outboxsql.NotifyOff})}
	p.stream()
	for _, s := range []string{`BEGIN`, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`, `PREPARE TRANSACTION 'it''s forgotten'`} {
		p.Exec(s)
	}
	got := p.examine(func(o *Options) { o.Limits.Gap = time.Microsecond }).of("gaps")
	if len(got) != 1 || !strings.Contains(got[0].Text, `prepared as "it's forgotten"`) || !strings.Contains(got[0].Cure, `ROLLBACK PREPARED 'it''s forgotten'`) {
		t.Errorf("%+v", got)
	}
	p.Exec(`ROLLBACK PREPARED 'it''s forgotten'`)
}

// TestManyRanges: the positions with many open ranges are named, with the transaction that holds the ids, and so is a
// destination that waits for the search for events without a route.
func TestManyRanges(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, map[string]string{"max_prepared_transactions": "2"})
	p := &patient{testdb.At(t, server.URL(""), testdb.Tables{Notify: outboxsql.NotifyOff})}
	p.stream()
	p.Exec(`UPDATE outbox_positions SET head = 100000, open = (SELECT range_agg(int8range(2 * g, 2 * g, '[]')) FROM generate_series(1, 4097) AS g) WHERE destination = 'mail'`)
	p.Exec(`INSERT INTO outbox_routes (destination, since, patterns, head) VALUES ('mail', 1, '{a}', 10)`)
	for _, s := range []string{`BEGIN`, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`, `PREPARE TRANSACTION 'forgotten'`} {
		p.Exec(s)
	}
	const ranges, waits = "The position of the destination mail has 4097 open ranges of ids", "mail waits for the events that had no route before"
	got := p.examine(nil).of("positions")
	if len(got) != 2 || !strings.HasPrefix(got[0].Text, ranges) || !strings.Contains(got[0].Text, "prepared as 'forgotten'") || !strings.HasPrefix(got[1].Text, waits) {
		t.Errorf("%+v", got)
	}
	p.Exec(`ROLLBACK PREPARED 'forgotten'`)
	p.Exec(`UPDATE outbox_routes SET handed = true`)
	got = p.examine(nil).of("positions")
	if len(got) != 1 || !strings.HasPrefix(got[0].Text, ranges) || strings.Contains(got[0].Text, "transaction with ids") || !strings.Contains(got[0].Cure, "slow deliveries of mail") {
		t.Errorf("%+v", got)
	}
	p.Exec(`UPDATE outbox_positions SET open = '{}'`)
	if got = p.examine(nil).of("positions"); len(got) != 1 || got[0].Severity != OK {
		t.Errorf("%+v", got)
	}
}
