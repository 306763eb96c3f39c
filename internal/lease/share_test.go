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
func (p picture) follow(t *rapid.T) (after picture, changes int) {
	after = picture{wants: p.wants, owners: maps.Clone(p.owners)}
	for member := range p.wants {
		take, give := p.as(member).shares()
		if len(take) > 0 && len(give) > 0 && p.sameWants() {
			t.Fatalf("%d gives %v and takes %v", member, give, take)
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

func genPicture(t *rapid.T) picture {
	p := picture{wants: make(map[int64][]int32), owners: make(map[int32]int64)}
	units := rapid.Int32Range(0, 12).Draw(t, "units")
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
// there.
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
			if rounds == 10 {
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
		// No needless moves: a relay that has no more than a share keeps it.
		for unit, owner := range before.owners {
			if p.owners[unit] != owner && start[owner] <= load[owner] {
				t.Fatalf("%d lost %d, having %d units before and %d now", owner, unit, start[owner], load[owner])
			}
		}
	})
}
