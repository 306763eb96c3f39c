package webhook

import (
	"errors"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/handlers/internal/target"
	"github.com/notifyd/notifyd/handlers/internal/tlsconf"
	"github.com/notifyd/notifyd/internal/field"
)

// Validate returns all mistakes at once, joined, each as a [*handlers.FieldError] with its
// cure. It reads no files and not the environment: [New] does.
func (c Config) Validate() error {
	_, err := parseTarget(c)
	_, content := c.headerTemplates()
	_, secrets := parseSecrets(c.SigningSecrets)
	return errors.Join(err, c.words(), content, c.content(), message.Validate(c.message()), c.batch(), secrets, c.credentials(),
		tlsconf.Check(&c.TLS), c.network(), c.limits())
}

func (c Config) words() error {
	return errors.Join(
		field.Word("method", c.Method, http.MethodPost, http.MethodPut, http.MethodPatch),
		field.Word("addresses", c.Addresses, AddressesAny, AddressesPublic),
		field.Word("batch_format", c.BatchFormat, BatchCloudEvents, BatchNDJSON),
	)
}

func (c Config) content() error {
	var errs []error
	if strings.ContainsFunc(c.IDPrefix, func(r rune) bool { return !plainInID(r) }) || len(c.IDPrefix) > maxIDPrefix {
		errs = append(errs, field.Errorf("id_prefix", "must be at most %d letters, digits, - and _", maxIDPrefix))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		if cure := reservedHeader(name); cure != "" {
			errs = append(errs, field.Errorf("headers."+name, "%s", cure))
		}
	}
	return errors.Join(append(errs, c.eventHeaders())...)
}

// eventHeaders returns the mistakes in the names of the event's headers.
func (c Config) eventHeaders() error {
	var errs []error
	seen := make(map[string]bool)
	for name := range c.Headers {
		seen[folded(name)] = true
	}

	for i, name := range c.EventHeaders {
		at := "event_headers." + strconv.Itoa(i)
		others := []string{"user-agent", "content-encoding", "cookie"}
		isOwn := message.IsOwn(folded(name)) || slices.Contains(others, folded(name))

		switch cure := reservedHeader(name); {
		case cure != "":
			errs = append(errs, field.Errorf(at, "%s", cure))
		case isOwn:
			errs = append(errs, field.Errorf(at, "is of notifyd, or about the body or the credentials: no event can set it"))
		case seen[folded(name)]:
			errs = append(errs, field.Errorf(at, "is named twice, or set by headers: case does not matter, and _ counts as -"))
		}

		seen[folded(name)] = true
	}

	return errors.Join(errs...)
}

// batch returns the mistakes in the settings of batches, and in those that have another meaning with them.
func (c Config) batch() error {
	const least, most = 1000, 100_000_000
	if c.BatchFormat == "" {
		if c.BatchBytes != 0 {
			return field.Errorf("batch_bytes", "has no effect without batch_format: take it out, or set batch_format")
		}
		return nil
	}

	errs := []error{field.Between("batch_bytes", c.BatchBytes, least, most)}
	if c.DynamicHost {
		errs = append(errs, field.Errorf("dynamic_host", "goes with no batch_format: the events of a batch would wait "+
			"for the hosts of the others"))
	}

	if c.ContentType != "" && !(&delivery.Event{ContentType: c.ContentType}).IsJSON() {
		errs = append(errs, field.Errorf("content_type", "must be JSON with batch_format: %s: take it out", BatchNDJSON))
	}

	switch {
	case c.BatchFormat == BatchCloudEvents && c.Body != "":
		errs = append(errs, field.Errorf("body", "goes with batch_format: %s only: a batch of CloudEvents holds no "+
			"other bodies", BatchNDJSON))
	case c.BatchFormat == BatchCloudEvents && c.Format != "" && c.Format != handlers.FormatCloudEventsStructured,
		c.Format == handlers.FormatCloudEventsBinary:
		errs = append(errs, field.Errorf("format", "goes with a request per event only: take it out, or batch_format"))
	}

	return errors.Join(errs...)
}

// reservedHeader returns why a header cannot be set with headers, or "".
func reservedHeader(name string) string {
	if !isToken(name) {
		return "must be a header name of letters, digits and hyphens"
	}

	switch lower := folded(name); {
	case lower == "authorization":
		return "is not set here: use bearer_token, or username and password"
	case lower == "content-type":
		return "is not set here: use content_type"
	case unsendable(lower):
		return "is set by notifyd: take it out"
	default:
		return ""
	}
}

func (c Config) credentials() error {
	var errs []error
	if err := field.Login(c.Username, c.Password, "WEBHOOK_PASSWORD"); err != nil {
		errs = append(errs, err)
	} else if strings.Contains(c.Username, ":") {
		errs = append(errs, field.Errorf("username", "must not hold a colon: Basic authentication ends the name there"))
	}

	if c.Username != "" && !c.BearerToken.IsZero() {
		errs = append(errs, field.Errorf("bearer_token", "username is set too: take one of them out"))
	}

	if strings.ContainsFunc(c.BearerToken.Reveal(), func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		errs = append(errs, field.Errorf("bearer_token", "must be printable ASCII without blanks: is there a line end in it?"))
	}

	if c.DynamicHost {
		for _, f := range []struct {
			path string
			set  bool
		}{{"bearer_token", !c.BearerToken.IsZero()}, {"username", c.Username != ""}, {"tls.cert_file", c.TLS.CertFile != ""}} {
			if f.set {
				errs = append(errs, field.Errorf(f.path, "would be sent to any host that an event names: take it out, "+
					"or dynamic_host; signing_secrets are safe"))
			}
		}
	}

	return errors.Join(errs...)
}

func (c Config) network() error {
	_, errs := parseProxy(c.ProxyURL)
	_, allowed := parseNetworks(c.AllowAddresses)
	errs = errors.Join(errs, allowed)
	full := c.WithDefaults()

	if len(c.AllowAddresses) > 0 && full.Addresses == AddressesAny {
		errs = errors.Join(errs, field.Errorf("allow_addresses", "has no effect with addresses: any: set addresses: "+
			"public, or take it out"))
	}

	if proxy := c.ProxyURL.Reveal(); proxy != "" && proxy != ProxyNone && full.Addresses == AddressesPublic {
		errs = errors.Join(errs, field.Errorf("proxy_url", "%s", proxyBlinds))
	}

	return errs
}

// proxyBlinds is the mistake of a guard behind a proxy.
const proxyBlinds = "the proxy connects, so notifyd cannot see whether an address is public: " +
	"set proxy_url: none, or addresses: any and let the proxy refuse private networks"

func parseNetworks(texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	var errs []error
	for i, text := range texts {
		network, err := netip.ParsePrefix(text)
		if addr, bad := netip.ParseAddr(text); bad == nil && addr.Zone() == "" {
			network = netip.PrefixFrom(addr, addr.BitLen())
			err = nil
		}

		if err != nil || network.Addr().Is4In6() {
			errs = append(errs, field.Errorf("allow_addresses."+strconv.Itoa(i), "must be an address or a network such as 10.1.0.0/16"))
			continue
		}

		all = append(all, network.Masked())
	}

	return all, errors.Join(errs...)
}

// parseProxy returns nil for none and for the environment's proxy.
func parseProxy(setting interface{ Reveal() string }) (*url.URL, error) {
	raw := setting.Reveal()
	if raw == "" || raw == ProxyNone {
		return nil, nil //nolint:nilnil // nil is how net/http spells "no proxy"
	}
	u, err := url.Parse(raw) // the error would repeat the password
	if err != nil || u.Hostname() == "" || !slices.Contains([]string{"http", "https", "socks5", "socks5h"}, u.Scheme) {
		return nil, field.Errorf("proxy_url", "must be such as http://proxy.example.com:3128, https://..., socks5://... or none")
	}
	return u, nil
}

func (c Config) limits() error {
	errs := []error{
		field.Timeout("max_connection_age", c.MaxConnectionAge, 0, idle.MaxAge),
		field.Timeout("connect_timeout", c.ConnectTimeout, 0, defaultConnectTimeout),
		field.Timeout("tls_timeout", c.TLSTimeout, 0, defaultTLSTimeout),
		field.Timeout("response_timeout", c.ResponseTimeout, 0, defaultResponseTimeout),
		field.Timeout("request_timeout", c.RequestTimeout, 0, defaultRequestTimeout),
	}

	if full := c.WithDefaults(); full.ResponseTimeout > full.RequestTimeout {
		errs = append(errs, field.Errorf("response_timeout", "of %v must not be longer than request_timeout, which is %v",
			full.ResponseTimeout, full.RequestTimeout))
	}

	isNumber := !math.IsNaN(c.HostRateLimit) && !math.IsInf(c.HostRateLimit, 0)
	if !isNumber || c.HostRateLimit < 0 || c.HostRateLimit > maxRate {
		errs = append(errs, field.Errorf("host_rate_limit", "must be a number of requests per second up to %d, such as 10", int(maxRate)))
	}

	switch {
	case c.HostConcurrency < 0:
		errs = append(errs, field.Errorf("host_concurrency", "must be 1 or more"))
	case c.HostConcurrency > 0 && !c.DynamicHost:
		errs = append(errs, field.Errorf("host_concurrency", "works with dynamic_host only: for one host, set concurrency"))
	}

	return errors.Join(errs...)
}

// parseTarget parses the URL of a configuration.
func parseTarget(c Config) (*target.URL, error) {
	if strings.TrimSpace(c.URL) == "" {
		return nil, field.Errorf("url", "missing: write where to send to, such as https://example.com/hook")
	}

	t, err := target.Parse("url", c.URL, c.DynamicHost)
	switch {
	case errors.Is(err, target.ErrOpenHost):
		return nil, field.Errorf("url", "%w; or, if events may choose the host, set dynamic_host: true", err)
	case err != nil:
		return nil, field.Errorf("url", "%w", err)
	case c.DynamicHost && t.Base().Host != "":
		return nil, field.Errorf("dynamic_host", "the host stands in url and no event can change it: take dynamic_host out")
	}

	return t, nil
}
