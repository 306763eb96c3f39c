package store

import (
	"fmt"
	"slices"
	"testing"

	"github.com/notifyd/notifyd/dispatch"
)

// line writes rows of one aggregate at destination d, whose states are given, and
// returns the ids of their events.
func (d *db) line(key string, states ...string) []int64 {
	d.Helper()
	all := d.insert("a", len(states))
	for i, state := range states {
		d.exec(`UPDATE outbox_events SET state = 'deferred', aggregate_type = 't', aggregate_id = $2 WHERE id = $1`, all[i], key)
		d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at, ordering_key, error_class, last_error)
			VALUES ($1, 'd', 'a', CASE $2 WHEN 'later' THEN 'retry' ELSE $2 END, 0,
				clock_timestamp() + CASE $2 WHEN 'later' THEN interval '1 hour' ELSE interval '-1 hour' END, 't/' || $3::text,
				CASE $2 WHEN 'dead' THEN 'event' END, CASE $2 WHEN 'dead' THEN 'no' END)`, all[i], state, key)
	}
	return all
}

// slotOf returns the slot of an aggregate, as the database counts it.
func (d *db) slotOf(key string) int32 {
	d.Helper()
	return one[int32](d, `SELECT hashtext(left('t/' || $1::text, 32)) & 63`, key)
}

func TestClaimLines(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	mixed := d.line("mixed", "parked", "retry", "later", "parked")
	later := d.line("later", "later", "parked")
	dead := d.line("dead", "dead", "parked")
	beyond := d.line("beyond", "parked")
	other, s := d.session(options()), d.session(options())
	d.line("locked", "parked", "parked")
	high := beyond[0] + 1000
	ask := func(bound int64, keys ...string) dispatch.Query {
		q := dispatch.Query{Source: dispatch.SourceLines, PerLine: 10}
		for _, key := range keys {
			q.Lines = append(q.Lines, dispatch.LineRef{Destination: "d", Key: "t/" + key, Bound: bound})
		}
		return q
	}
	d.claim(other, dispatch.Query{Source: dispatch.SourceLines, PerLine: 1, Lines: ask(high, "locked").Lines})
	d.keepOpen(other)
	blocking, few := ask(high, "dead"), ask(high, "mixed")
	blocking.Blocking, few.PerLine = []string{"d"}, 1
	mine, others := ask(high, "mixed", "later"), ask(high, "mixed")
	mine.Slots, others.Slots = []int32{d.slotOf("mixed")}, []int32{(d.slotOf("mixed") + 1) % dispatch.Slots}
	for name, c := range map[string]struct {
		q    dispatch.Query
		want []int64
		head dispatch.LineState
	}{
		"up to a retry that is not first": {ask(high, "mixed"), mixed, dispatch.LineClaimed},
		"first is to wait":                {ask(high, "later"), nil, dispatch.LineWaiting},
		"dead is passed by":               {ask(high, "dead"), dead[1:], dispatch.LineClaimed},
		"dead blocks":                     {blocking, nil, dispatch.LineBlocked},
		"beyond the bound":                {ask(beyond[0]-1, "beyond"), nil, dispatch.LineBeyond},
		"first is locked":                 {ask(high, "locked"), nil, dispatch.LineLocked},
		"nothing there":                   {ask(high, "nobody"), nil, dispatch.LineEmpty},
		"a few":                           {few, mixed[:1], dispatch.LineClaimed},
		"of the relay's slots":            {mine, mixed, dispatch.LineClaimed},
		"of another relay's slots":        {others, nil, dispatch.LineEmpty},
	} {
		got := d.claim(s, c.q)
		if all := ids(got); !slices.Equal(all, c.want) || got.Heads[0] != c.head {
			t.Errorf("%s: claimed %v, want %v; the head is %d, want %d", name, all, c.want, got.Heads[0], c.head)
		}
		if len(got.Work) > 0 {
			d.settle(s, &dispatch.Settlement{})
		}
	}
	if got := d.claim(s, mine); got.Heads[1] != dispatch.LineEmpty && d.slotOf("later") != d.slotOf("mixed") {
		t.Errorf("the line of another relay's slot is %d; first is %d of %v", got.Heads[1], got.Firsts[1], later)
	}
	d.settle(s, &dispatch.Settlement{})
	d.settle(other, &dispatch.Settlement{})
}

func TestClaimLinesLeavesWhatIsNotDueUnlocked(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	later, behind, due := d.line("later", "later", "parked"), d.line("behind", "retry", "later"), d.line("due", "retry")
	s := d.session(options())
	q := dispatch.Query{Source: dispatch.SourceLines, PerLine: 10}
	for _, key := range []string{"later", "behind", "due"} {
		q.Lines = append(q.Lines, dispatch.LineRef{Destination: "d", Key: "t/" + key, Bound: due[0]})
	}
	if got := ids(d.claim(s, q)); !slices.Equal(got, append(behind, due...)) {
		t.Fatalf("claimed %v, want %v and %v", got, behind, due)
	}
	d.keepOpen(s)
	// Who comes for a delivery that has just become due skips what is locked.
	free := func(id int64) bool {
		return one[int64](d, `SELECT count(*) FROM (SELECT FROM outbox_deliveries WHERE event_id = $1 FOR UPDATE SKIP LOCKED) AS f`, id) == 1
	}
	for i, id := range later {
		if !free(id) {
			t.Errorf("row %d of a line whose first one is not due is locked while other lines are delivered", i)
		}
	}
	if free(behind[1]) {
		t.Error("a row behind its first one is claimed with it, and is not locked")
	}
	d.settle(s, &dispatch.Settlement{})
}

func TestClaimShowsWhatHasComeUpBehind(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	all := d.insert("a", 6)
	for i, id := range all {
		d.exec(`UPDATE outbox_events SET aggregate_type = 't', aggregate_id = $2, event_type = $3 WHERE id = $1`, id, fmt.Sprint(i), "a"+fmt.Sprint(i%2))
	}
	other, s := d.session(options()), d.session(options())
	d.claim(other, dispatch.Query{Source: dispatch.SourceIDs, IDs: all[:2]})
	d.keepOpen(other)
	late := func(q dispatch.Query) (found []int64, cut bool) {
		c := d.claim(s, q)
		for _, x := range c.Late {
			found = append(found, x.ID)
		}
		if len(c.Work) > 0 {
			d.settle(s, &dispatch.Settlement{})
		}
		return found, c.LateCut
	}
	q := dispatch.Query{Source: dispatch.SourceIDs, IDs: all[5:], Gaps: []dispatch.Range{{From: all[0], To: all[3]}}, Look: 10}
	if got, cut := late(q); !slices.Equal(got, all[:4]) || cut {
		t.Errorf("%v have come up, cut %v; want %v, locked or not", got, cut, all[:4])
	}
	q.Look = 2
	if got, cut := late(q); !slices.Equal(got, all[:2]) || !cut {
		t.Errorf("%v have come up, cut %v; want %v, and more to be said", got, cut, all[:2])
	}
	q = dispatch.Query{Source: dispatch.SourceSweep, After: all[3], Limit: 9, Upto: all[5], Skip: []string{"a1"}, Gaps: q.Gaps, Look: 10}
	if got, _ := late(q); !slices.Equal(got, []int64{all[0], all[2]}) {
		t.Errorf("%v have come up for a sweep that skips a type", got)
	}
	d.settle(other, &dispatch.Settlement{})
}
