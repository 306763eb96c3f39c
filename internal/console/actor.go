package console

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// consoleActor is the name in the audit of a viewer whom no proxy has named.
	consoleActor = "console"
	// maxActor bounds the name of a person, in bytes.
	maxActor = 200
)

// ActorHeader is how a proxy that has authenticated a person names that person. The zero value names no one.
type ActorHeader struct {
	// Name is the name of the request header; "" for none.
	Name string
	// Proxies are the addresses from which the header counts. A request from elsewhere may have been sent by anyone, with
	// any header.
	Proxies []netip.Prefix
}

// of returns the name of the person behind a request, "" if it does not come from a trusted proxy. A name that is missing or
// cannot be used is an error: an action would be recorded under another one.
func (a ActorHeader) of(r *http.Request) (string, error) {
	if a.Name == "" || !a.trusts(r.RemoteAddr) {
		return "", nil
	}

	values := r.Header.Values(a.Name)
	name := strings.TrimSpace(r.Header.Get(a.Name))

	switch {
	case len(values) > 1: // the client has sent one as well
		return "", fmt.Errorf("the request has the header %s %d times: have the proxy replace the header of the client",
			a.Name, len(values))
	case name == "": // a client may have had the proxy drop it, with a header Connection
		return "", fmt.Errorf("the proxy has not named anyone in the header %s", a.Name)
	case len(name) > maxActor:
		return "", fmt.Errorf("the name in the header %s is longer than %d bytes", a.Name, maxActor)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "", errors.New("the name in the header " + a.Name + " has characters that cannot be shown")
	}

	return name, nil
}

// trusts reports whether a connection comes from a proxy whose header counts.
func (a ActorHeader) trusts(remote string) bool {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}

	addr := at.Addr().Unmap().WithZone("")
	for _, p := range a.Proxies {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}
