package store

import (
	"maps"
	"slices"
	"sync"
)

// RoleConns counts the connections of a relay in one role.
type RoleConns struct {
	// Role is the part of application_name after notifyd/, such as claim, lease or listen.
	Role string
	// Open counts the open connections, and Opened all connections opened so far.
	Open   int
	Opened uint64
}

// openConns counts connections. A connection reports its own end, not the code that closes it. The zero value has no
// connections.
type openConns struct {
	mu     sync.Mutex
	gone   map[string][]<-chan struct{} // by role; closed with the connection
	opened map[string]uint64
}

func (o *openConns) add(role string, gone <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()

	if o.gone == nil {
		o.gone = make(map[string][]<-chan struct{})
		o.opened = make(map[string]uint64)
	}

	o.opened[role]++
	o.gone[role] = append(o.liveLocked(role), gone)
}

// liveLocked drops the closed connections of a role.
func (o *openConns) liveLocked(role string) []<-chan struct{} {
	return slices.DeleteFunc(o.gone[role], func(gone <-chan struct{}) bool {
		select {
		case <-gone:
			return true
		default:
			return false
		}
	})
}

// Conns returns the connections that c has opened, sorted by role.
func (c *Connector) Conns() (all []RoleConns) {
	o := &c.opens
	o.mu.Lock()
	defer o.mu.Unlock()

	for _, role := range slices.Sorted(maps.Keys(o.gone)) {
		o.gone[role] = o.liveLocked(role)
		all = append(all, RoleConns{Role: role, Open: len(o.gone[role]), Opened: o.opened[role]})
	}

	return all
}
