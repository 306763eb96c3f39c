package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestLateAnswerOfRefusedLease: a delivery in a queue outlasts its lock budget, and PostgreSQL refuses or ignores the write
// of its lease. The event is not delivered again while the delivery runs. The late answer is recorded when PostgreSQL takes
// the write.
func TestLateAnswerOfRefusedLease(t *testing.T) {
	t.Parallel()
	type way struct{ refuse, cure string }
	on := func(when, then string) way {
		refuse, cure := trigger("outbox_deliveries", "BEFORE "+when, "true", then)
		return way{refuse, cure}
	}
	for name, c := range map[string]way{
		"a refused INSERT":  on("INSERT", `RAISE 'not this one'`),
		"an ignored INSERT": on("INSERT", `RETURN NULL`),
		"a refused UPDATE":  on("UPDATE", `RAISE 'not this one'`),
		"an ignored UPDATE": on("UPDATE", `RETURN NULL`),
		"a rule":            {`CREATE RULE mine AS ON INSERT TO outbox_deliveries DO INSTEAD NOTHING`, `DROP RULE mine ON outbox_deliveries`},
		"a full disk":       on("INSERT", `RAISE 'no space left' USING ERRCODE = 'disk_full'`),
	} {
		for _, fails := range []bool{false, true} {
			for _, curedFirst := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, fails %v, cured first %v", name, fails, curedFirst), func(t *testing.T) {
					t.Parallel()
					if name != "a refused INSERT" && name != "an ignored UPDATE" {
						testenv.Long(t)
					}
					e, h := newEnvIn(t, outboxsql.ModeQueue), newRecorder(t)
					slow := 1 // the attempt that outlasts its lock budget
					if name == "a refused UPDATE" || name == "an ignored UPDATE" {
						slow = 2
					}
					answer := make(chan struct{})
					h.answer = func(_ context.Context, event *delivery.Event) error {
						if event.Attempt == slow {
							<-answer
						}
						if event.Attempt < slow || event.Attempt == slow && fails {
							return errors.New("not yet")
						}
						return nil
					}
					other := newRecorder(t) // answers at once, at the same event
					r := e.relay(func(r *notifyd.Relay) {
						handleAll(t, h, delivery.Lane{Backoff: quick()})(r)
						for _, err := range []error{r.Add(notifyd.Destination{Name: "other", Handler: other}), r.Route("a", "all", "other")} {
							if err != nil {
								t.Error(err)
							}
						}
					}, notifyd.Config{Connections: 1}) // or another claimer may lock the row before its refusal is known
					e.exec(c.refuse)
					id := e.insert("a", "1")
					testenv.Await(t, "a refusal", func() bool { return len(r.Stats().Refusals) > 0 })

					if curedFirst {
						e.exec(c.cure)
						close(answer)
					} else {
						close(answer)
						e.exec(c.cure)
					}
					e.untilDone()
					want := slow
					if fails {
						want++
					}
					if n, m := h.times(id), other.times(id); n != want || m != 1 {
						t.Errorf("delivered %d and %d times, want %d and 1", n, m, want)
					}
					testenv.Await(t, "no refusal", func() bool { return r.Stats().Refusals == nil })
				})
			}
		}
	}
}
