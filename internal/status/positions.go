package status

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/notifyd/notifyd/observe"
)

// positions returns a line for each position of a stream.
func (s *Status) positions() grid {
	g := grid{
		head:   []string{"position", "head", "lag", "open", "blocked", "oldest", "purge", "session"},
		left:   1,
		narrow: []string{"purge", "blocked", "open"},
	}

	for i := range s.Backlog.Positions {
		at := &s.Backlog.Positions[i]
		oldest := "-"
		if at.Oldest != nil {
			oldest = ago(at.Oldest.Age)
		}
		owner := "none"
		if at.Session != nil {
			owner = at.Session.String()
		}
		blocked := s.Backlog.Destination(at.Destination).Blocked

		g.row(plain, at.Name(),
			strconv.FormatInt(at.Head, 10), strconv.FormatInt(at.Lag, 10), strconv.FormatInt(at.Open, 10),
			blocked.String(), oldest, holding(at), owner)
	}
	return g
}

// holding names the part of a position that holds back a purge: the position or its replay.
func holding(p *observe.Position) string {
	switch {
	case p.HoldsBack:
		return "held"
	case p.Replay != nil && p.Replay.HoldsBack:
		return fmt.Sprintf("replay %d", p.Replay.ID)
	}
	return "-"
}

// replays returns a line for each replay that runs.
func (s *Status) replays() grid {
	g := grid{head: []string{"replay of", "number", "ids left", "delivered", "failed", "skipped", "rate"}, left: 1}
	for i := range s.Backlog.Positions {
		r := s.Backlog.Positions[i].Replay
		if r == nil {
			continue
		}

		rate := "-"
		if r.Rate > 0 {
			rate = fmt.Sprintf("%g/s", r.Rate)
		}
		g.row(plain, r.Destination,
			strconv.FormatInt(r.ID, 10), strconv.FormatInt(r.Remaining, 10), strconv.FormatInt(r.Delivered, 10),
			strconv.FormatInt(r.Failed, 10), strconv.FormatInt(r.Skipped, 10), rate)
	}
	return g
}

// hasPosition reports whether the stream has a position of the destination.
func (s *Status) hasPosition(name string) bool {
	return slices.ContainsFunc(s.Backlog.Positions, func(p observe.Position) bool { return p.Destination == name })
}

// positionsAttention lists the positions that no relay moves.
func (s *Status) positionsAttention() (all list) {
	for i := range s.Backlog.Positions {
		p := &s.Backlog.Positions[i]
		if p.OtherRelays > 0 && p.Shard == 0 {
			all.add(Warning, KindPosition, p.Destination,
				"reload or stop the relays whose configuration is the former one: "+
					"the list of relays says since when each has its own",
				"Relays wait for %s: %d. They are configured with another number of shards, or with other routes, "+
					"than those that deliver to it.", p.Destination, p.OtherRelays)
		}
		if p.Ranges > observe.ManyRanges {
			all.add(Warning, KindPosition, p.Destination, p.RangesCure(), "%s", p.RangesText(p.Name()))
		}
		if p.Unhanded {
			all.add(Warning, KindPosition, p.Destination, "wait; if it lasts, notifyd doctor",
				"%s waits for the events that had no route before: the search for them has not read as far yet.", p.Name())
		}

		if p.Session != nil {
			continue
		}

		d := s.Backlog.Destination(p.Destination)
		switch {
		case p.Destination != "" && !s.configured(p.Destination):
			stored := ""
			if rows := d.Retry.Plus(d.Parked); rows.N > 0 {
				stored = "; " + wait(rows) + " beside it"
			}
			all.add(Warning, KindPosition, p.Destination,
				fmt.Sprintf("put it back, or notifyd positions forget %q", p.Destination),
				"%s, and its position keeps the events above %d from being purged%s.",
				s.lacks(p.Destination), p.Lowest, stored)
		case len(s.Relays) > 0 && !s.Relay.isCutOff():
			all.add(Error, KindPosition, p.Destination,
				"notifyd run, with a configuration that has it; notifyd doctor, if one runs",
				"No relay delivers %s: its shard has no owner.", p.Name())
		}
	}
	return all
}
