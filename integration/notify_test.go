package integration

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// shrinking is the patience with a plan once one has failed: most of the shrunk
// plans fail again.
const shrinking = time.Second

// TestNotify drives relays of a queue that start and stop listening, with random plans. The poll interval is an hour, so
// that no poll hides a fault of the trigger: an event that the protocol lost would be found only then.
// [TestNotifyEarlyIDs] tests a stream.
func TestNotify(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	checkPlans(t, notifyEnv(t, outboxsql.ModeQueue), everyday, never)
}

// TestNotifyEarlyIDs adds writers whose ids are older than their transactions.
// The protocol of a queue leaves those to the poll, and a full sweep has to find them. A
// stream takes no ids that were drawn elsewhere, and needs no poll for those that were
// drawn early.
func TestNotifyEarlyIDs(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	tests := map[outboxsql.Mode]struct {
		kinds []stepKind
		poll  time.Duration
	}{
		outboxsql.ModeQueue:  {early, 50 * time.Millisecond},
		outboxsql.ModeStream: {[]stepKind{stepBlocked, stepBlocked, stepBlocked}, never},
	}
	for mode, test := range tests {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			checkPlans(t, newEnvIn(t, mode), slices.Concat(everyday, test.kinds), test.poll)
		})
	}
}

// notifyEnv is a database for relays that listen. The relay of a queue listens only when the transactions of the whole
// server have ended. It therefore has a separate server: transactions of other tests would keep it polling, so that it
// would find events that it should have lost. A stream ignores them.
func notifyEnv(t *testing.T, mode outboxsql.Mode) *env {
	t.Helper()
	if mode == outboxsql.ModeStream {
		return newEnvIn(t, mode)
	}
	return envAt(t, testenv.OwnPostgres(t, nil).URL(""))
}

// checkPlans is run for longer with -rapid.checks, and again with -rapid.seed.
func checkPlans(t *testing.T, e *env, kinds []stepKind, poll time.Duration) {
	t.Helper()
	wait := patience
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t, kinds)
		if err := execute(e, p, wait, poll); err != nil {
			wait = shrinking
			t.Fatalf("%v\nthe plan was:\n%v", err, p)
		}
	})
}

// TestNotifyPlans are plans that once found a fault, or that find a breach of the
// protocol which random plans seldom hit.
func TestNotifyPlans(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	// No signal shows when a relay begins to listen. By the end of these steps it has.
	var meanwhile []step
	for range 20 {
		meanwhile = append(meanwhile, step{kind: stepInsert, slot: 2, event: "b", rows: 1}, step{kind: stepAwait})
	}
	var crowds []step
	for trips := range 20 {
		crowds = append(crowds, step{kind: stepCrowd, key: 4, trips: 2 * trips})
	}
	tests := map[string][]step{
		"crowds around the release of the trigger": crowds,
		// The marks must not pass ids that are still under way.
		"silent writer commits behind the head": slices.Concat([]step{
			{kind: stepHush},
			{kind: stepBegin, event: "a", rows: 1, level: pgx.ReadCommitted},
			{kind: stepInsert, slot: 1, event: "a", rows: 300},
			{kind: stepRouse},
		}, meanwhile, []step{{kind: stepCommit}}),
		// The common sweep skips the lane's types, and the lane's own sweep continues
		// where the lane was passed over, which is behind the late event.
		"silent writer commits behind a lane that lags": slices.Concat([]step{
			{kind: stepHush},
			{kind: stepBegin, event: "a", rows: 1, level: pgx.ReadCommitted},
			{kind: stepRouse},
			{kind: stepClose, event: "a"},
			{kind: stepInsert, slot: 1, event: "a", rows: 300},
		}, meanwhile, []step{{kind: stepCommit}}, meanwhile, []step{{kind: stepOpen, event: "a"}}),
	}
	for name, steps := range tests {
		for _, mode := range bothModes() {
			t.Run(name+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				if err := execute(notifyEnv(t, mode), plan{relays: 1, steps: steps}, patience, never); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
