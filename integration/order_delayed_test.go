package integration

import "testing"

// checkDelayed checks events that were written after a delayed event of their
// aggregate had begun at a destination: they had to wait there until the delayed
// one was done. A relay that stops or loses a claim gives up the place of a
// delayed event, so this is for tests in which none does.
func (o *orderObserver) checkDelayed(t *testing.T, e *env) {
	t.Helper()
	events := e.committed()
	_, of := orderLines(events)
	behind := make(map[string][]committed) // the events of an aggregate
	for _, c := range events {
		behind[c.aggregate] = append(behind[c.aggregate], c)
	}
	type place struct{ from, to sight }
	places, first := make(map[orderRef]*place), make(map[orderRef]sight)
	for _, s := range o.sights {
		r := orderRef{s.dest, s.id}
		p, begun := places[r], first[r].what != ""
		switch {
		case s.what == "begin" && !begun:
			first[r] = s
			if c := of[s.id]; c.delayed && c.aggregate != "" {
				places[r] = &place{from: s}
			}
		case s.what == "begin" || p == nil || p.to.what != "":
		case s.what == "dead" && o.dests[s.dest].blocks: // it ends when it is replayed and accepted, or discarded
		default:
			p.to = s
		}
	}
	waited, wrong := 0, 0
	for r, p := range places {
		for _, c := range behind[of[r.id].aggregate] {
			s := first[orderRef{r.dest, c.id}]
			if c.id <= r.id || s.what == "" || !c.written.After(o.begin.Add(p.from.at)) || c.written.After(o.begin.Add(p.to.at)) {
				continue
			}
			waited++
			if s.at >= p.to.at {
				continue
			}
			if wrong++; wrong <= 5 {
				t.Errorf("%s of relay %s began with %d of %s at %v, before %d was done with, which was delayed and had begun; its sights of both:\n%s",
					r.dest, s.relay, c.id, c.aggregate, s.at, r.id, o.history(r.dest, len(o.sights), r.id, c.id))
			}
		}
	}
	t.Logf("%d delayed deliveries of aggregates, %d others came up while they were under way, %d of these began too early", len(places), waited, wrong)
}
