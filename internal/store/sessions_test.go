package store

import (
	"context"
	"testing"

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
	for _, o := range []KeeperOptions{first, second} {
		d.hold(d.keeper(o))
	}
	d.exec(`SELECT pg_advisory_lock(42), pg_advisory_lock($1)`, NewOwner()) // of no relay
	all := read()
	if len(all) != 2 || all[0].Owner != first.Owner || all[1].Owner != second.Owner {
		t.Fatalf("%+v", all)
	}
	if s := all[0]; s.Application != "notifyd/keeper" || s.PID == 0 || s.User == "" || s.Since == nil {
		t.Errorf("%+v", s)
	}
}

func TestReadBell(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	read := func() BellState {
		t.Helper()
		bell, err := ReadBell(t.Context(), d.conn, "public")
		if err != nil {
			t.Fatal(err)
		}
		return bell
	}
	if b := read(); b.Mode != outboxsql.BellAuto || b.Silent != nil {
		t.Errorf("%+v", b)
	}
	conn, err := d.Connect(t.Context(), "bell")
	if err != nil {
		t.Fatal(err)
	}
	defer Close(context.WithoutCancel(t.Context()), conn)
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock($1::bigint << 32 | 'outbox_events'::regclass::oid::bigint)`, int64(bellSpace)); err != nil {
		t.Fatal(err)
	}
	if b := read(); b.Silent == nil || b.Silent.Application != "notifyd/bell" || b.Silent.PID == 0 || b.Silent.Owner != 0 {
		t.Errorf("%+v", b.Silent)
	}
	if b, err := ReadBell(t.Context(), d.conn, "nowhere"); err != nil || b.Mode != outboxsql.BellOff || b.Silent != nil {
		t.Errorf("%+v, %v", b, err)
	}
}
