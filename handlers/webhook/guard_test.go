package webhook

import (
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

func TestGuard(t *testing.T) {
	t.Parallel()
	g := newGuard([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/32")})
	for _, s := range []string{
		"8.8.8.8", "1.1.1.1", "168.63.129.15", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.167.1.1", "198.17.0.1", "223.255.255.255",
		"2606:4700::1111", "2a00:1450::1", "2001:4860:4860::8888", "2003::1",
		"::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
		"10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00:1::5",
	} {
		if !g.admits(netip.MustParseAddr(s)) {
			t.Errorf("%s is refused", s)
		}
	}
	for _, s := range []string{
		"127.0.0.1", "127.255.0.1", "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.2.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
		"169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.9",
		"168.63.129.16", "::ffff:168.63.129.16", "64:ff9b::168.63.129.16", "fd20:ce::254", "fd00:42::42",
		"224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "192.88.99.1",
		"::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1",
		"fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "fd00:2::1", "ff02::1", "100::1",
		"64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::8.8.8.8", "2002:7f00:1::", "2002:808:808::1", "2001::1", "2001:db8::1", "3fff::1", "5f00::1",
		"4000::1",
	} {
		if g.admits(netip.MustParseAddr(s)) {
			t.Errorf("%s is let through", s)
		}
	}
}

// TestGuardStandsAtTheConnection: names and literals alike end up there.
func TestGuardStandsAtTheConnection(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, nil)
	port := r.addr[strings.LastIndexByte(r.addr, ':'):]
	payload := func(host string) string { return `{"url":"http://` + host + port + `/hook"}` }
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0", "127.1", "2130706433", "0x7f.1"} {
		err := deliver(t, Config{URL: "{{ .Payload.url }}", DynamicHost: true, ProxyURL: none}, event(payload(host)))
		if err == nil {
			t.Errorf("%s is let through", host)
			continue
		}
		if _, ok := errors.AsType[*blockedError](err); ok {
			if verdictOn(err) != "permanent" || !strings.Contains(err.Error(), "is not a public address") {
				t.Errorf("%s: %s: %v", host, verdictOn(err), err)
			}
		} else if strings.HasPrefix(host, "127.0") || host == "localhost" {
			t.Errorf("%s: %v, want it blocked", host, err)
		}
	}
	if n := len(r.all()); n != 0 {
		t.Fatalf("%d requests came through", n)
	}
	// A redirect to a private address leads nowhere, since none is followed; and
	// what is allowed gets through.
	allowed := Config{URL: "{{ .Payload.url }}", DynamicHost: true, ProxyURL: none, AllowAddresses: []string{"127.0.0.1"}}
	if err := deliver(t, allowed, event(payload("127.0.0.1"))); err != nil {
		t.Error(err)
	}
	r.answer = http.RedirectHandler("http://127.0.0.1"+port+"/other", http.StatusTemporaryRedirect).ServeHTTP
	if err := deliver(t, allowed, event(payload("127.0.0.1"))); verdictOn(err) != "retry" || len(r.all()) != 2 {
		t.Errorf("%s after %d requests: %v", verdictOn(err), len(r.all()), err)
	}
	// A host in the configuration is guarded if that is asked for.
	err := deliver(t, Config{URL: "http://localhost" + port + "/", Addresses: AddressesPublic, ProxyURL: none}, event(ada))
	if verdictOn(err) != "unavailable" || !strings.Contains(err.Error(), "allow_addresses would let it through") {
		t.Errorf("%s: %v", verdictOn(err), err)
	}
}
