package config

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// redacted stands in printed settings for a hidden value. It looks like an
// expansion that does not exist, so a file that still holds it is refused.
const redacted = "${" + redactedName + "}"

const redactedName = "redacted"

var (
	// opaque matches the parts that a printed text keeps in any context: expansions
	// and templates. A doubled dollar sign begins none.
	opaque = regexp.MustCompile(`(?s)\$\$|\$\{[^}]*\}|\{\{.*?\}\}`)
	// withDefault matches an expansion with a default, which may be a secret.
	withDefault = regexp.MustCompile(`(?s)^\$\{(env:[^:}]*):-(.*)\}$`)

	// keywordPassword matches the password in libpq's keyword form, quoted or not.
	keywordPassword = regexp.MustCompile(`(?is)(password\s*=\s*)('(?:[^'\\]|\\.)*(?:'|$)|(?:\\.|\S)+)`)
	// wholeURL and embeddedURL match a text that is a URL, and one in a text.
	wholeURL    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://\S*$`)
	embeddedURL = regexp.MustCompile("[A-Za-z][A-Za-z0-9+.-]*://[^\\s\"'<>`]+")
	// secretName matches the names of headers, parameters and the like that hold secrets.
	secretName = regexp.MustCompile(`(?i)auth|token|secret|passw|cookie|credential|signature|` +
		`(?:api|access|private|functions|subscription|shared|master|admin|x)[-_.]?key$`)
	// secretParameter matches more: parameters of a URL are seldom anything else.
	secretParameter = regexp.MustCompile(`(?i)^(?:key|sig|code|pwd)$`)
	// authScheme matches the first word of a header that carries credentials.
	authScheme = regexp.MustCompile(`(?i)^(?:basic|bearer|digest|token|api-?key|key)$`)
	// hookHost matches hosts whose URLs are secrets: the path alone is enough to post.
	hookHost = regexp.MustCompile(`(?i)^(?:hooks?\.[a-z0-9.-]+|discord(?:app)?\.com|` +
		`[a-z0-9.-]+\.webhook\.office\.com|[a-z0-9.-]+\.logic\.azure\.com|` +
		`api\.telegram\.org|events\.pagerduty\.com)(?::\d+)?$`)

	// plainSegment matches a segment of a path without a secret: words, versions, years, or the account of an AWS queue.
	plainSegment = regexp.MustCompile(`^(?:\d{12}|(?:(?:[a-z]+|[A-Z][a-z]+|[A-Z]{1,4})(?:[A-Z][a-z]{2,})*\d?|` +
		`v\d{1,3}(?:(?:alpha|beta|rc)\d{0,2})?|\d{1,4})(?:[-_.:#]+(?:[A-Za-z]?[a-z]*|v?\d{1,4}))*)$`)
	// longestWord is the longest word of a plain segment.
	longestWord = regexp.MustCompile(`[A-Za-z]{25}`)

	// publicPart matches the public parts of a secret, and the word for none.
	publicPart = regexp.MustCompile(`^(?:whsec_|xox[a-z]-|none$)`)

	tokenChars = regexp.MustCompile(`^[A-Za-z0-9_.~:=+%-]+$`)
	uuid       = regexp.MustCompile(`(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
)

// firstMark is the first of the characters that stand for opaque parts, from a
// plane for private use, which no setting has.
const firstMark = '\U000F0000'

// redact applies f to a text of the file, in which a character stands for each
// expansion and template. A default that f would change is left out.
func redact(text string, f func(string) string) string {
	var parts []string
	mark := firstMark

	text = opaque.ReplaceAllStringFunc(text, func(part string) string {
		if part == "$$" {
			return part
		}

		if m := withDefault.FindStringSubmatch(part); m != nil && f(m[2]) != m[2] {
			part = "${" + m[1] + "}"
		}

		parts = append(parts, part)
		mark++
		return string(mark - 1)
	})

	var out strings.Builder
	for _, r := range f(text) {
		if i := int(r - firstMark); i >= 0 && i < len(parts) {
			out.WriteString(parts[i])
			continue
		}
		out.WriteRune(r)
	}

	return out.String()
}

// opaqueOnly reports whether a text has only opaque parts.
func opaqueOnly(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < firstMark && !unicode.IsSpace(r) })
}

// redactText hides the secrets of the URLs in a text.
func redactText(s string) string {
	if wholeURL.MatchString(s) {
		return redactURL(s, hideSegment)
	}
	return embeddedURL.ReplaceAllStringFunc(s, func(link string) string { return redactURL(link, hide) }) // a text for readers
}

// redactSecret keeps the expansions of a secret's text in the file, and the parts of a
// URL that are not secret.
func redactSecret(s string) string {
	scheme, rest, isURL := strings.Cut(s, "://")
	if opaqueOnly(publicPart.ReplaceAllString(s, "")) {
		return s
	}

	if !isURL || strings.HasPrefix(scheme, "http") && !opaqueOnly(afterHost(rest)) {
		return redacted
	}

	return redactURL(s, hideSegment)
}

func afterHost(rest string) string {
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		return strings.Trim(rest[i:], "/")
	}
	return ""
}

// redactConnection returns a connection string without its password.
func redactConnection(s string) string {
	switch {
	case opaqueOnly(s):
		return s
	case strings.Contains(s, "://"):
		return redactURL(s, hideSegment)
	case strings.Contains(s, "="):
		return keywordPassword.ReplaceAllStringFunc(s, func(m string) string {
			name, value, _ := strings.Cut(m, "=")
			if opaqueOnly(value) {
				return m
			}
			return name + "=" + value[:len(value)-len(strings.TrimLeft(value, " \t\n"))] + redacted
		})
	default:
		return redacted
	}
}

// redactURL removes the password from a URL, and from one of HTTP the segments that segment hides, and parameters that look
// like a token. It looks for the last @ rather than parsing: a password with an unescaped
// slash must not slip through, and hiding a little too much does no harm.
func redactURL(s string, segment func(string) string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return s
	}

	user := ""
	within := false
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		within = strings.ContainsRune(rest[:i], '?') // the @ may be of the query
		name, password, found := strings.Cut(rest[:i], ":")
		switch {
		case found && opaqueOnly(password):
			user = rest[:i+1]
			rest = rest[i+1:]
		case found:
			user = name + ":" + redacted + "@"
			rest = rest[i+1:]
		case !strings.ContainsRune(name, '/'):
			user = hide(name) + "@"
			rest = rest[i+1:]
		}
	}

	rest, query, hasQuery := strings.Cut(rest, "?")
	if user != "" && within {
		rest = redactQuery(rest)
	}
	if strings.HasPrefix(scheme, "http") {
		rest = redactPath(rest, segment)
	}
	if hasQuery {
		rest += "?" + redactQuery(query)
	}

	return scheme + "://" + user + rest
}

// redactPath hides segments behind a host, and all but the first where the path is known to be the secret: at many hosts the
// path alone is enough to post.
func redactPath(s string, hideSegment func(string) string) string {
	segments := strings.Split(s, "/")
	path := segments[1:]
	known := hookHost.MatchString(segments[0]) || len(path) == 4 && path[0] == "services" // as Slack has it, also behind a gateway

	for i, segment := range path {
		if known && i > 0 && !opaqueOnly(segment) {
			path[i] = redacted
		} else {
			path[i] = hideSegment(segment)
		}
	}

	return strings.Join(segments, "/")
}

// hideSegment returns redacted for a segment of a path, unless it is known to be no secret.
func hideSegment(segment string) string {
	literal := strings.FieldsFunc(segment, func(r rune) bool { return r >= firstMark })
	for _, part := range literal {
		part = strings.Trim(part, "-_.:")
		if part != "" && (!plainSegment.MatchString(part) || longestWord.MatchString(part)) {
			return redacted
		}
	}

	return segment
}

func redactQuery(query string) string {
	parameters := strings.Split(query, "&")

	for i, p := range parameters {
		name, value, _ := strings.Cut(p, "=")
		switch {
		case opaqueOnly(value):
		case secretName.MatchString(name) || secretParameter.MatchString(name):
			parameters[i] = name + "=" + redacted
		default:
			parameters[i] = name + "=" + hide(value)
		}
	}

	return strings.Join(parameters, "&")
}

// redactNamed hides the words of a value whose name, or first word, marks it as
// secret. Where there is an expansion, it is the secret.
func redactNamed(name, s string) string {
	words := strings.Split(s, " ")
	scheme := len(words) > 1 && authScheme.MatchString(words[0])
	expands := strings.ContainsFunc(s, func(r rune) bool { return r >= firstMark })

	for i, word := range words {
		switch {
		case opaqueOnly(word) || scheme && i == 0:
		case !expands && (scheme || secretName.MatchString(name)):
			words[i] = redacted
		default:
			words[i] = hide(redactText(word))
		}
	}

	return strings.Join(words, " ")
}

// hide returns redacted for a word that looks like a token.
func hide(word string) string {
	if uuid.MatchString(word) || tokenLike(word) {
		return redacted
	}
	return word
}

// tokenLike reports whether a word looks random: it is long, and mixes digits and letters
// in one piece, or cases with both.
func tokenLike(word string) bool {
	const long, piece = 16, 12
	if len(word) < long || !tokenChars.MatchString(word) || !mixed(word) {
		return false
	}

	if strings.ToLower(word) != word && strings.ToUpper(word) != word {
		return true
	}

	pieces := strings.FieldsFunc(word, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	return slices.ContainsFunc(pieces, func(p string) bool { return len(p) >= piece && mixed(p) })
}

func mixed(word string) bool {
	return strings.ContainsFunc(word, unicode.IsDigit) && strings.ContainsFunc(word, unicode.IsLetter)
}
