package store

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/dispatch"
)

// TestOnlySharesMayNotBeIdle: a bell that nobody has to ring all night is kept.
func TestOnlySharesMayNotBeIdle(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	for role, want := range map[string]string{
		"claim": "0", "listen": "0", "bell": "0", "keeper": "0", "check": "0",
		roleSlots: slotsIdle.String(), RoleUnits: unitsIdle.String(),
	} {
		conn, err := d.Connect(t.Context(), role)
		if err != nil {
			t.Fatal(err)
		}
		defer Close(context.WithoutCancel(t.Context()), conn)
		var got string
		if err := conn.QueryRow(t.Context(), `SHOW idle_session_timeout`).Scan(&got); err != nil || got != want {
			t.Errorf("idle_session_timeout of notifyd/%s is %q, want %q; %v", role, got, want, err)
		}
	}
}

// TestSlotsOfWhoIsSilent: a relay that asks for nothing any more loses its share,
// and one that only has nothing to ask keeps it.
func TestSlotsOfWhoIsSilent(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	share := func(s *Slots) dispatch.SlotShare {
		t.Helper()
		got, err := s.Share(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	kept, frozen := NewSlots(d.Connector, NewOwner()), NewSlots(d.Connector, NewOwner())
	for _, s := range []*Slots{kept, frozen} {
		defer s.Close(context.WithoutCancel(t.Context()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var keeping sync.WaitGroup
	keeping.Go(func() { kept.Keep(ctx) })
	defer keeping.Wait()
	defer cancel()

	all := share(kept).Held
	share(frozen) // it is there, and gets what the other lets go
	half := all[:dispatch.Slots/2]
	if err := kept.Release(t.Context(), half); err != nil {
		t.Fatal(err)
	}
	before, got := share(kept), share(frozen)
	if !slices.Equal(got.Held, half) || !slices.Equal(before.Held, all[dispatch.Slots/2:]) {
		t.Fatalf("one relay has %v, and the other %v", before.Held, got.Held)
	}
	// From here on neither is asked. The one that is kept was silent first.
	tick := time.NewTicker(50 * time.Millisecond) // nothing tells of the end of a session
	defer tick.Stop()
	for deadline := time.Now().Add(3 * time.Minute); one[int](d, `SELECT count(*) FROM pg_stat_activity
		WHERE application_name = 'notifyd/slots' AND datname = current_database()`) > 1; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("the session of a relay that is silent is not ended")
		}
	}
	if got := share(kept); got.Session != before.Session || len(got.Held) != dispatch.Slots {
		t.Errorf("the relay that was kept has %+v", got)
	}
	// What is back after that begins anew.
	if got, err := frozen.Share(t.Context(), false); err == nil {
		t.Errorf("a session that was ended answers %+v", got)
	}
	if got := share(frozen); got.Session != 2 || len(got.Held) != 0 {
		t.Errorf("after it is back it has %+v", got)
	}
}
