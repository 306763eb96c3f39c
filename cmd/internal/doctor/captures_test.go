package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/capture"
)

// TestCaptures: the check is there only if a table is captured, finds what is wrong with a capture, also with the rights of a
// relay, and is content after the cure.
func TestCaptures(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	of := func() []Finding {
		t.Helper()
		return p.examine(nil).of("captures")
	}
	if got := of(); len(got) > 0 {
		t.Errorf("without captures: %+v", got)
	}
	p.Exec(`CREATE TABLE orders (id int PRIMARY KEY)`)
	plan, err := capture.Prepare(t.Context(), p.Conn, capture.Request{Outbox: "public", Table: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	if err := capture.Run(t.Context(), p.Conn, plan.SQL, time.Minute); err != nil {
		t.Fatal(err)
	}
	well := func(when string) {
		t.Helper()
		if got := of(); len(got) != 1 || got[0].Severity != OK || !strings.Contains(got[0].Text, "1 table") {
			t.Errorf("%s: %+v", when, got)
		}
	}
	well("as added")
	p.Exec(`ALTER TABLE orders DISABLE TRIGGER notifyd_capture_update_public`)
	_, _, asNobody := p.role("nobody")
	got := p.examine(func(o *Options) { o.Connect = asNobody }).of("captures")
	if len(got) != 1 || got[0].Severity != Error || !strings.Contains(got[0].Text, "is disabled") || !strings.HasPrefix(got[0].Cure, "ALTER TABLE") {
		t.Fatalf("disabled: %+v", got)
	}
	p.Exec(got[0].Cure)
	well("cured")
	p.Exec(`ALTER TABLE orders ADD COLUMN note text`)
	if got := of(); len(got) != 1 || got[0].Severity != Note || !strings.Contains(got[0].Text, "does not know: note") {
		t.Errorf("a new column: %+v", got)
	}
}
