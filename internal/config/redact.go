package config

import (
	"regexp"
	"strings"

	"github.com/notifyd/notifyd/internal/secret"
)

var (
	// keywordPassword matches the password in libpq's keyword form, quoted or not.
	keywordPassword = regexp.MustCompile(`(?is)(password\s*=\s*)('(?:[^'\\]|\\.)*(?:'|$)|(?:\\.|\S)+)`)
	// queryPassword matches the parameters of a URL that hold secrets.
	queryPassword = regexp.MustCompile(`(?is)([?&][^=&]*(?:passw|secret|token|api_?key)[^=&]*=)[^&]*`)
)

// redactConnection returns a connection string without its password.
func redactConnection(s string) string {
	switch {
	case s == "":
		return ""
	case strings.Contains(s, "://"):
		return redactURL(s)
	case strings.Contains(s, "="):
		return keywordPassword.ReplaceAllString(s, "${1}"+secret.Redacted)
	default:
		return secret.Redacted
	}
}

// redactURL removes the password from a text if it is a URL. It looks for the
// last @ rather than parsing: a password with an unescaped slash must not slip
// through, and hiding a little too much does no harm.
func redactURL(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return s
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		if user, _, ok := strings.Cut(rest[:i], ":"); ok {
			rest = user + ":" + secret.Redacted + rest[i:]
		}
	}
	return scheme + "://" + queryPassword.ReplaceAllString(rest, "${1}"+secret.Redacted)
}
