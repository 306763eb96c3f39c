package config

import (
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/internal/secret"
)

// verb matches a verb of a format.
var verb = regexp.MustCompile(`%[^%a-zA-Z]*[%a-zA-Z]`)

// plainHost matches what a URL without user info has before its query.
var plainHost = regexp.MustCompile(`^[^:]*(?::\d+)?(?:/.*)?$`)

// scrub makes one line of a message of a handler's Validate, or of a parser that it called, without the secrets of
// the values, which parsers quote. The literal text of own, the format of the message, stays: "must begin with
// amqp://" repeats no secret.
func scrub(message, own string, values []string) string {
	message = oneLine(message)
	var secrets []string
	for _, v := range values {
		secrets = append(secrets, secretsIn(oneLine(v))...)
	}
	redactor := secret.NewRedactor(secrets...)

	var out strings.Builder
	for _, literal := range verb.Split(oneLine(own), -1) {
		if slices.ContainsFunc(secrets, func(s string) bool { return strings.Contains(s, literal) }) {
			continue // it may be found in a secret, and would tear it apart
		}

		if i := strings.Index(message, literal); i >= 0 {
			out.WriteString(redactor.Redact(message[:i]) + literal)
			message = message[i+len(literal):]
		}
	}

	return out.String() + redactor.Redact(message)
}

// secretsIn returns the secrets in the text of a setting: the whole text, and the parts of a connection string that an
// error of a parser may quote. Names of users, hosts and databases are ordinary words and not secret.
func secretsIn(text string) []string {
	all := []string{text}
	for _, m := range keywordPassword.FindAllStringSubmatch(text, -1) {
		all = append(all, m[2], strings.Trim(m[2], "'"))
	}

	scheme, rest, isURL := strings.Cut(text, "://")
	if !isURL {
		return all
	}

	before, query, _ := strings.Cut(rest, "?")
	at := strings.LastIndexByte(before, '@')
	if at < 0 && !plainHost.MatchString(before) { // the password has a question mark
		at = strings.LastIndexByte(rest, '@')
	}

	if at >= 0 {
		info := rest[:at]
		rest = rest[at+1:]
		_, query, _ = strings.Cut(rest, "?")
		if _, password, ok := strings.Cut(info, ":"); ok {
			all = append(all, info, password)
			if plain, err := url.PathUnescape(password); err == nil {
				all = append(all, plain)
			}
			// Where a parser takes a part of the password for a port or a host.
			all = append(all, strings.FieldsFunc(password, func(r rune) bool { return strings.ContainsRune("/?#@:", r) })...)
		} else if hide(info) != info || strings.HasPrefix(scheme, "http") || scheme == "nats" {
			all = append(all, info) // a token
		}
	}

	place, _, _ := strings.Cut(rest, "?")
	return append(append(all, secretsOfPlace(scheme, place)...), secretsOfQuery(query)...)
}

// secretsOfPlace returns the secrets after the user info of a URL: a port that is not a number, because a URL without a
// host has its password there, and path segments that are tokens.
func secretsOfPlace(scheme, place string) (all []string) {
	hosts, _, _ := strings.Cut(place, "/")
	for host := range strings.SplitSeq(hosts, ",") {
		_, port, hasPort := strings.Cut(host, ":")
		isAddress := strings.HasPrefix(host, "[")
		isNumber := !strings.ContainsFunc(port, func(r rune) bool { return r < '0' || r > '9' })
		if hasPort && !isAddress && !isNumber {
			all = append(all, port)
		}
	}

	if strings.HasPrefix(scheme, "http") {
		shown := strings.Split(redactPath(place, hideSegment), "/")
		for i, segment := range strings.Split(place, "/") {
			if shown[i] != segment {
				all = append(all, segment)
			}
		}
	}

	return all
}

func secretsOfQuery(query string) (all []string) {
	for p := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(p, "=")
		if secretName.MatchString(name) || secretParameter.MatchString(name) || hide(value) != value {
			all = append(all, value)
			if plain, err := url.QueryUnescape(value); err == nil {
				all = append(all, plain)
			}
		}
	}
	return all
}
