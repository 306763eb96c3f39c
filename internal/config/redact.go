package config

import (
	"regexp"
	"strings"

	"github.com/notifyd/notifyd/internal/secret"
)

// keywordPassword matches the password in libpq's keyword form, quoted or not.
var keywordPassword = regexp.MustCompile(`(?is)(password\s*=\s*)('(?:[^'\\]|\\.)*(?:'|$)|(?:\\.|\S)+)`)

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
	rest, query, hasQuery := strings.Cut(rest, "?")
	if strings.Contains(query, "@") && !strings.Contains(rest, "@") {
		rest, query, hasQuery = rest+"?"+query, "", false // the ? was part of the password
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		if user, _, ok := strings.Cut(rest[:i], ":"); ok {
			rest = user + ":" + secret.Redacted + rest[i:]
		}
	}
	if !hasQuery {
		return scheme + "://" + rest
	}
	return scheme + "://" + rest + "?" + redactQuery(query)
}

func redactQuery(query string) string {
	parts := strings.Split(query, "&")
	for i, part := range parts {
		if key, _, ok := strings.Cut(part, "="); ok && tellsSecret(key) {
			parts[i] = key + "=" + secret.Redacted
		}
	}
	return strings.Join(parts, "&")
}

func tellsSecret(key string) bool {
	key = strings.ToLower(key)
	for _, word := range []string{"password", "passwd", "secret", "token", "apikey", "api_key"} {
		if strings.Contains(key, word) {
			return true
		}
	}
	return false
}
