package lease

import (
	"cmp"
	"maps"
	"slices"
)

// picture is the distribution of the units at one moment, each the number of a shard's row. Relays
// that look at the same time see the same picture, and make the same plan without communicating.
type picture struct {
	// me is the number of this relay.
	me int64
	// wants has the units that each member wants, in ascending order. So a unit is never given to a
	// member that does not deliver it, while relays of different configurations run next to each
	// other.
	wants map[int64][]int32
	// owners has the member that holds each unit; a free unit has no entry. An owner that stops wants
	// none.
	owners map[int32]int64
}

// shares returns the units that this relay takes and gives. Wanted free units go to the member with
// the fewest. Then a member with at least two more units than another gives one to it, if the other
// wants one of them. So the loads of members with the same wants differ by 1 at most, and no unit
// moves without making them more even.
func (p picture) shares() (take, give []int32) {
	for unit, to := range p.plan() {
		owner, owned := p.owners[unit]
		switch {
		case !owned && to == p.me:
			take = append(take, unit)
		case owned && owner == p.me && to != p.me:
			give = append(give, unit)
		}
	}
	slices.Sort(take)
	slices.Sort(give)
	return take, give
}

// plan returns the intended owner of each unit.
func (p picture) plan() map[int32]int64 {
	plan := maps.Clone(p.owners)
	if plan == nil {
		plan = make(map[int32]int64)
	}
	load := make(map[int64]int)
	for _, owner := range p.owners {
		load[owner]++
	}
	members := slices.Sorted(maps.Keys(p.wants))
	least := func(a, b int64) int { return cmp.Or(cmp.Compare(load[a], load[b]), cmp.Compare(a, b)) }
	for _, unit := range p.free() {
		to := slices.MinFunc(p.wanting(members, unit), least)
		plan[unit] = to
		load[to]++
	}
	for range len(plan) * len(plan) { // each move makes the sum of the squares smaller: it ends long before
		unit, to, found := p.move(plan, load, slices.SortedFunc(slices.Values(members), least))
		if !found {
			break
		}
		load[plan[unit]]--
		load[to]++
		plan[unit] = to
	}
	return plan
}

// free returns the units that are wanted and free, in ascending order.
func (p picture) free() []int32 {
	var free []int32
	for _, units := range p.wants {
		for _, unit := range units {
			if _, owned := p.owners[unit]; !owned {
				free = append(free, unit)
			}
		}
	}
	slices.Sort(free)
	return slices.Compact(free)
}

// wanting returns the members that want a unit.
func (p picture) wanting(members []int64, unit int32) []int64 {
	return slices.DeleteFunc(slices.Clone(members), func(m int64) bool { return !p.wantedBy(m, unit) })
}

func (p picture) wantedBy(member int64, unit int32) bool {
	_, found := slices.BinarySearch(p.wants[member], unit)
	return found
}

// move returns the next unit to move, from the member with the most to the one with the fewest.
// members are in the order of their loads.
func (p picture) move(plan map[int32]int64, load map[int64]int, members []int64) (unit int32, to int64, found bool) {
	units := slices.Sorted(maps.Keys(plan))
	for _, from := range slices.Backward(members) {
		for _, to := range members {
			if load[from]-load[to] < 2 {
				break
			}
			for _, unit := range slices.Backward(units) {
				if plan[unit] == from && p.wantedBy(to, unit) {
					return unit, to, true
				}
			}
		}
	}
	return 0, 0, false
}
