package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/laneconf"
)

// validate checks the rules that the types and tags of the common settings cannot express.
func (c *Config) validate() error {
	return errors.Join(
		checkURL("database.url", c.Database.URL),
		checkURL("database.listen_url", c.Database.ListenURL),
		checkSchema("database.schema", c.Database.Schema),
		c.Database.checkIdentity(),
		field.Under("relay", c.Relay.Validate()),
		positive("alerts.every", c.Alerts.Every),
		checkListen("admin.listen", c.Admin.Listen),
		c.Admin.validate(),
	)
}

// checkListen requires host:port; the host may be empty, which means every address.
func checkListen(path, address string) error {
	if address == "" {
		return nil
	}

	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return field.Errorf(path, "must be an address and a port, such as 127.0.0.1:9470")
	}

	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return field.Errorf(path, "the port must be a number from 0 to 65535")
	}
	return nil
}

func (a Admin) validate() error {
	var errs []error
	if a.TLS.CertFile != "" && a.TLS.KeyFile == "" {
		errs = append(errs, field.Errorf("admin.tls.key_file", "missing: cert_file needs the key that belongs to it"))
	}
	if a.TLS.CertFile == "" && a.TLS.KeyFile != "" {
		errs = append(errs, field.Errorf("admin.tls.cert_file", "missing: key_file needs its certificate"))
	}

	errs = append(errs, admin.CheckPrefix("admin.prefix", a.Prefix),
		admin.CheckToken("admin.token", a.Token), admin.CheckToken("admin.read_only_token", a.ReadOnlyToken))

	if a.Pprof && a.Token.IsZero() && !a.Local() {
		errs = append(errs, field.Errorf("admin.pprof", "profiles show memory, and admin.listen is reachable from other machines: "+
			"set admin.token, or listen on 127.0.0.1"))
	}

	return errors.Join(append(errs, a.checkConsole(), a.checkReadOnlyToken(), a.checkActor())...)
}

// checkReadOnlyToken refuses a token without effect: one without the other token would be no restriction.
func (a Admin) checkReadOnlyToken() error {
	const path = "admin.read_only_token"
	switch {
	case a.ReadOnlyToken.IsZero():
		return nil
	case a.Token.IsZero():
		return field.Errorf(path, "needs admin.token: without it every client of the console may act")
	case a.ReadOnlyToken.Reveal() == a.Token.Reveal():
		return field.Errorf(path, "is admin.token, whose logins may act: create another one with `openssl rand -hex 32`")
	case !a.Console:
		return field.Errorf(path, "has no effect without admin.console")
	}
	return nil
}

// checkActor checks the header that names the actor, and the proxies that may set it.
func (a Admin) checkActor() error {
	const path = "admin.actor_header"
	wrong := admin.CheckActorHeader(path, a.ActorHeader)
	switch {
	case a.ActorHeader == "" && len(a.TrustedProxies) == 0:
		return nil
	case a.ActorHeader == "":
		return field.Errorf("admin.trusted_proxies", "has no effect without admin.actor_header, such as X-Forwarded-User")
	case wrong != nil:
		return wrong
	case !a.Console:
		return field.Errorf(path, "has no effect without admin.console")
	case len(a.TrustedProxies) == 0:
		return field.Errorf(path, "needs admin.trusted_proxies: any client may send the header")
	}

	var errs []error
	for i, text := range a.TrustedProxies {
		if _, err := parseProxy(text); err != nil {
			errs = append(errs, field.Errorf(fmt.Sprintf("admin.trusted_proxies.%d", i), "%w", err))
		}
	}
	return errors.Join(errs...)
}

// Proxies are the networks of TrustedProxies.
func (a Admin) Proxies() (all []netip.Prefix) {
	for _, text := range a.TrustedProxies {
		if p, err := parseProxy(text); err == nil { // validate has reported the others
			all = append(all, p)
		}
	}
	return all
}

// parseProxy reads an address or a network.
func parseProxy(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}

	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, errors.New("must be an address or a network, such as 127.0.0.1 or 10.1.0.0/16")
	}
	return p.Masked(), admin.CheckProxy(p)
}

// checkConsole keeps a console without a token on this machine.
func (a Admin) checkConsole() error {
	_, _, found := strings.Cut(a.Listen, ":") // otherwise checkListen has reported the mistake
	switch {
	case !a.Console:
		return nil
	case a.Listen == "":
		return field.Errorf("admin.console", "needs an address: set admin.listen, such as 127.0.0.1:9470")
	case !found, !a.Token.IsZero(), a.Local():
		return nil
	}

	return field.Errorf("admin.console", "would admit everybody who reaches admin.listen: "+
		"set admin.token, or listen on a loopback address, such as 127.0.0.1:9470")
}

// Local reports whether only this machine reaches the server.
func (a Admin) Local() bool {
	host, _, err := net.SplitHostPort(a.Listen)
	ip := net.ParseIP(host)
	isLoopback := host == "localhost" || ip != nil && ip.IsLoopback()
	return err == nil && isLoopback
}

func (l Lane) validateLane() error {
	return errors.Join(laneconf.Validate(l.Lane), l.checkStart(), l.checkKey())
}

func (l Lane) checkStart() error {
	if _, err := engine.ParseStart(l.StartFrom); err != nil {
		return field.Errorf("start_from", "%q: %w", l.StartFrom, err)
	}
	return nil
}

func positive(path string, d time.Duration) error {
	if d > 0 {
		return nil
	}
	return field.Errorf(path, "must be longer than 0")
}

// checkSchema applies PostgreSQL's limits on names.
func checkSchema(path, name string) error {
	const longest = 63
	switch {
	case name == "":
		return field.Errorf(path, "must not be empty: the default is public")
	case len(name) > longest:
		return field.Errorf(path, "PostgreSQL names have at most %d bytes", longest)
	case strings.ContainsRune(name, 0):
		return field.Errorf(path, "must not contain a zero byte")
	default:
		return nil
	}
}

// checkURL finds text that is plainly not a connection string. The error does not
// repeat the text: all of it may be a secret.
func checkURL(path string, s handlers.Secret) error {
	text := s.Reveal()
	scheme, _, isURL := strings.Cut(text, "://")
	switch {
	case text == "":
		return nil
	case !isURL && strings.Contains(text, "="):
		return nil // libpq's other form: host=... dbname=...
	case !isURL || scheme != "postgres" && scheme != "postgresql":
		return field.Errorf(path, "not a PostgreSQL connection string: write postgres://user:password@host:5432/database")
	}

	// Not url.Parse: PostgreSQL accepts more, several hosts or %2F in one.
	if _, err := url.PathUnescape(text); err != nil {
		return field.Errorf(path, "not a valid URL: "+
			"write a percent sign as %%25, and other special characters of the password likewise")
	}
	return nil
}
