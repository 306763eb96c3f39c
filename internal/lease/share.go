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
	// group has the first shard of each unit's destination.
	group map[int32]int32
}

// shares returns the units that this relay takes and gives. Wanted free units go to the member with
// the fewest. Then a member with at least two more units than another gives one to it, if the other
// wants one of them. One more unit is enough if the giver has at least two more shards of a destination,
// and gives one of these. Members with equal loads exchange a shard for another unit. So members with
// the same wants differ by 1 at most, in their loads and in their shards of each destination. No unit
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

// load is how many units members have, and how many shards of each group.
type load struct {
	all    map[int64]int
	shares map[share]int
}

// share is a member's part of a group.
type share struct {
	member int64
	group  int32
}

func (l load) add(member int64, group int32, n int) {
	l.all[member] += n
	l.shares[share{member, group}] += n
}

// uneven returns how many more shards of a group a has than b.
func (l load) uneven(a, b int64, group int32) int {
	return l.shares[share{a, group}] - l.shares[share{b, group}]
}

// plan returns the intended owner of each unit.
func (p picture) plan() map[int32]int64 {
	plan := maps.Clone(p.owners)
	if plan == nil {
		plan = make(map[int32]int64)
	}
	l := load{make(map[int64]int), make(map[share]int)}
	for unit, owner := range p.owners {
		l.add(owner, p.group[unit], 1)
	}
	members := slices.Sorted(maps.Keys(p.wants))
	for _, unit := range p.free() {
		to := slices.MinFunc(p.wanting(members, unit), func(a, b int64) int {
			group := p.group[unit]
			return cmp.Or(cmp.Compare(l.all[a], l.all[b]), cmp.Compare(l.shares[share{a, group}], l.shares[share{b, group}]), cmp.Compare(a, b))
		})
		plan[unit] = to
		l.add(to, p.group[unit], 1)
	}
	for p.improve(plan, l, members) {
	}
	p.keep(plan)
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

func (p picture) isFree(unit int32) bool {
	_, owned := p.owners[unit]
	return !owned
}

// wanting returns the members that want a unit.
func (p picture) wanting(members []int64, unit int32) []int64 {
	return slices.DeleteFunc(slices.Clone(members), func(m int64) bool { return !p.wantedBy(m, unit) })
}

func (p picture) wantedBy(member int64, unit int32) bool {
	_, found := slices.BinarySearch(p.wants[member], unit)
	return found
}

// improve moves one unit, or exchanges two, and reports whether it did. A plan needs finitely many
// steps: each makes the sum of the squares of all loads smaller, or keeps that and makes the sum of the
// squares of all shares smaller. In tests a plan of n units takes fewer than n.
func (p picture) improve(plan map[int32]int64, l load, members []int64) bool {
	members = slices.SortedFunc(slices.Values(members), func(a, b int64) int { return cmp.Or(cmp.Compare(l.all[a], l.all[b]), cmp.Compare(a, b)) })
	units := make(map[int64][]int32) // of each member, in descending order
	for _, unit := range slices.Backward(slices.Sorted(maps.Keys(plan))) {
		units[plan[unit]] = append(units[plan[unit]], unit)
	}
	move := func(unit int32, to int64) {
		l.add(plan[unit], p.group[unit], -1)
		l.add(to, p.group[unit], 1)
		plan[unit] = to
	}
	for _, from := range slices.Backward(members) {
		for _, to := range members {
			if l.all[from] <= l.all[to] {
				break
			}
			if unit, found := p.move(l, units[from], from, to); found {
				move(unit, to)
				return true
			}
		}
	}
	for _, a := range slices.Backward(members) {
		for _, b := range members {
			if u, v, found := p.exchange(l, units, a, b); found {
				move(u, b)
				move(v, a)
				return true
			}
		}
	}
	return false
}

// move returns the unit to move from one member to another with a lower load: a shard of the
// destination in which they differ most. It prefers free units, which no relay has to stop.
func (p picture) move(l load, units []int32, from, to int64) (unit int32, found bool) {
	best := 0
	for _, u := range units {
		uneven := l.uneven(from, to, p.group[u])
		if (l.all[from]-l.all[to] < 2 && uneven < 2) || !p.wantedBy(to, u) {
			continue
		}
		if !found || uneven > best || uneven == best && p.isFree(u) && !p.isFree(unit) {
			unit, best, found = u, uneven, true
		}
	}
	return unit, found
}

// exchange returns a unit of a, which has at least two more shards of its destination than b, and a
// unit of b that a takes for it. Members with the same wants, equal loads and such a difference always
// have one.
func (p picture) exchange(l load, units map[int64][]int32, a, b int64) (u, v int32, found bool) {
	best := 2
	for _, x := range units[a] {
		uneven := l.uneven(a, b, p.group[x])
		if uneven < 2 || !p.wantedBy(b, x) {
			continue
		}
		for _, y := range units[b] {
			gain := uneven + l.uneven(b, a, p.group[y])
			if gain > best && p.group[x] != p.group[y] && p.wantedBy(a, y) {
				u, v, best, found = x, y, gain, true
			}
		}
	}
	return u, v, found
}

// keep changes a plan in which a member gives a shard and takes another one of the same destination:
// the member keeps the first, and the second goes to its intended owner.
func (p picture) keep(plan map[int32]int64) {
	units := slices.Sorted(maps.Keys(plan))
	for _, unit := range units {
		owner, to := p.owners[unit], plan[unit]
		if p.isFree(unit) || owner == to {
			continue
		}
		for _, other := range units {
			if plan[other] == owner && p.group[other] == p.group[unit] && (p.isFree(other) || p.owners[other] != owner) && p.wantedBy(to, other) {
				plan[unit], plan[other] = owner, to
				break
			}
		}
	}
}
