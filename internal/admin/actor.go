package admin

import (
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/internal/field"
)

// headerName is a request header that a proxy may set. A name with an underscore would be confused with one with a hyphen.
var headerName = regexp.MustCompile(`^[A-Za-z0-9-]+$`)

// CheckActorHeader returns an error about the setting at path for a request header that cannot name a person.
func CheckActorHeader(path, header string) error {
	isSecret := slices.ContainsFunc([]string{"Authorization", "Proxy-Authorization", "Cookie"}, func(name string) bool {
		return strings.EqualFold(name, header)
	})

	switch {
	case !headerName.MatchString(header):
		return field.Errorf(path, "must be the name of a header, of letters, digits and hyphens, such as X-Forwarded-User")
	case isSecret:
		return field.Errorf(path, "%s holds a secret, which would go into the audit: "+
			"name the header with the person's name, such as X-Forwarded-User", header)
	default:
		return nil
	}
}

// CheckProxy returns an error for a network that has every address.
func CheckProxy(network netip.Prefix) error {
	if network.Bits() <= 0 {
		return errors.New("trusts every client: name the addresses of the proxies")
	}
	return nil
}
