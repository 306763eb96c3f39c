package email

import (
	"cmp"
	"os"
	"strings"
)

// greetingOf returns the name to greet the server with. A container's name has no dot, and many servers refuse such a name
// at each mail (Postfix: reject_non_fqdn_helo_hostname). The domain of the sender is a name that they accept.
func greetingOf(c Config, machine string) string {
	switch {
	case c.HELO != "":
		return c.HELO
	case isFullName(machine):
		return machine
	default:
		return cmp.Or(senderDomain(c.From), machine, "localhost")
	}
}

// machineName returns the name that the operating system reports, or an empty one.
func machineName() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// isFullName reports whether a name has a domain, or is an address in brackets (RFC 5321, 4.1.3).
func isFullName(name string) bool {
	return strings.HasPrefix(name, "[") || strings.Contains(strings.Trim(name, "."), ".")
}

// senderDomain returns the domain in the template of a sender: empty if the event decides about the domain, or if the domain
// has no dot.
func senderDomain(from string) string {
	at := strings.LastIndexByte(from, '@')
	if at < 0 {
		return ""
	}

	parsed, err := parseAddresses("x@" + strings.TrimRight(from[at+1:], "> \t"))
	if err != nil || len(parsed) != 1 {
		return ""
	}

	domain := domainOf(parsed[0])
	if !isFullName(domain) {
		return ""
	}
	return domain
}
