package session

import (
	"crypto/tls"
	"errors"
	"regexp"
	"slices"
	"strings"
)

var (
	// attemptAt is the address at the begin of the line of one attempt, as pgconn writes it.
	attemptAt = regexp.MustCompile(`^\S+ \([^)]*\): `)
	hasState  = regexp.MustCompile(`\(SQLSTATE [0-9A-Z]{5}\)`)
)

// refusedTLS is the end of the line about an attempt that the server ended because it has no TLS. pgconn has no code for it.
const refusedTLS = "tls error: server refused TLS connection"

// hookFailed precedes the error of a hook in an error of pgx. The hook that sets a password names its setting itself.
const hookFailed = "AfterNetConnect failed: "

// ConnectText returns the error of a failed connection on one line. pgconn has a line for each attempt. Of each address the
// attempt remains that names the cause: one with a SQLSTATE, or else one with another error than a missing TLS. An address
// that answered with a SQLSTATE comes first.
func ConnectText(err error) string {
	head, attempts := attemptsOf(err)
	var addresses []string
	best := make(map[string]string)
	for _, line := range attempts {
		at := attemptAt.FindString(line)
		if at == "" {
			at = strings.TrimPrefix(line, "hostname resolving error: ") // no address was reached
		}

		last, known := best[at]
		if !known {
			addresses = append(addresses, at)
		}
		if !known || rankOf(line) < rankOf(last) {
			best[at] = line
		}
	}

	lines := make([]string, len(addresses))
	for i, at := range addresses {
		lines[i] = best[at]
	}

	slices.SortStableFunc(lines, func(a, b string) int { return rankOf(a) - rankOf(b) })

	return head + strings.Join(lines, "; ")
}

// attemptsOf returns the text before the attempts, and a line for each attempt.
func attemptsOf(err error) (head string, attempts []string) {
	text := strings.ReplaceAll(err.Error(), hookFailed, "")
	first, rest, several := strings.Cut(text, ":\n")
	if !several {
		first, rest, several = strings.Cut(text, "`: ")
		if !several {
			return "", []string{strings.Join(strings.Fields(text), " ")}
		}
		first += "`"
	}

	for line := range strings.Lines(rest) {
		attempts = append(attempts, strings.Join(strings.Fields(line), " "))
	}

	return first + ": ", attempts
}

// rankOf orders attempts: the lower one names the cause.
func rankOf(line string) int {
	switch {
	case hasState.MatchString(line):
		return 0
	case strings.HasSuffix(line, refusedTLS):
		return 2
	default:
		return 1
	}
}

// TLSCure returns the cure if TLS is the reason of a failed connection; "" otherwise.
func TLSCure(err error) string {
	_, attempts := attemptsOf(err)

	hasNoTLS := !slices.ContainsFunc(attempts, func(line string) bool { return rankOf(line) != 2 })
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)

	switch {
	case hasNoTLS:
		return "have the server offer TLS (ssl = on in postgresql.conf), " +
			"or set sslmode=disable in the connection string where the way to it is safe"
	case untrusted:
		return "set sslrootcert in the connection string to the certificate of the server's authority, " +
			"and its host to a name in the server's certificate"
	default:
		return ""
	}
}
