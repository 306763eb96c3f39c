package stream

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/testenv"
	"github.com/notifyd/notifyd/internal/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestKeeperAlone(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	k := l.keep(7, "a", "b")
	k.untilHas(3)
	if got := l.owners(); got != "7 7 7" {
		t.Errorf("owners: %s", got)
	}
	if got := testdb.One[string](l.DB, l.Conn, holders); got != "1 members, 3 units" {
		t.Error(got)
	}
	for _, name := range []string{"", "a", "b"} {
		p := k.position(name)
		if !p.Clean || p.Epoch != 1 {
			t.Errorf("%q: %+v", name, p)
		}
		k.untilSure(p)
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
	if got := testdb.One[string](l.DB, l.Conn, holders); got != "0 members, 0 units" {
		t.Error(got)
	}
	if len(k.has()) > 0 || k.Sure() || p.Sure() {
		t.Errorf("after the end it has %q", k.has())
	}
}

func TestKeeperOfAQueue(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	k := l.keep(7, "a")
	if err := k.stop(); err != nil && !errors.Is(err, outboxsql.ErrMode) {
		t.Fatal(err)
	}
	cfg, err := pgx.ParseConfig(l.URL)
	if err != nil {
		t.Fatal(err)
	}
	q := NewKeeper(&store.Connector{Config: cfg, Schema: "public"}, KeeperOptions{}, slog.New(slog.DiscardHandler))
	if err := q.Run(t.Context()); !errors.Is(err, outboxsql.ErrMode) {
		t.Errorf("a queue: %v", err)
	}
}

// TestKeepersShare: new relays get their share, and the units of one that stops go to the others,
// cleanly.
func TestKeepersShare(t *testing.T) {
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
			if p := k.position(name); !p.Clean || p.Epoch < 2 {
				t.Errorf("%+v", p)
			}
		}
	}
	had := first.has()
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second.untilHas(3)
	third.untilHas(3)
	for _, name := range had {
		for _, k := range []*keeping{second, third} {
			if p := k.position(name); p.Epoch > 0 && !p.Clean {
				t.Errorf("%q was not handed over: %+v", name, p)
			}
		}
	}
	if second.lostSoFar()+third.lostSoFar() > 1 {
		t.Errorf("%d and %d units changed hands for nothing", second.lostSoFar(), third.lostSoFar())
	}
}

// TestKeepersTell: a relay that comes, gives or goes notifies the others.
func TestKeepersTell(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	hears := l.Dial()
	l.On(hears, `LISTEN outbox_events`)
	hear := func(what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if n, err := hears.WaitForNotification(ctx); err != nil || n.Payload != "units" {
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
	hear("the first unit")
	hear("the second unit")
}

// TestKeepersOfDifferentDestinations: as when relays are replaced one after the other.
func TestKeepersOfDifferentDestinations(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	before := l.keep(1, "a", "b", "c")
	before.untilHas(4)
	after := l.keep(2, "c", "d")
	after.until("d and one of the others", func(units map[string]Position) bool { return len(units) == 2 && units["d"].Epoch == 1 })
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

// TestKeeperLosesItsSession: all units are lost at once, and gained again.
func TestKeeperLosesItsSession(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	k := l.keep(1, "a", "b")
	k.untilHas(3)
	before := k.position("a")
	l.Exec(`SELECT pg_terminate_backend($1)`, l.sessionOf(before.Unit))
	k.until("a new epoch", func(units map[string]Position) bool {
		return len(units) == 3 && units["a"].Epoch == 2
	})
	p := k.position("a")
	k.untilSure(p)
	if !p.Clean || before.Sure() || k.lostSoFar() != 3 {
		t.Errorf("after %d losses it has %+v", k.lostSoFar(), p)
	}
	if ok, err := before.Save(t.Context(), l.Conn, 1, nil, 0); ok || err != nil {
		t.Errorf("the old epoch writes; %v", err)
	}
}

// TestKeepersLoseASession: the units that one of two loses are taken again, by either, and in the
// end each has its share.
func TestKeepersLoseASession(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	a, b := l.keep(1, "a", "b", "c"), l.keep(2, "a", "b", "c")
	a.untilHas(2)
	b.untilHas(2)
	before := a.position(a.has()[0])
	losses := a.lostSoFar()
	l.Exec(`SELECT pg_terminate_backend($1)`, l.sessionOf(before.Unit))
	a.until("the loss", func(map[string]Position) bool { return a.losses >= losses+2 })
	l.untilTrue("a new owner", `SELECT epoch > $2 FROM outbox_positions WHERE unit = $1`, before.Unit, before.Epoch)
	a.untilHas(2)
	b.untilHas(2)
	if before.Sure() {
		t.Error("a position of the old session is sure of it")
	}
}

// TestKeeperAfterAKill: the units of a dead relay were not handed over.
func TestKeeperAfterAKill(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.create(Wanted{}, Wanted{Destination: "a"})
	l.Exec(`UPDATE outbox_positions SET owner = 99, epoch = 5 WHERE destination = 'a'`)
	k := l.keep(1, "a")
	k.untilHas(2)
	if a, r := k.position("a"), k.position(""); a.Clean || a.Epoch != 6 || !r.Clean {
		t.Errorf("taken over: %+v, %+v", a, r)
	}
}

// TestFrozenKeeper: the server ends the session of a silent relay; the relay is not sure of it by
// then, and adds nothing when it wakes.
func TestFrozenKeeper(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	halt := make(chan struct{})
	frozen := l.keepHalted(1, halt, "a")
	t.Cleanup(sync.OnceFunc(func() { // before the keeper is stopped
		select {
		case <-halt:
		default:
			close(halt)
		}
	}))
	l.untilTrue("the first unit", `SELECT count(*) = 1 FROM outbox_positions WHERE owner = 1`)
	unit := testdb.One[int32](l.DB, l.Conn, `SELECT unit FROM outbox_positions WHERE owner = 1`)
	other := l.keep(2, "a")
	l.untilTrue("the end of the session", `SELECT NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory'
		AND classid = 'outbox_positions'::regclass AND objid = 0 AND pid = $1)`, l.sessionOf(unit))
	if frozen.Sure() {
		t.Error("it is sure of a session that is gone")
	}
	other.untilHas(2)
	name := testdb.One[string](l.DB, l.Conn, `SELECT destination FROM outbox_positions WHERE unit = $1`, unit)
	p := other.position(name)
	if p.Clean || p.Epoch != 2 {
		t.Errorf("taken over: %+v", p)
	}
	old := p
	old.Epoch = 1
	if ok, err := old.Save(t.Context(), l.Conn, 1, nil, 0); ok || err != nil {
		t.Errorf("the old epoch writes; %v", err)
	}
	close(halt)
	frozen.until("a share", func(units map[string]Position) bool {
		if len(units) != 1 {
			return false
		}
		for _, p := range units {
			return p.Epoch > 1
		}
		return false
	})
	other.untilHas(1)
}

// TestKeeperSkipsALockedRow: a position that cannot be written costs no other unit.
func TestKeeperSkipsALockedRow(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.create(Wanted{}, Wanted{Destination: "a"}, Wanted{Destination: "b"})
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
		t.Errorf("%d units were lost for it", k.lostSoFar())
	}
}

// TestRefusalEndsWithTheUnit: a relay whose last write of a position was refused says so no more when
// another relay has the unit.
func TestRefusalEndsWithTheUnit(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	first := l.keep(1, "a", "b", "c")
	first.untilHas(4)
	tx, err := l.Conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.Exec(`SELECT FROM outbox_positions FOR UPDATE`)
	second := l.keep(2, "a", "b", "c")
	const part = "owners of units"
	first.until("its write is refused", func(map[string]Position) bool { return first.refused[part] })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.untilHas(2)
	second.untilHas(2)
	first.until("nothing is refused", func(map[string]Position) bool { return !first.refused[part] })
	second.until("nothing is refused", func(map[string]Position) bool { return !second.refused[part] })
}

// TestKeeperTakesAgain: positions that were moved by hand, or forgotten. The router starts over as
// well, because the forgotten destination has routes again.
func TestKeeperTakesAgain(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	k := l.keep(1, "a", "b")
	k.untilHas(3)
	l.Exec(`UPDATE outbox_positions SET head = 42, epoch = epoch + 1 WHERE destination = 'a'`)
	l.Exec(`DELETE FROM outbox_positions WHERE destination = 'b'`)
	k.until("both again", func(units map[string]Position) bool {
		return len(units) == 3 && units["a"].Head == 42 && units["b"].Unit > 3 && units[""].Epoch > 1
	})
	if a, b := k.position("a"), k.position("b"); a.Epoch != 3 || b.Epoch != 1 || !a.Clean || !b.Clean || k.lostSoFar() != 3 {
		t.Errorf("after %d losses: %+v, %+v", k.lostSoFar(), a, b)
	}
}

// TestKeeperRenews: a session on a server that connections do not lead to any more is given up, and
// units are taken on the next one. It is given up once, however many units report it.
func TestKeeperRenews(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	k := l.keep(1, "a", "b")
	k.untilHas(3)
	a, b := k.position("a"), k.position("b")
	k.Renew(a)
	k.Renew(b)
	elsewhere := func(units map[string]Position) bool {
		for _, p := range units {
			if p.Backend == a.Backend {
				return false
			}
		}
		return len(units) == 3
	}
	k.until("all on another session", elsewhere)
	k.Renew(b)
	k.Look()
	l.Exec(`DELETE FROM outbox_positions WHERE destination = 'b'`) // so that a look shows
	k.until("a look later", func(units map[string]Position) bool { return elsewhere(units) && units["b"].Unit != b.Unit })
	if now := k.position("a"); now.Epoch != 2 || k.lostSoFar() < 4 {
		t.Errorf("taken again: %+v, %d units lost", now, k.lostSoFar())
	}
}

// TestKeepersOverRestart: a server that was restarted, and one that crashed.
func TestKeepersOverRestart(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, nil)
	l := newLogAt(t, server.URL(""))
	l.Exec(`UPDATE outbox_mode SET mode = 'stream'`)
	a, b := l.keep(1, "a", "b", "c"), l.keep(2, "a", "b", "c")
	a.untilHas(2)
	b.untilHas(2)
	for _, mode := range []pgserver.Mode{pgserver.Fast, pgserver.Immediate} {
		before := make(map[string]int64)
		rows, err := Positions(t.Context(), l.Dial())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range rows {
			before[p.Destination] = p.Epoch
		}
		if err := server.Restart(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
		for _, k := range []*keeping{a, b} {
			k.until("new epochs", func(units map[string]Position) bool {
				for name, p := range units {
					if p.Epoch <= before[name] {
						return false
					}
				}
				return len(units) == 2
			})
		}
	}
}
