package ops_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/ops"
)

// TestPauses: a pause is stored with who and why, a second one replaces both, and a dry run changes nothing.
func TestPauses(t *testing.T) {
	t.Parallel()
	d := newLetters(t, false)
	if err := d.store.Pause(t.Context(), "mail", ops.Action{Actor: "ann", Reason: "the server moves", DryRun: true}); err != nil {
		t.Fatal(err)
	}
	if all, err := d.store.Pauses(t.Context()); err != nil || len(all) != 0 {
		t.Fatalf("after a dry run: %v, %v", all, err)
	}
	for _, a := range []ops.Action{{Actor: "ann"}, {Actor: "ben", Reason: "it moves"}} {
		if err := d.store.Pause(t.Context(), "mail", a); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.store.Pause(t.Context(), "audit", ops.Action{}); err != nil {
		t.Fatal(err)
	}
	all, err := d.store.Pauses(t.Context())
	if err != nil || len(all) != 2 || all["mail"].By != "ben" || all["mail"].Reason != "it moves" || all["mail"].Since.IsZero() || all["audit"].By == "" {
		t.Fatalf("pauses: %v, %v", all, err)
	}
	for _, want := range []bool{true, false} {
		if was, err := d.store.Resume(t.Context(), "mail"); err != nil || was != want {
			t.Fatalf("resumed: %v, %v", was, err)
		}
	}
	if all, err := d.store.Pauses(t.Context()); err != nil || len(all) != 1 {
		t.Fatalf("pauses: %v, %v", all, err)
	}
	for _, bad := range []ops.Action{{Actor: "a\x00"}, {Actor: "a", Reason: strings.Repeat("x", 1001)}} {
		if err := d.store.Pause(t.Context(), "mail", bad); !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
