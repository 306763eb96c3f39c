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
	// A pause without a reason does not erase that of another person.
	for _, a := range []ops.Action{{Actor: "ann"}, {Actor: "ben", Reason: "it moves"}, {Actor: "cleo"}} {
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
		if was, err := d.store.Resume(t.Context(), "mail", ops.Action{Actor: "ann", Reason: "done"}); err != nil || was != want {
			t.Fatalf("resumed: %v, %v", was, err)
		}
	}
	if all, err := d.store.Pauses(t.Context()); err != nil || len(all) != 1 {
		t.Fatalf("pauses: %v, %v", all, err)
	}
	if was, err := d.store.Resume(t.Context(), "audit", ops.Action{DryRun: true}); err != nil || !was {
		t.Errorf("a dry run: %v, %v", was, err)
	}
	d.expect("audit", `SELECT concat_ws(' ', action, CASE WHEN actor = session_user THEN 'the role' ELSE actor END, destination, details->>'reason') FROM outbox_audit ORDER BY id`,
		"pause ann mail", "pause ben mail it moves", "pause cleo mail", "pause the role audit", "resume ann mail done")
	for _, bad := range []ops.Action{{Actor: "a\x00"}, {Reason: strings.Repeat("x", 1001)}, {Reason: strings.Repeat("x", 1001), DryRun: true}} {
		if err := d.store.Pause(t.Context(), "mail", bad); !errors.Is(err, ops.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	for _, bad := range []string{"", "a\x00", "\xff"} {
		_, err := d.store.Resume(t.Context(), bad, ops.Action{})
		if !errors.Is(err, ops.ErrInvalid) || !errors.Is(d.store.Pause(t.Context(), bad, ops.Action{}), ops.ErrInvalid) {
			t.Errorf("destination %q: %v", bad, err)
		}
	}
}
