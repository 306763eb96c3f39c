package store

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestReadRelays(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	read := func() []RelaySession {
		t.Helper()
		all, err := ReadRelays(t.Context(), d.conn)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if all := read(); len(all) != 0 {
		t.Errorf("before there is one: %+v", all)
	}
	first, second := options(), options()
	for _, o := range []SessionOptions{first, second} {
		d.hold(d.relaySession(o))
	}
	d.exec(`SELECT pg_advisory_lock(42), pg_advisory_lock($1)`, NewOwner()) // of no relay
	all := read()
	if len(all) != 2 || all[0].Owner != first.Owner || all[1].Owner != second.Owner {
		t.Fatalf("%+v", all)
	}
	if s := all[0]; s.Application != "notifyd/maintenance" || s.PID == 0 || s.User == "" || s.Since == nil {
		t.Errorf("%+v", s)
	}
}

func TestReadNotifyState(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	read := func() NotifyState {
		t.Helper()
		notify, err := ReadNotifyState(t.Context(), d.conn, "public")
		if err != nil {
			t.Fatal(err)
		}
		return notify
	}
	if b := read(); b.Mode != outboxsql.NotifyAuto || b.SuppressedBy != nil {
		t.Errorf("%+v", b)
	}
	conn, err := d.Connect(t.Context(), "notify")
	if err != nil {
		t.Fatal(err)
	}
	defer Close(context.WithoutCancel(t.Context()), conn)
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock($1::bigint << 32 | 'outbox_events'::regclass::oid::bigint)`, int64(notifySpace)); err != nil {
		t.Fatal(err)
	}
	if b := read(); b.SuppressedBy == nil || b.SuppressedBy.Application != "notifyd/notify" || b.SuppressedBy.PID == 0 || b.SuppressedBy.Owner != 0 {
		t.Errorf("%+v", b.SuppressedBy)
	}
	if b, err := ReadNotifyState(t.Context(), d.conn, "nowhere"); err != nil || b.Mode != outboxsql.NotifyOff || b.SuppressedBy != nil {
		t.Errorf("%+v, %v", b, err)
	}
}

// holders are the kinds of locks, applications and users that ReadForeignHolders finds.
func (d *db) holders() (found []string) {
	d.Helper()
	all, err := ReadForeignHolders(d.Context(), d.conn, "public")
	if err != nil {
		d.Fatal(err)
	}
	for _, s := range all {
		found = append(found, fmt.Sprintf("%s by %q of %s", s.Kind, s.Application, s.User))
		if s.PID == 0 || !strings.Contains(s.String(), "pid") {
			d.Errorf("%v", s)
		}
	}
	return found
}

// session opens a session of a user and an application, which runs the statements.
func (d *db) session(user, application string, statements ...string) *pgx.Conn {
	d.Helper()
	cfg := d.Config.Copy()
	cfg.User = user
	conn, err := pgx.ConnectConfig(d.Context(), cfg)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { Close(context.WithoutCancel(d.Context()), conn) })
	for _, s := range append([]string{`SET application_name = '` + application + `'`}, statements...) {
		if _, err := conn.Exec(d.Context(), s); err != nil {
			d.Fatal(err)
		}
	}
	return conn
}

// TestReadForeignHolders: sessions of notifyd, writers and schema changes do not count as foreign. If the role of a
// session may not read events, its name proves nothing.
func TestReadForeignHolders(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	role, user := fmt.Sprintf("nobody_%d", NewOwner()), d.Config.User
	d.exec(`CREATE ROLE ` + role + ` LOGIN`)
	t.Cleanup(func() {
		if _, err := d.conn.Exec(context.WithoutCancel(t.Context()), `DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	const (
		notifyLock = `SELECT pg_advisory_lock(1853122162::bigint << 32 | 'outbox_events'::regclass::oid::bigint)`
		listening  = `SELECT pg_advisory_lock_shared(1853122163, hashtext('outbox_events'))`
		life       = `SELECT pg_advisory_lock_shared(1853122159::bigint << 32 | 7)`
		mode       = `SELECT pg_advisory_lock(1853122168::bigint << 32 | 'outbox_mode'::regclass::oid::bigint)`
	)
	k := d.relaySession(options())
	d.hold(k)
	d.session(user, "notifyd/listen", listening)
	relay := d.session(user, "notifyd/notify", notifyLock, life, `SELECT pg_advisory_lock(42)`)
	if got := d.holders(); len(got) != 0 {
		t.Errorf("beside relays: %q", got)
	}
	d.terminate(relay)
	d.terminate(k.conn.Conn)
	change := d.session(user, "psql", `SELECT pg_advisory_lock(1853122157::bigint << 32 | 5)`, mode)
	if got := d.holders(); len(got) != 0 {
		t.Errorf("beside a change: %q", got)
	}
	d.terminate(change)
	d.session(user, "psql", mode, life, listening)
	d.session(role, "notifyd/claim", notifyLock)
	want := []string{`life by "psql" of ` + user, `listen by "psql" of ` + user, `mode by "psql" of ` + user, `notify by "notifyd/claim" of ` + role}
	if got := d.holders(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", got, want)
	}
}
