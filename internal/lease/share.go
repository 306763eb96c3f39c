package lease

import (
	"cmp"
	"maps"
	"slices"
)

// view is the distribution of the shards at one moment; an int32 is the number of a shard's position. Relays that read
// at the same time have the same view, and make the same plan without communicating.
type view struct {
	// self is the number of this relay.
	self int64
	// wants has the shards that each member wants, in ascending order. So no shard goes to a member that does not
	// deliver it, while relays of different configurations run next to each other.
	wants map[int64][]int32
	// owners has the member that holds each shard; a free shard has no entry. A stopping owner wants none.
	owners map[int32]int64
	// group has the first shard of each shard's destination.
	group map[int32]int32
}

// shares returns the shards that this relay takes and gives. Wanted free shards go to the member with the fewest. Then
// a member with at least two more shards than another gives one to it, if the other wants one of them. One more shard
// is enough if the giver has at least two more shards of a destination, and gives one of these. Members with equal
// loads exchange shards of different destinations. So members with the same wants differ by 1 at most, in their loads
// and in their shards of each destination. A shard moves only to make them more even.
func (p view) shares() (take, give []int32) {
	for shard, to := range p.plan() {
		owner, owned := p.owners[shard]
		switch {
		case !owned && to == p.self:
			take = append(take, shard)
		case owned && owner == p.self && to != p.self:
			give = append(give, shard)
		}
	}

	slices.Sort(take)
	slices.Sort(give)

	return take, give
}

// load is how many shards members have, in total and of each group.
type load struct {
	all    map[int64]int
	shares map[groupMember]int
}

// groupMember is a member and a group.
type groupMember struct {
	member int64
	group  int32
}

func (l load) add(member int64, group int32, n int) {
	l.all[member] += n
	l.shares[groupMember{member, group}] += n
}

// difference returns how many more shards of a group a has than b.
func (l load) difference(a, b int64, group int32) int {
	return l.shares[groupMember{a, group}] - l.shares[groupMember{b, group}]
}

// plan returns the intended owner of each shard.
func (p view) plan() map[int32]int64 {
	plan := maps.Clone(p.owners)
	if plan == nil {
		plan = make(map[int32]int64)
	}

	l := load{make(map[int64]int), make(map[groupMember]int)}
	for shard, owner := range p.owners {
		l.add(owner, p.group[shard], 1)
	}

	members := slices.Sorted(maps.Keys(p.wants))
	for _, shard := range p.free() {
		to := slices.MinFunc(p.wanting(members, shard), func(a, b int64) int {
			group := p.group[shard]
			return cmp.Or(
				cmp.Compare(l.all[a], l.all[b]),
				cmp.Compare(l.shares[groupMember{a, group}], l.shares[groupMember{b, group}]),
				cmp.Compare(a, b),
			)
		})
		plan[shard] = to
		l.add(to, p.group[shard], 1)
	}

	for p.improve(plan, l, members) {
	}

	p.avoidSwaps(plan)
	return plan
}

// free returns the shards that are wanted and free, in ascending order.
func (p view) free() []int32 {
	var free []int32
	for _, shards := range p.wants {
		for _, shard := range shards {
			if _, owned := p.owners[shard]; !owned {
				free = append(free, shard)
			}
		}
	}

	slices.Sort(free)
	return slices.Compact(free)
}

func (p view) isFree(shard int32) bool {
	_, owned := p.owners[shard]
	return !owned
}

// wanting returns the members that want a shard.
func (p view) wanting(members []int64, shard int32) []int64 {
	return slices.DeleteFunc(slices.Clone(members), func(m int64) bool { return !p.wantedBy(m, shard) })
}

func (p view) wantedBy(member int64, shard int32) bool {
	_, found := slices.BinarySearch(p.wants[member], shard)
	return found
}

// improve moves one shard, or exchanges two, and reports whether it did. A plan needs finitely many steps: each makes
// the sum of the squares of all loads smaller, or keeps that sum and makes the sum of the squares of all shares
// smaller. In tests a plan of n shards takes fewer than n.
func (p view) improve(plan map[int32]int64, l load, members []int64) bool {
	members = slices.SortedFunc(slices.Values(members), func(a, b int64) int {
		return cmp.Or(cmp.Compare(l.all[a], l.all[b]), cmp.Compare(a, b))
	})

	shards := make(map[int64][]int32) // of each member, in descending order
	for _, shard := range slices.Backward(slices.Sorted(maps.Keys(plan))) {
		shards[plan[shard]] = append(shards[plan[shard]], shard)
	}

	move := func(shard int32, to int64) {
		l.add(plan[shard], p.group[shard], -1)
		l.add(to, p.group[shard], 1)
		plan[shard] = to
	}

	for _, from := range slices.Backward(members) {
		for _, to := range members {
			if l.all[from] <= l.all[to] {
				break
			}
			if shard, found := p.move(l, shards[from], from, to); found {
				move(shard, to)
				return true
			}
		}
	}

	for _, a := range slices.Backward(members) {
		for _, b := range members {
			if u, v, found := p.exchange(l, shards, a, b); found {
				move(u, b)
				move(v, a)
				return true
			}
		}
	}

	return false
}

// move returns the shard to move from one member to another with a lower load: a shard of the destination in which they
// differ most. It prefers free shards, which no relay must stop.
func (p view) move(l load, shards []int32, from, to int64) (shard int32, found bool) {
	best := 0
	for _, u := range shards {
		uneven := l.difference(from, to, p.group[u])
		if (l.all[from]-l.all[to] < 2 && uneven < 2) || !p.wantedBy(to, u) {
			continue
		}

		isFreer := p.isFree(u) && !p.isFree(shard)
		isBetter := uneven > best || uneven == best && isFreer
		if !found || isBetter {
			shard = u
			best = uneven
			found = true
		}
	}

	return shard, found
}

// exchange returns two shards to exchange: one of a, which has at least two more shards of its destination than b, and
// one of b. Members with the same wants, equal loads and such a difference always have such a pair.
func (p view) exchange(l load, shards map[int64][]int32, a, b int64) (u, v int32, found bool) {
	best := 2
	for _, x := range shards[a] {
		uneven := l.difference(a, b, p.group[x])
		if uneven < 2 || !p.wantedBy(b, x) {
			continue
		}

		for _, y := range shards[b] {
			gain := uneven + l.difference(b, a, p.group[y])
			if gain > best && p.group[x] != p.group[y] && p.wantedBy(a, y) {
				u = x
				v = y
				best = gain
				found = true
			}
		}
	}

	return u, v, found
}

// avoidSwaps changes a plan in which a member gives a shard and takes another one of the same destination: the member
// keeps the first, and the second goes to its intended owner.
func (p view) avoidSwaps(plan map[int32]int64) {
	shards := slices.Sorted(maps.Keys(plan))
	for _, shard := range shards {
		owner := p.owners[shard]
		to := plan[shard]
		if p.isFree(shard) || owner == to {
			continue
		}

		for _, other := range shards {
			fits := plan[other] == owner && p.group[other] == p.group[shard]
			comes := p.isFree(other) || p.owners[other] != owner
			if fits && comes && p.wantedBy(to, other) {
				plan[shard] = owner
				plan[other] = to
				break
			}
		}
	}
}
