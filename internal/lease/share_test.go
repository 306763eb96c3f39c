package lease

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// as returns the picture as another member sees it.
func (p picture) as(member int64) picture {
	p.me = member
	return p
}

// follow applies the actions of all members that see p at the same time.
func (p picture) follow(t rapid.TB) (after picture, changes int) {
	after = picture{wants: p.wants, owners: maps.Clone(p.owners), group: p.group}
	for member := range p.wants {
		take, give := p.as(member).shares()
		if p.sameWants() {
			for _, unit := range give {
				if slices.ContainsFunc(take, func(u int32) bool { return p.group[u] == p.group[unit] }) {
					t.Fatalf("%d gives %v and takes %v", member, give, take)
				}
			}
		}
		for _, unit := range take {
			if owner, owned := after.owners[unit]; owned {
				t.Fatalf("%d takes %d, which %d has", member, unit, owner)
			}
			if !p.wantedBy(member, unit) {
				t.Fatalf("%d takes %d, which it does not want", member, unit)
			}
			after.owners[unit] = member
		}
		for _, unit := range give {
			if p.owners[unit] != member {
				t.Fatalf("%d gives %d, which is not its own", member, unit)
			}
			delete(after.owners, unit)
		}
		changes += len(take) + len(give)
	}
	return after, changes
}

func (p picture) sameWants() bool {
	var first []int32
	for _, wants := range p.wants {
		if first == nil {
			first = wants
		}
		if !slices.Equal(first, wants) {
			return false
		}
	}
	return true
}

func (p picture) load() map[int64]int {
	load := make(map[int64]int)
	for _, owner := range p.owners {
		load[owner]++
	}
	return load
}

func (p picture) parts() map[share]int {
	parts := make(map[share]int)
	for unit, owner := range p.owners {
		parts[share{owner, p.group[unit]}]++
	}
	return parts
}

// sharded reports whether a destination has several shards.
func (p picture) sharded() bool {
	for unit, group := range p.group {
		if unit != group {
			return true
		}
	}
	return false
}

func genPicture(t *rapid.T) picture {
	p := picture{wants: make(map[int64][]int32), owners: make(map[int32]int64), group: make(map[int32]int32)}
	units := rapid.Int32Range(0, 12).Draw(t, "units")
	groups := rapid.SampledFrom([]int32{1, 2, 3, 5, units + 1}).Draw(t, "groups")
	for unit := int32(1); unit <= units; unit++ {
		p.group[unit] = unit
		if groups <= units {
			p.group[unit] = rapid.Int32Range(1, groups).Draw(t, "group")
		}
	}
	members := rapid.Int64Range(1, 5).Draw(t, "members")
	same := rapid.Bool().Draw(t, "same wants")
	for m := int64(1); m <= members; m++ {
		p.wants[m] = []int32{}
		for unit := int32(1); unit <= units; unit++ {
			if same || rapid.Bool().Draw(t, "wants") {
				p.wants[m] = append(p.wants[m], unit)
			}
		}
	}
	for unit := int32(1); unit <= units; unit++ {
		// 0 is no relay, and one more than there are members is a relay that stops.
		owner := rapid.Int64Range(0, members+1).Draw(t, "owner")
		if owner > 0 && (owner > members || p.wantedBy(owner, unit)) {
			p.owners[unit] = owner
		}
	}
	return p
}

// TestShares: from any picture, relays that look at the same time reach even shares, and stay
// there. With the same wants the shards of each destination are spread evenly, too.
func TestShares(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := genPicture(t)
		before, start := p, p.load()
		for rounds := 0; ; rounds++ {
			after, changes := p.follow(t)
			if changes == 0 {
				break
			}
			if rounds == 5 {
				t.Fatalf("no rest: %v", p)
			}
			p = after
		}
		if free := p.free(); len(free) > 0 {
			t.Fatalf("nobody has %v", free)
		}
		load := p.load()
		for unit, from := range p.owners {
			for to := range p.wants {
				if p.wants[from] != nil && load[from]-load[to] >= 2 && p.wantedBy(to, unit) {
					t.Fatalf("%d has %d units, and %d has %d and wants %d", from, load[from], to, load[to], unit)
				}
			}
		}
		if !before.sameWants() {
			return
		}
		shares := p.parts()
		for unit, owner := range p.owners {
			for other := range p.wants {
				if more := shares[share{owner, p.group[unit]}] - shares[share{other, p.group[unit]}]; p.wants[owner] != nil && more > 1 {
					t.Fatalf("%d has %d shards of %d more than %d: %v", owner, more, p.group[unit], other, p)
				}
			}
		}
		// No needless moves: a relay that has no more than a share keeps it. With shards it may get others in their place.
		for unit, owner := range before.owners {
			if p.owners[unit] != owner && start[owner] <= load[owner] && !before.sharded() {
				t.Fatalf("%d lost %d, having %d units before and %d now", owner, unit, start[owner], load[owner])
			}
		}
	})
}

// TestShardsSpread: each of four relays has one of four shards, whatever the numbers of the rows are, and whatever they had
// before.
func TestShardsSpread(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		shards []int32
		owners map[int32]int64
	}{
		"the shards are the first rows": {shards: []int32{1, 2, 3, 4}},
		"the shards are the last rows":  {shards: []int32{3, 4, 5, 6}},
		"other rows are between them":   {shards: []int32{1, 3, 4, 6}},
		"one relay has the other rows": {
			shards: []int32{3, 4, 5, 6},
			owners: map[int32]int64{1: 2, 2: 2, 3: 1, 4: 1, 5: 3, 6: 4},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := picture{wants: make(map[int64][]int32), owners: make(map[int32]int64), group: make(map[int32]int32)}
			maps.Copy(p.owners, c.owners)
			for unit := int32(1); unit <= 6; unit++ {
				p.group[unit] = unit
				if slices.Contains(c.shards, unit) {
					p.group[unit] = c.shards[0]
				}
			}
			for member := int64(1); member <= 4; member++ { // one after the other, if they have nothing yet
				p.wants[member] = []int32{1, 2, 3, 4, 5, 6}
				if len(c.owners) > 0 && member < 4 {
					continue
				}
				for round, changes := 0, 1; changes > 0; round++ {
					if round == 5 {
						t.Fatalf("no rest: %v", p)
					}
					p, changes = p.follow(t)
				}
			}
			parts := p.parts()
			for member := range p.wants {
				if n := parts[share{member, c.shards[0]}]; n != 1 {
					t.Errorf("%d has %d shards: %v", member, n, p.owners)
				}
			}
		})
	}
}
