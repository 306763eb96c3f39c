package webhook

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// guard checks the address of each connection just before it is made. The name is
// resolved by then, so a name that resolves differently the second time gains
// nothing.
type guard struct {
	allowed []netip.Prefix
	special []netip.Prefix
}

// newGuard returns a guard that lets public addresses through, and allowed.
func newGuard(allowed []netip.Prefix) *guard {
	g := &guard{allowed: allowed}
	for _, s := range []string{
		// Ranges that the IANA registries of special-purpose addresses do not call
		// globally reachable, multicast, and the future use of class E.
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		// Public by the registries, but local to the network of a machine: Azure's
		// wire server, which hands out secrets. The metadata addresses of other clouds are
		// in the ranges above (169.254.169.254, 100.100.100.200, 192.0.0.192) or outside of
		// 2000::/3 (fd00:ec2::254, fd20:ce::254).
		"168.63.129.16/32",
		// Within 2000::/3: protocol assignments (Teredo among them, which holds
		// an IPv4 address), documentation, and 6to4, which holds one as well.
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	} {
		g.special = append(g.special, netip.MustParsePrefix(s))
	}

	return g
}

// control is the ControlContext of a net.Dialer.
func (g *guard) control(_ context.Context, network, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !g.admits(at.Addr()) {
		return &blockedError{network: network, address: address}
	}
	return nil
}

// admits reports whether an address may be connected to.
func (g *guard) admits(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	contains := func(p netip.Prefix) bool { return p.Contains(addr) }

	switch {
	case slices.ContainsFunc(g.allowed, contains):
		return true
	case slices.ContainsFunc(g.special, contains):
		return false
	case addr.Is4():
		return true
	}

	// A host behind NAT64 reaches IPv4 by this prefix (RFC 6052). The address is
	// as public as the one that it holds.
	if netip.MustParsePrefix("64:ff9b::/96").Contains(addr) {
		b := addr.As16()
		return g.admits(netip.AddrFrom4([4]byte(b[12:])))
	}

	// All else that is public is in the one block of global unicast: loopback,
	// link-local, unique local, multicast and the unspecified address are not.
	return netip.MustParsePrefix("2000::/3").Contains(addr)
}

// blockedError is the error of a connection that the guard refused.
type blockedError struct{ network, address string }

// Error names the address and the setting that lets it through.
func (e *blockedError) Error() string {
	return fmt.Sprintf("%s is not a public address: allow_addresses would let it through", e.address)
}
