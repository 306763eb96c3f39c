package lease

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// as returns the picture as another member sees it.
func (p view) as(member int64) view {
	p.self = member
	return p
}

// follow applies the actions of all members that see p at the same time.
func (p view) follow(t rapid.TB) (after view, changes int) {
	after = view{wants: p.wants, owners: maps.Clone(p.owners), group: p.group}
	for member := range p.wants {
		take, give := p.as(member).shares()
		if p.sameWants() {
			for _, shard := range give {
				if slices.ContainsFunc(take, func(u int32) bool { return p.group[u] == p.group[shard] }) {
					t.Fatalf("%d gives %v and takes %v", member, give, take)
				}
			}
		}
		for _, shard := range take {
			if owner, owned := after.owners[shard]; owned {
				t.Fatalf("%d takes %d, which %d has", member, shard, owner)
			}
			if !p.wantedBy(member, shard) {
				t.Fatalf("%d takes %d, which it does not want", member, shard)
			}
			after.owners[shard] = member
		}
		for _, shard := range give {
			if p.owners[shard] != member {
				t.Fatalf("%d gives %d, which is not its own", member, shard)
			}
			delete(after.owners, shard)
		}
		changes += len(take) + len(give)
	}
	return after, changes
}

func (p view) sameWants() bool {
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

func (p view) load() map[int64]int {
	load := make(map[int64]int)
	for _, owner := range p.owners {
		load[owner]++
	}
	return load
}

func (p view) parts() map[groupMember]int {
	parts := make(map[groupMember]int)
	for shard, owner := range p.owners {
		parts[groupMember{owner, p.group[shard]}]++
	}
	return parts
}

// sharded reports whether a destination has several shards.
func (p view) sharded() bool {
	for shard, group := range p.group {
		if shard != group {
			return true
		}
	}
	return false
}

func genPicture(t *rapid.T) view {
	p := view{wants: make(map[int64][]int32), owners: make(map[int32]int64), group: make(map[int32]int32)}
	count := rapid.Int32Range(0, 12).Draw(t, "shards")
	groups := rapid.SampledFrom([]int32{1, 2, 3, 5, count + 1}).Draw(t, "groups")
	for id := int32(1); id <= count; id++ {
		p.group[id] = id
		if groups <= count {
			p.group[id] = rapid.Int32Range(1, groups).Draw(t, "group")
		}
	}
	members := rapid.Int64Range(1, 5).Draw(t, "members")
	same := rapid.Bool().Draw(t, "same wants")
	for m := int64(1); m <= members; m++ {
		p.wants[m] = []int32{}
		for id := int32(1); id <= count; id++ {
			if same || rapid.Bool().Draw(t, "wants") {
				p.wants[m] = append(p.wants[m], id)
			}
		}
	}
	for id := int32(1); id <= count; id++ {
		// 0 adds no relay; one more than the number of members stops a relay.
		owner := rapid.Int64Range(0, members+1).Draw(t, "owner")
		if owner > 0 && (owner > members || p.wantedBy(owner, id)) {
			p.owners[id] = owner
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
		for id, from := range p.owners {
			for to := range p.wants {
				if p.wants[from] != nil && load[from]-load[to] >= 2 && p.wantedBy(to, id) {
					t.Fatalf("%d has %d shards, and %d has %d and wants %d", from, load[from], to, load[to], id)
				}
			}
		}
		if !before.sameWants() {
			return
		}
		shares := p.parts()
		for id, owner := range p.owners {
			for other := range p.wants {
				if more := shares[groupMember{owner, p.group[id]}] - shares[groupMember{other, p.group[id]}]; p.wants[owner] != nil && more > 1 {
					t.Fatalf("%d has %d shards of %d more than %d: %v", owner, more, p.group[id], other, p)
				}
			}
		}
		// No needless moves: a relay that has no more than a share keeps it. With shards it may get others in their place.
		for id, owner := range before.owners {
			if p.owners[id] != owner && start[owner] <= load[owner] && !before.sharded() {
				t.Fatalf("%d lost %d, having %d shards before and %d now", owner, id, start[owner], load[owner])
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
			p := view{wants: make(map[int64][]int32), owners: make(map[int32]int64), group: make(map[int32]int32)}
			maps.Copy(p.owners, c.owners)
			for id := int32(1); id <= 6; id++ {
				p.group[id] = id
				if slices.Contains(c.shards, id) {
					p.group[id] = c.shards[0]
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
				if n := parts[groupMember{member, c.shards[0]}]; n != 1 {
					t.Errorf("%d has %d shards: %v", member, n, p.owners)
				}
			}
		})
	}
}
