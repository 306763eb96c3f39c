//go:build testall

package copies

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// run runs a program of PostgreSQL as the account of a server.
func run(t *testing.T, s *pgserver.Server, program string, args ...string) {
	t.Helper()
	cmd := s.Command(t.Context(), program, args...)
	cmd.Dir = writable(s)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(program), err, out)
	}
}

// halt stops a server, whose data stay.
func halt(t *testing.T, s *pgserver.Server) {
	t.Helper()
	if err := s.Halt(t.Context(), pgserver.Fast); err != nil {
		t.Fatal(err)
	}
}

// restart starts a halted server.
func restart(t *testing.T, s *pgserver.Server) {
	t.Helper()
	if err := s.Restart(t.Context(), pgserver.Fast); err != nil {
		t.Fatal(err)
	}
}

func data(s *pgserver.Server) string { return filepath.Join(s.Dir(), "data") }

// writable is a directory in which the account of a server may write.
func writable(s *pgserver.Server) string { return filepath.Join(s.Dir(), "socket") }

// create makes a database with the tables of a mode.
func create(t *testing.T, s *pgserver.Server, name string, mode outboxsql.Mode) (url string) {
	t.Helper()
	testdb.Exec(t, testdb.Connect(t, s.URL("")), `CREATE DATABASE `+name)
	if mode == "" {
		return s.URL(name)
	}
	conn, err := pgx.Connect(t.Context(), s.URL(name))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is lost
	if _, err := outboxsql.Migrate(t.Context(), conn, "public", outboxsql.MigrateOptions{Mode: mode}); err != nil {
		t.Fatal(err)
	}
	return s.URL(name)
}

// TestUpgrade: after pg_upgrade, and adoption, nothing that waited is lost, nothing that was delivered comes again, and the dead
// letter is there.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	for _, major := range []int{17, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			before, oldBin := testenv.ToolsPostgres(t, 15, nil)
			after, newBin := testenv.ToolsPostgres(t, major, nil)
			waiting := make(map[string][]int64)
			for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
				waiting[string(mode)] = lived(t, create(t, before, string(mode), mode))
			}
			halt(t, before)
			halt(t, after)
			if major >= 18 { // whose clusters have checksums by default
				run(t, before, filepath.Join(oldBin, "pg_checksums"), "--enable", "-D", data(before))
			}
			run(t, after, filepath.Join(newBin, "pg_upgrade"), "-U", "postgres", "-b", oldBin, "-B", newBin, "-d", data(before), "-D", data(after))
			restart(t, after)
			for name, ids := range waiting {
				refused(t, after.URL(name))
				if done := adopt(t, after.URL(name), false); done.Events != int64(len(ids)) || done.DeadLetters != 1 {
					t.Errorf("%s: %+v", name, done)
				}
				continues(t, after.URL(name), ids)
			}
		})
	}
}

// dumped restores a dump of a database as another one of the server.
func dumped(t *testing.T, s *pgserver.Server, binDir, from, to string, args ...string) (url string) {
	t.Helper()
	url = create(t, s, to, "")
	file := filepath.Join(writable(s), to+".dump")
	run(t, s, filepath.Join(binDir, "pg_dump"), append([]string{"-Fc", "-f", file, s.URL(from)}, args...)...)
	run(t, s, filepath.Join(binDir, "pg_restore"), "--exit-on-error", "-d", url, file)
	return url
}

// TestRestore: a dump that is restored beside its original is a copy. Its relay delivers what waited at the time of the dump, or
// with --discard-waiting nothing.
func TestRestore(t *testing.T) {
	t.Parallel()
	s, binDir := testenv.ToolsPostgres(t, 17, nil)
	bothModes(t, func(t *testing.T, mode outboxsql.Mode) {
		t.Helper()
		name := string(mode)
		waiting := lived(t, create(t, s, name, mode))
		restored, staging := dumped(t, s, binDir, name, name+"_restored"), dumped(t, s, binDir, name, name+"_staging")
		continues(t, s.URL(name), waiting)
		refused(t, restored)
		adopt(t, restored, false)
		continues(t, restored, waiting)
		refused(t, staging)
		adopt(t, staging, true)
		continues(t, staging, nil)
	})
}

// sequences are the statements that set the sequences of a copy to those of the original.
const sequences = `SELECT format('SELECT setval(%L, %s)', format('%I.%I', schemaname, sequencename), last_value) FROM pg_sequences WHERE last_value IS NOT NULL`

// TestBlueGreen: a replica by logical replication is a copy. After the switch, adoption and setval of the sequences, relays
// continue there; a stream refuses while a sequence is behind, or the subscription exists.
func TestBlueGreen(t *testing.T) {
	t.Parallel()
	s, binDir := testenv.ToolsPostgres(t, 17, map[string]string{"wal_level": "logical"})
	bothModes(t, func(t *testing.T, mode outboxsql.Mode) {
		t.Helper()
		name := string(mode)
		create(t, s, name, mode)
		r := replicate(t, s, binDir, name, true)
		r.moves(mode)
	})
}

// TestBlueGreenPartitions is [TestBlueGreen] with partitions. New ones on blue need none on green: their events go into those that
// are there, or into the default one.
func TestBlueGreenPartitions(t *testing.T) {
	t.Parallel()
	s, binDir := testenv.ToolsPostgres(t, 17, map[string]string{"wal_level": "logical"})
	bothModes(t, func(t *testing.T, mode outboxsql.Mode) {
		t.Helper()
		for _, ahead := range []bool{true, false} {
			name := fmt.Sprintf("%s_%t", mode, ahead)
			createPartitioned(t, s, name, mode)
			r := replicate(t, s, binDir, name, true)
			if ahead {
				testdb.Exec(t, r.green, `SELECT outbox_partitions_extend(now(), 30)`)
			}
			nextPartition(t, r.blue)
			r.moves(mode)
			if n := testdb.One[int](t, r.green, `SELECT count(*) FROM outbox_events_default`); ahead != (n == 0) {
				t.Errorf("%d events in the default partition of green, where partitions ahead: %t", n, ahead)
			}
		}
	})
}

// TestPublishedPartitions: a publication of partitions, not of their root, replicates nothing of a new one before the
// subscription was refreshed, even if green has it. The refresh copies what was missed.
func TestPublishedPartitions(t *testing.T) {
	t.Parallel()
	s, binDir := testenv.ToolsPostgres(t, 17, map[string]string{"wal_level": "logical"})
	createPartitioned(t, s, "shop", outboxsql.ModeQueue)
	r := replicate(t, s, binDir, "shop", false)
	for _, conn := range []*pgx.Conn{r.blue, r.green} {
		nextPartition(t, conn)
	}
	id := testdb.One[int64](t, r.blue, `INSERT INTO outbox_events (event_type, payload) VALUES ('good', '1') RETURNING id`)
	r.confirmed()
	if n := testdb.One[int](t, r.green, `SELECT count(*) FROM outbox_events`); n != 0 {
		t.Fatalf("green has %d events before the refresh", n)
	}
	testdb.Exec(t, r.green, `ALTER SUBSCRIPTION `+r.subscription+` REFRESH PUBLICATION`)
	await(t, r.green, fmt.Sprintf(`SELECT EXISTS (SELECT FROM outbox_events WHERE id = %d)`, id))
	r.drop()
}

// createPartitioned is [create] with partitions.
func createPartitioned(t *testing.T, s *pgserver.Server, name string, mode outboxsql.Mode) {
	t.Helper()
	conn := testdb.At(t, create(t, s, name, ""), testdb.Tables{Mode: mode, Partitioned: true}).Conn
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// nextPartition directs new events into a partition that a relay creates, days later.
func nextPartition(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for range 3 {
		testdb.Exec(t, conn, `SELECT outbox_partitions_extend(now() + interval '10 days', 3)`)
	}
}

// replica is a database with a subscription to another one.
type replica struct {
	*testing.T

	s                  *pgserver.Server
	name, subscription string
	blue, green        *pgx.Conn
}

// replicate makes a replica of a database. viaRoot, which docs/upgrades.md recommends, publishes partitions as their table.
func replicate(t *testing.T, s *pgserver.Server, binDir, name string, viaRoot bool) *replica {
	t.Helper()
	r := &replica{T: t, s: s, name: name, subscription: name + "_outbox"}
	r.blue = testdb.Connect(t, s.URL(name))
	r.green = testdb.Connect(t, dumped(t, s, binDir, name, name+"_green", "--schema-only"))
	testdb.Exec(t, r.blue, fmt.Sprintf(`CREATE PUBLICATION outbox FOR ALL TABLES WITH (publish_via_partition_root = %t)`, viaRoot))
	testdb.Exec(t, r.blue, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, name)
	testdb.Exec(t, r.green, `CREATE SUBSCRIPTION `+r.subscription+` CONNECTION '`+s.URL(name)+`' PUBLICATION outbox WITH (create_slot = false, slot_name = '`+name+`')`)
	await(t, r.green, `SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel`)
	return r
}

// confirmed waits until green has all writes so far.
func (r *replica) confirmed() {
	r.Helper()
	lsn := testdb.One[string](r, r.blue, `SELECT pg_current_wal_lsn()::text`)
	await(r.T, r.blue, `SELECT coalesce(confirmed_flush_lsn >= '`+lsn+`', false) FROM pg_replication_slots WHERE slot_name = '`+r.name+`'`)
}

func (r *replica) drop() {
	r.Helper()
	testdb.Exec(r, r.green, `DROP SUBSCRIPTION `+r.subscription)
}

// moves has a relay deliver on blue, and moves the outbox to green.
func (r *replica) moves(mode outboxsql.Mode) {
	r.Helper()
	green := r.s.URL(r.name + "_green")
	waiting := lived(r.T, r.s.URL(r.name))
	r.confirmed()
	refused(r.T, green)
	adopt(r.T, green, false)
	if mode == outboxsql.ModeStream {
		if err := newRelay(r.T, green, newReceived()).Run(r.Context()); !errors.Is(err, outboxsql.ErrStream) {
			r.Errorf("with the subscription: %v", err)
		}
	}
	r.drop()
	for _, set := range testdb.List[string](r, r.blue, sequences) {
		testdb.Exec(r, r.green, set)
	}
	continues(r.T, green, waiting)
}

// TestForgottenSequence: no relay of a stream delivers from a replica whose sequence was left behind.
func TestForgottenSequence(t *testing.T) {
	t.Parallel()
	s, binDir := testenv.ToolsPostgres(t, 17, nil)
	lived(t, create(t, s, "shop", outboxsql.ModeStream))
	url := dumped(t, s, binDir, "shop", "green")
	conn := testdb.Connect(t, url)
	testdb.Exec(t, conn, `SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 1)`)
	adopt(t, url, false)
	if err := newRelay(t, url, newReceived()).Run(t.Context()); !errors.Is(err, notifyd.ErrIDs) && !errors.Is(err, outboxsql.ErrStream) {
		t.Errorf("the relay ended with %v", err)
	}
}

// TestTransactionIDsEnd: when the server assigns no transaction ids any more, no attempt counts, and relays continue after
// VACUUM, without a restart.
func TestTransactionIDsEnd(t *testing.T) {
	t.Parallel()
	for _, major := range []int{15, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			s, binDir := testenv.ToolsPostgres(t, major, map[string]string{"wal_level": "logical", "autovacuum_naptime": "1s"})
			waiting := make(map[string][]int64)
			for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
				waiting[string(mode)] = lived(t, create(t, s, string(mode), mode))
			}
			exhaust(t, s, binDir)
			got := make(map[string]*received)
			for name := range waiting {
				got[name] = newReceived()
				relay := newRelay(t, s.URL(name), got[name])
				start(t, relay)
				awaitRefusal(t, relay)
			}
			admin := testdb.Connect(t, s.URL(""))
			testdb.Exec(t, admin, `SELECT pg_drop_replication_slot('old')`)
			for name, ids := range waiting {
				if all := got[name].await(t, len(ids)); len(all) != len(ids) {
					t.Errorf("%s: received %v, want %v", name, all, ids)
				}
				conn := testdb.Connect(t, s.URL(name))
				await(t, conn, settled)
				if again := got[name].twice(); len(again) > 0 {
					t.Errorf("%s: received twice: %v", name, again)
				}
				if n := testdb.One[int](t, conn, `SELECT count(*) FROM outbox_deliveries`); n != 1 {
					t.Errorf("%s: %d stored deliveries, want the dead letter", name, n)
				}
			}
		})
	}
}

// awaitRefusal waits until a relay reports that the database assigns no transaction ids.
func awaitRefusal(t *testing.T, relay *notifyd.Relay) {
	t.Helper()
	testenv.Await(t, "the relay reports the refusal", func() bool {
		return slices.ContainsFunc(relay.Stats().Refusals, func(r observe.Refusal) bool { return r.Code == noTransactions })
	})
}

// noTransactions is the SQLSTATE of a server that assigns no transaction ids.
const noTransactions = "54000"

// exhaust brings a server to the end of its transaction ids. VACUUM cannot help before the replication slot old is dropped, which
// is how servers get there.
func exhaust(t *testing.T, s *pgserver.Server, binDir string) {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), s.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, admin, `SELECT pg_create_logical_replication_slot('old', 'pgoutput')`)
	oldest := testdb.One[int64](t, admin, `SELECT min(datfrozenxid::text::bigint) FROM pg_database`)
	if err := admin.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	halt(t, s)
	const reserve, left, segment = 3_000_000, 100, 1 << 20 // transactions per file of pg_xact
	next := oldest + (1<<31 - 1) - reserve - left
	for _, n := range []int64{next / segment, next/segment + 1} {
		file := filepath.Join(data(s), "pg_xact", fmt.Sprintf("%04X", n))
		run(t, s, "/bin/sh", "-c", fmt.Sprintf("head -c %d /dev/zero >%s", segment/4, file))
	}
	run(t, s, filepath.Join(binDir, "pg_resetwal"), "-x", fmt.Sprint(next), "-D", data(s))
	restart(t, s)
	conn := testdb.Connect(t, s.URL(""))
	// Autovacuum freezes up to the slot, which gives some ids back.
	await(t, conn, `SELECT bool_and(datfrozenxid::text = catalog_xmin::text) FROM pg_database, pg_replication_slots`)
	for {
		_, err := conn.Exec(t.Context(), `SELECT pg_current_xact_id()`)
		if refused, is := errors.AsType[*pgconn.PgError](err); is && refused.Code == noTransactions && strings.Contains(refused.Message, "not accepting commands") {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
