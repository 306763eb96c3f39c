package integration

import (
	"fmt"
	"math"
	"strings"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

// stepKind is the action of a step of a plan.
type stepKind string

const (
	stepInsert   stepKind = "insert"    // one statement of several rows, in a separate transaction unless one is open
	stepKeyed    stepKind = "keyed"     // the same with ON CONFLICT DO NOTHING, one row in conflict at times
	stepCopy     stepKind = "copy"      // the same with COPY
	stepBegin    stepKind = "begin"     // a transaction, beginning with an insert
	stepCommit   stepKind = "commit"    //
	stepRollback stepKind = "rollback"  //
	stepSave     stepKind = "savepoint" // with an insert after it
	stepUnsave   stepKind = "rollback to savepoint"
	stepRelease  stepKind = "release savepoint"
	stepClose    stepKind = "close gate" // handlers do not answer
	stepOpen     stepKind = "open gate"  // handlers answer
	stepAwait    stepKind = "await"      // waits for committed events, if handlers answer
	stepHush     stepKind = "hush"       // ever more events: a relay polls, and the trigger is suppressed
	stepRouse    stepKind = "rouse"      // all gates open, until the trigger is released
	stepCrowd    stepKind = "crowd"      // writers at the very moment at which the trigger is released
	stepDeafen   stepKind = "deafen"     // relays lose the sessions that listen, and writers write until relays listen again
	stepReserve  stepKind = "reserve"    // an id, to be used later
	stepReserved stepKind = "reserved"   // insert with the oldest reserved id
	stepOutside  stepKind = "outside"    // insert with an id that no sequence has drawn
	stepBlocked  stepKind = "blocked"    // an id is drawn by a statement that waits for another transaction before it writes
)

// step is one step of a plan. A step that makes no sense at its place does
// nothing, so that a plan stays valid whatever shrinking removes.
type step struct {
	kind  stepKind
	slot  int // the session that writes
	event string
	rows  int
	level pgx.TxIsoLevel
	key   int // stepKeyed: its name; stepCrowd, stepDeafen: writers
	trips int // stepCrowd, stepDeafen: statements between the last insert and the commit
	id    int64
}

// plan is a list of actions on the relays. It is drawn as a whole and then
// executed step by step, so that a failure can be shrunk and shown.
type plan struct {
	relays int
	steps  []step
}

const slots = 3

func (s step) String() string {
	switch s.kind {
	case stepInsert, stepCopy, stepSave, stepReserved:
		return fmt.Sprintf("session %d: %s %d rows of %s", s.slot, s.kind, s.rows, s.event)
	case stepKeyed:
		return fmt.Sprintf("session %d: %s %d rows of %s, one with key %d", s.slot, s.kind, s.rows, s.event, s.key)
	case stepBegin:
		return fmt.Sprintf("session %d: %s %s, insert %d rows of %s", s.slot, s.kind, s.level, s.rows, s.event)
	case stepCommit, stepRollback, stepUnsave, stepRelease:
		return fmt.Sprintf("session %d: %s", s.slot, s.kind)
	case stepClose, stepOpen:
		return fmt.Sprintf("%s of %s", s.kind, s.event)
	case stepCrowd, stepDeafen:
		return fmt.Sprintf("%s of %d, %d statements before the commit", s.kind, s.key, s.trips)
	case stepOutside:
		return fmt.Sprintf("session %d: insert id %d of %s", s.slot, s.id, s.event)
	default:
		return string(s.kind)
	}
}

func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "relays: %d\n", p.relays)
	for i, s := range p.steps {
		fmt.Fprintf(&b, "%3d %v\n", i, s)
	}
	return b.String()
}

// everyday are the steps after which no event has to wait for a poll. A kind that
// is listed twice is drawn twice as often; simple ones come first, because plans
// shrink towards them.
var everyday = []stepKind{
	stepAwait, stepInsert, stepInsert, stepBegin, stepBegin, stepBegin, stepCommit, stepCommit, stepCommit,
	stepHush, stepHush, stepRouse, stepRouse, stepAwait, stepClose, stepOpen, stepOpen,
	stepRollback, stepSave, stepUnsave, stepRelease, stepCopy, stepKeyed, stepCrowd, stepDeafen,
}

// early are steps that write below ids that the relay has seen, without a
// transaction that the relay could have waited for.
var early = []stepKind{stepReserve, stepReserve, stepReserved, stepReserved, stepOutside, stepBlocked}

func drawPlan(t *rapid.T, kinds []stepKind) plan {
	return plan{
		relays: rapid.IntRange(1, 2).Draw(t, "relays"),
		steps:  rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step { return drawStep(t, kinds) }), 1, 40).Draw(t, "steps"),
	}
}

func drawStep(t *rapid.T, kinds []stepKind) step {
	s := step{kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
	switch s.kind {
	case stepAwait, stepHush, stepRouse, stepReserve, stepBlocked:
	case stepClose, stepOpen:
		s.event = rapid.SampledFrom(eventTypes).Draw(t, "event")
	case stepCrowd, stepDeafen:
		s.key = rapid.IntRange(1, 4).Draw(t, "writers")
		s.trips = rapid.IntRange(0, 30).Draw(t, "trips")
	default:
		s.slot = rapid.IntRange(0, slots-1).Draw(t, "slot")
		drawWrite(t, &s)
	}
	return s
}

// drawWrite draws a write of a session.
func drawWrite(t *rapid.T, s *step) {
	switch s.kind {
	case stepCommit, stepRollback, stepUnsave, stepRelease:
		return
	case stepBegin:
		s.level = rapid.SampledFrom([]pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}).Draw(t, "level")
	case stepKeyed:
		s.key = rapid.IntRange(0, 2).Draw(t, "key")
	case stepOutside:
		s.id = rapid.SampledFrom([]int64{1 << 40, 0, -1, math.MinInt64 + 1}).Draw(t, "id")
	default:
	}
	s.event = rapid.SampledFrom(eventTypes).Draw(t, "event")
	// Near the number of ids that a notification names, the number that wakes, and the batch.
	s.rows = rapid.SampledFrom([]int{1, 1, 1, 2, 7, 8, 9, 64, 65, 300, 1000}).Draw(t, "rows")
}
