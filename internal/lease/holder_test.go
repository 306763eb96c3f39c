package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestAlone(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	k := l.keep(7, "a", "b")
	k.untilHas(3)
	if got := l.owners(); got != "7 7 7" {
		t.Errorf("owners: %s", got)
	}
	if got := testdb.One[string](l.DB, l.Conn, holders); got != "1 members, 3 shards" {
		t.Error(got)
	}
	for _, name := range []string{"", "a", "b"} {
		p := k.position(name)
		if p.Epoch != 1 {
			t.Errorf("%q: %+v", name, p)
		}
		k.untilValid(p)
	}
	// The mode cannot change while the relay is there.
	err := outboxsql.SetMode(t.Context(), l.Dial(), "public", outboxsql.ModeQueue, outboxsql.ModeOptions{})
	if !errors.Is(err, outboxsql.ErrRelays) {
		t.Errorf("the mode was changed: %v", err)
	}
	p := k.position("a")
	if err := k.stop(); err != nil {
		t.Fatal(err)
	}
	if got := l.owners(); got != "- - -" {
		t.Errorf("owners after the end: %s", got)
	}
	if got := testdb.One[string](l.DB, l.Conn, holders); got != "0 members, 0 shards" {
		t.Error(got)
	}
	if len(k.has()) > 0 || p.Valid() {
		t.Errorf("after the end it has %q", k.has())
	}
}

// TestModeWaitsForLeases: a relay that has lost its session still delivers until its term ends; the mode does not change
// before.
func TestModeWaitsForLeases(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.Exec(`INSERT INTO outbox_members (owner, renewals, alive_until, pid, wants) VALUES (1, 1, clock_timestamp() + interval '500 ms', 1, '{}')`)
	if err := outboxsql.SetMode(t.Context(), l.Dial(), "public", outboxsql.ModeQueue, outboxsql.ModeOptions{}); err != nil {
		t.Fatal(err)
	}
	if !testdb.One[bool](l.DB, l.Conn, `SELECT clock_timestamp() >= alive_until FROM outbox_members`) {
		t.Error("the mode was changed while a lease was valid")
	}
	// A lease that is not renewed has expired, whatever the clock shows.
	l.Exec(`UPDATE outbox_mode SET mode = 'stream'; UPDATE outbox_members SET alive_until = clock_timestamp() + interval '1 h'`)
	if err := outboxsql.SetMode(t.Context(), l.Dial(), "public", outboxsql.ModeQueue, outboxsql.ModeOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestModeOfSharedRelay: a relay behind a pooler has no session that keeps the mode. While it renews, the mode does not
// change. A killed relay is removed, however long its lease seems to be valid, so that it notices if it resumes.
func TestModeOfSharedRelay(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.create("a")
	through := *l
	through.DB = new(*l.DB)
	through.URL = testenv.PgBouncer(t, l.URL, "transaction") + "&default_query_exec_mode=exec"
	k := through.keep(7, "a")
	k.untilHas(2)
	if pid := testdb.One[int](l.DB, l.Conn, `SELECT pid FROM outbox_members`); pid != 0 {
		t.Errorf("the relay has the session %d", pid)
	}
	toQueue := func() error {
		return outboxsql.SetMode(t.Context(), l.Dial(), "public", outboxsql.ModeQueue, outboxsql.ModeOptions{})
	}
	if err := toQueue(); !errors.Is(err, outboxsql.ErrRelays) {
		t.Errorf("the mode was changed: %v", err)
	}
	if err := k.stop(); err != nil {
		t.Error(err)
	}
	// A renewal that takes long to be written is one, too.
	l.Exec(`INSERT INTO outbox_members (owner, renewals, alive_until, pid, wants) VALUES (2, 1, 'infinity', 0, '{}')`)
	tx, err := l.Dial().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, tx, `UPDATE outbox_members SET renewals = renewals + 1`)
	changed := make(chan error, 1)
	conn := l.Dial()
	go func() {
		changed <- outboxsql.SetMode(t.Context(), conn, "public", outboxsql.ModeQueue, outboxsql.ModeOptions{})
	}()
	l.untilTrue("the removal of the relay waits", `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE 'DELETE%')`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-changed; !errors.Is(err, outboxsql.ErrRelays) {
		t.Errorf("the mode was changed: %v", err)
	}
	l.Exec(`DELETE FROM outbox_members`)
	l.Exec(`INSERT INTO outbox_members (owner, renewals, alive_until, pid, wants) VALUES (1, 1, clock_timestamp() - interval '1 h', 0, '{}')`)
	if err := toQueue(); err != nil {
		t.Fatal(err)
	}
	if n := testdb.One[int](l.DB, l.Conn, `SELECT count(*) FROM outbox_members`); n != 0 {
		t.Errorf("%d relays are left", n)
	}
}

func TestOfAQueue(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.Exec(`UPDATE outbox_mode SET mode = 'queue'`)
	cfg, err := pgx.ParseConfig(l.URL)
	if err != nil {
		t.Fatal(err)
	}
	q := NewHolder(&store.Connector{Config: cfg, Schema: "public"}, Options{}, slog.New(slog.DiscardHandler))
	if err := q.Run(t.Context()); !errors.Is(err, outboxsql.ErrMode) {
		t.Errorf("a queue: %v", err)
	}
}

// TestShare: new relays get their share, and the shards of one that stops go to the others.
func TestShare(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	names := []string{"a", "b", "c", "d", "e"}
	first := l.keep(1, names...)
	first.untilHas(6)
	second := l.keep(2, names...)
	second.untilHas(3)
	first.untilHas(3)
	third := l.keep(3, names...)
	third.untilHas(2)
	first.untilHas(2)
	second.untilHas(2)
	for _, k := range []*keeping{second, third} {
		for _, name := range k.has() {
			if p := k.position(name); p.Epoch < 2 {
				t.Errorf("%+v", p)
			}
		}
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second.untilHas(3)
	third.untilHas(3)
	if second.lostSoFar()+third.lostSoFar() > 1 {
		t.Errorf("%d and %d shards changed hands for nothing", second.lostSoFar(), third.lostSoFar())
	}
}

// TestTell: a relay that comes, gives or goes notifies the others.
func TestTell(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	hears := l.Dial()
	l.On(hears, `LISTEN outbox_events`)
	hear := func(what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if n, err := hears.WaitForNotification(ctx); err != nil || n.Payload != "shards" {
			t.Fatalf("%s: %+v, %v", what, n, err)
		}
	}
	k := l.keep(1, "a")
	hear("a relay that came")
	k.untilHas(2)
	if err := k.stop(); err != nil {
		t.Fatal(err)
	}
	hear("a relay that takes no part any more")
	hear("the first shard")
	hear("the second shard")
	hear("a relay that left")
}

// TestDifferentDestinations: as when relays are replaced one after the other.
func TestDifferentDestinations(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	before := l.keep(1, "a", "b", "c")
	before.untilHas(4)
	after := l.keep(2, "c", "d")
	after.until("d and one of the others", func(shards map[string]Lease) bool { return len(shards) == 2 && shards["d"].Epoch == 1 })
	before.untilHas(3)
	if has := before.has(); !slices.Contains(has, "a") || !slices.Contains(has, "b") || before.lostSoFar() != 1 {
		t.Errorf("the first has %q and lost %d", has, before.lostSoFar())
	}
	if err := before.stop(); err != nil {
		t.Fatal(err)
	}
	after.untilHas(3)
	if got := testdb.One[string](l.DB, l.Conn, `SELECT string_agg(destination, ' ' ORDER BY destination) FROM outbox_positions WHERE owner IS NULL`); got != "a b" {
		t.Errorf("nobody has %q", got)
	}
}

// TestLostSession: a relay whose session ends keeps its shards, and renews on another session.
func TestLostSession(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	a, b := l.keep(1, "a", "b", "c"), l.keep(2, "a", "b", "c")
	a.untilHas(2)
	b.untilHas(2)
	before := testdb.One[string](l.DB, l.Conn, `SELECT string_agg(number || ' ' || owner || ' ' || epoch, ', ' ORDER BY number) FROM outbox_positions`)
	pid := testdb.One[int32](l.DB, l.Conn, `SELECT pid FROM outbox_members WHERE owner = 1`)
	l.endSession(1)
	l.untilTrue("another session", `SELECT pid <> $1 FROM outbox_members WHERE owner = 1`, pid)
	if after := testdb.One[string](l.DB, l.Conn, `SELECT string_agg(number || ' ' || owner || ' ' || epoch, ', ' ORDER BY number) FROM outbox_positions`); after != before {
		t.Errorf("owners and epochs: %s, before %s", after, before)
	}
	for _, name := range a.has() {
		a.untilValid(a.position(name))
	}
}

// TestRemoved: a relay whose row is gone takes all shards anew, and its earlier leases are no longer valid.
func TestRemoved(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	k := l.keep(1, "a", "b")
	k.untilHas(3)
	before := k.position("a")
	l.Exec(`DELETE FROM outbox_members`)
	k.until("new epochs", func(shards map[string]Lease) bool { return len(shards) == 3 && shards["a"].Epoch == 2 })
	k.untilValid(k.position("a"))
	if before.Valid() || k.lostSoFar() != 3 {
		t.Errorf("after %d losses the old lease is valid: %t", k.lostSoFar(), before.Valid())
	}
}

// TestRestored: a relay whose row comes from an older backup has lost all leases, too.
func TestRestored(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	k := l.keep(1, "a")
	k.untilHas(2)
	before := k.position("a")
	l.Exec(`UPDATE outbox_members SET renewals = renewals - 10`)
	k.until("a new epoch", func(shards map[string]Lease) bool { return len(shards) == 2 && shards["a"].Epoch == 2 })
	if before.Valid() {
		t.Error("the old lease is valid")
	}
}

// TestAfterAKill: the shards of a relay that was killed were not released, and its term is over or not.
func TestAfterAKill(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.create("", "a")
	l.Exec(`UPDATE outbox_positions SET owner = 99, epoch = 5 WHERE destination = 'a'`)
	l.Exec(`INSERT INTO outbox_members (owner, renewals, alive_until, pid, wants) VALUES (99, 1, clock_timestamp() - interval '1 ms', 1, '{"",a}')`)
	k := l.keep(1, "a")
	k.untilHas(2)
	if a := k.position("a"); a.Epoch != 6 {
		t.Errorf("taken: %+v", a)
	}
	if err := k.stop(); err != nil {
		t.Fatal(err)
	}
	l.Exec(`UPDATE outbox_positions SET owner = 98 WHERE destination = 'a'`)
	l.Exec(`INSERT INTO outbox_members (owner, renewals, alive_until, pid, wants) VALUES (98, 1, clock_timestamp() + interval '1 h', 1, '{"",a}')`)
	k = l.keep(2, "a")
	k.untilHas(2) // it does not believe the hour
	if got := testdb.One[string](l.DB, l.Conn, holders); got != "1 members, 2 shards" {
		t.Error(got)
	}
}

// TestFrozen: another relay takes the shards of one that is silent; it has no valid lease by then, and adds nothing when it wakes.
func TestFrozen(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	halt := make(chan struct{})
	frozen := l.keepWith(1, func(k *keeping, _ *Options) { k.halt = halt }, "a")
	wake := sync.OnceFunc(func() { close(halt) })
	t.Cleanup(wake) // before the holder is stopped
	l.untilTrue("its shards", `SELECT count(*) = 2 FROM outbox_positions WHERE owner = 1`)
	other := l.keep(2, "a")
	other.untilHas(2)
	if p := other.position("a"); p.Epoch != 2 {
		t.Errorf("taken: %+v", p)
	}
	wake()
	frozen.until("a share", func(shards map[string]Lease) bool {
		for _, p := range shards {
			return len(shards) == 1 && p.Epoch > 1 && p.Valid()
		}
		return false
	})
	other.untilHas(1)
}

// TestLockedRow: a locked position delays no other shard, and is taken when it is unlocked.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.create("", "a", "b")
	tx, err := l.Conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.Exec(`SELECT FROM outbox_positions WHERE destination = 'a' FOR UPDATE`)
	k := l.keep(1, "a", "b")
	k.untilHas(2)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.untilHas(3)
	if k.lostSoFar() > 0 {
		t.Errorf("%d shards were lost for it", k.lostSoFar())
	}
}

// TestLockedRelease: a shard whose row is locked while it is given away is released later; a relay that stops does not wait.
func TestLockedRelease(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	first := l.keep(1, "a", "b", "c")
	first.untilHas(4)
	lock := l.Dial()
	l.On(lock, `BEGIN`)
	l.On(lock, `SELECT FROM outbox_positions FOR UPDATE`)
	second := l.keep(2, "a", "b", "c")
	first.untilHas(2)
	l.On(lock, `ROLLBACK`)
	second.untilHas(2)
	l.On(lock, `BEGIN`)
	l.On(lock, `SELECT FROM outbox_positions FOR UPDATE`)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	l.On(lock, `ROLLBACK`)
	second.untilHas(4)
}

// TestRefusedTake: a write that the database refuses is reported until it is accepted, and costs no other shard.
func TestRefusedTake(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.create("", "a", "b")
	l.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.destination = ''a'' THEN RAISE ''no''; END IF; RETURN NEW; END'`)
	l.Exec(`CREATE TRIGGER refuse BEFORE UPDATE ON outbox_positions FOR EACH ROW EXECUTE FUNCTION refuse()`)
	k := l.keep(1, "a", "b")
	k.until("its write is refused", func(map[string]Lease) bool { return k.refused[positions] })
	k.untilHas(2)
	l.Exec(`DROP TRIGGER refuse ON outbox_positions`)
	k.untilHas(3)
	k.until("nothing is refused", func(map[string]Lease) bool { return !k.refused[positions] })
}

// TestForgottenRefusal: the report of a refused write ends with its position.
func TestForgottenRefusal(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.create("", "a")
	l.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END'`)
	l.Exec(`CREATE TRIGGER refuse BEFORE UPDATE ON outbox_positions FOR EACH ROW WHEN (OLD.number = ` +
		testdb.One[string](l.DB, l.Conn, `SELECT number::text FROM outbox_positions WHERE destination = 'a'`) + `) EXECUTE FUNCTION refuse()`)
	k := l.keep(1, "a")
	k.until("its write is refused", func(map[string]Lease) bool { return k.refused[positions] })
	l.Exec(`DELETE FROM outbox_positions WHERE destination = 'a'`)
	k.untilHas(2)
	k.until("nothing is refused", func(map[string]Lease) bool { return !k.refused[positions] })
}

// TestRefusedOne: a shard that one relay is not allowed to take is another's.
func TestRefusedOne(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF NEW.owner = 2 THEN RAISE ''no''; END IF; RETURN NEW; END'`)
	l.Exec(`CREATE TRIGGER refuse BEFORE UPDATE ON outbox_positions FOR EACH ROW EXECUTE FUNCTION refuse()`)
	a := l.keep(1, "a", "b", "c")
	a.untilHas(4)
	b := l.keep(2, "a", "b", "c")
	b.until("its write is refused", func(map[string]Lease) bool { return b.refused[positions] })
	a.untilHas(4)
}

// TestSlowTake: a take that lasts longer than a term costs no lease, of no relay.
func TestSlowTake(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.Exec(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(2); RETURN NEW; END'`)
	l.Exec(`CREATE TRIGGER wait BEFORE UPDATE ON outbox_positions FOR EACH ROW WHEN (NEW.destination = 'a' AND NEW.epoch <> OLD.epoch) EXECUTE FUNCTION wait()`)
	x, y := l.keep(1, "a", "b", "c"), l.keep(2, "a", "b", "c")
	x.untilHas(2)
	y.untilHas(2)
	if got := testdb.One[int64](l.DB, l.Conn, `SELECT epoch FROM outbox_positions WHERE destination = 'a'`); got > 2 {
		t.Errorf("it was taken %d times", got)
	}
}

// TestTakesAgain: positions that were moved by hand, or forgotten.
func TestTakesAgain(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	k := l.keep(1, "a", "b")
	k.untilHas(3)
	id := k.position("b").PositionID
	l.Exec(`UPDATE outbox_positions SET head = 42, epoch = epoch + 1 WHERE destination = 'a'`)
	l.Exec(`DELETE FROM outbox_positions WHERE destination = 'b'`)
	k.until("both again", func(shards map[string]Lease) bool {
		return len(shards) == 3 && shards["a"].Epoch == 3 && shards["b"].PositionID > id
	})
	if b := k.position("b"); b.Epoch != 1 || k.lostSoFar() != 2 {
		t.Errorf("after %d losses: %+v", k.lostSoFar(), b)
	}
}

// TestReconnect: when connections lead to another server everything is taken anew, once, however many shards report it.
func TestReconnect(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	k := l.keep(1, "a", "b")
	k.untilHas(3)
	a, b := k.position("a"), k.position("b")
	k.Reconnect(&a)
	k.Reconnect(&b)
	k.until("new epochs", func(shards map[string]Lease) bool { return len(shards) == 3 && shards["a"].Epoch == 2 })
	k.Reconnect(&b)
	k.Rebalance()
	l.Exec(`DELETE FROM outbox_positions WHERE destination = 'b'`) // so that a look shows
	k.until("a look later", func(shards map[string]Lease) bool { return len(shards) == 3 && shards["b"].PositionID != b.PositionID })
	if now := k.position("a"); now.Epoch != 2 || a.Valid() {
		t.Errorf("taken again: %+v; the old lease is valid: %t", now, a.Valid())
	}
}

// TestRestart: after a restart and after a crash all shards are taken anew. The earlier leases do not count on the new
// server.
func TestRestart(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, nil)
	l := asStream(testdb.At(t, server.URL(""), testdb.Tables{Mode: outboxsql.ModeStream, Notify: outboxsql.NotifyOff}))
	a, b := l.keep(1, "a", "b", "c"), l.keep(2, "a", "b", "c")
	a.untilHas(2)
	b.untilHas(2)
	for _, mode := range []pgserver.Mode{pgserver.Fast, pgserver.Immediate} {
		before := []Lease{a.position(a.has()[0]), b.position(b.has()[0])}
		if err := server.Restart(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
		for i, k := range []*keeping{a, b} {
			k.until("leases of the new life", func(shards map[string]Lease) bool {
				for _, l := range shards {
					if l.Server == before[i].Server {
						return false
					}
				}
				return len(shards) == 2
			})
			if err := Requires(before[i].Server)(t.Context(), l.Dial()); !errors.Is(err, ErrMoved) || before[i].Valid() {
				t.Errorf("the lease before the restart: valid %t, %v", before[i].Valid(), err)
			}
		}
	}
}

// shardsAre waits until a holder has exactly these shards.
func (k *keeping) shardsAre(names ...string) {
	k.tb.Helper()
	k.until(fmt.Sprintf("the shards %q", names), func(shards map[string]Lease) bool {
		return slices.Equal(slices.Sorted(maps.Keys(shards)), names)
	})
}

// TestLayouts: while one relay has the layout in force, one with another layout waits. When the first has stopped, the second
// arranges the destination, and takes it.
func TestLayouts(t *testing.T) {
	t.Parallel()
	const waits = "destination waits for relays with other shards or routes"
	l := newStream(t)
	two, arrangedTwo := l.arranges("2 x")
	one, arrangedOne := l.arranges("")
	first := l.keepWith(1, two, "a")
	first.shardsAre("", "a", "a/1")
	if p := first.position("a/1"); p.Shard != 1 || p.Destination != "a" {
		t.Errorf("taken: %+v", p)
	}
	second := l.keepWith(2, one, "a")
	second.shardsAre("")
	first.shardsAre("a", "a/1")
	testenv.Await(t, "a line in the log", func() bool { return second.logged(waits) > 0 })
	for range 3 { // further looks
		before := testdb.One[int64](l.DB, l.Conn, `SELECT renewals FROM outbox_members WHERE owner = 2`)
		second.Rebalance()
		l.untilTrue("another renewal", `SELECT renewals > $1 FROM outbox_members WHERE owner = 2`, before)
	}
	if n := arrangedOne.Load(); n != 0 {
		t.Errorf("it began %d arrangements while it had to wait", n)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second.shardsAre("", "a")
	if one, two, lines := arrangedOne.Load(), arrangedTwo.Load(), second.logged(waits); one != 1 || two != 1 || lines != 1 {
		t.Errorf("%d and %d arrangements, and %d lines", two, one, lines)
	}
	if n := testdb.One[int](l.DB, l.Conn, `SELECT count(*) FROM outbox_positions WHERE destination = 'a'`); n != 1 {
		t.Errorf("%d shards", n)
	}
}

// TestLayoutAfterAKill: a destination is not arranged before the term of a relay that had one of its shards.
func TestLayoutAfterAKill(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.create("", "a")
	l.Exec(`UPDATE outbox_positions SET owner = 99, epoch = 5 WHERE destination = 'a'`)
	l.Exec(`INSERT INTO outbox_members (owner, renewals, alive_until, pid, wants) VALUES (99, 1, clock_timestamp() + interval '1 h', 1, '{}')`)
	began := time.Now()
	two, arranged := l.arranges("2 x")
	k := l.keepWith(1, two, "a")
	k.shardsAre("", "a", "a/1")
	if took := time.Since(began); took < Term {
		t.Errorf("it was arranged after %v", took)
	}
	if n := arranged.Load(); n != 1 {
		t.Errorf("%d arrangements", n)
	}
	if p := k.position("a"); p.Epoch <= 6 {
		t.Errorf("taken: %+v", p)
	}
}

// TestStopInArrange: the next relay arranges what one that stops has not.
func TestStopInArrange(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	two, _ := l.arranges("2 x")
	began := make(chan struct{})
	first := l.keepWith(1, func(k *keeping, o *Options) {
		two(k, o)
		o.Arrange = func(ctx context.Context, _, _ string) error {
			close(began)
			<-ctx.Done()
			return ctx.Err()
		}
	}, "a")
	first.shardsAre("")
	<-began
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if n := first.logged(notArranged); n > 0 {
		t.Errorf("the stop was reported as a refusal")
	}
	l.keepWith(2, two, "a").shardsAre("", "a", "a/1")
}

// TestShardsOfTwo: two relays have one shard each.
func TestShardsOfTwo(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	two, _ := l.arranges("2 x")
	first, second := l.keepWith(1, two, "a"), l.keepWith(2, two, "a")
	for _, k := range []*keeping{first, second} {
		k.until("one of the shards", func(shards map[string]Lease) bool {
			_, a := shards["a"]
			_, b := shards["a/1"]
			return a != b
		})
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second.shardsAre("", "a", "a/1")
}
