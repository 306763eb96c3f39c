// Package secret takes secrets out of texts. The type of a secret is Secret of package handlers.
package secret

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Redacted is printed in place of a secret.
const Redacted = "[redacted]"

// shortest is the length in bytes from which a secret is redacted anywhere in a text. A shorter secret could match parts
// of ordinary words, so it is redacted only between delimiters.
const shortest = 4

// delimiters are the characters that may surround a short secret.
const delimiters = " \t\r\n\"'`()[]<>{},;:=@/.!?"

// Redactor takes secrets out of texts of servers, parsers and libraries. No other code does. A nil Redactor has no
// secrets.
type Redactor struct {
	long    *strings.Replacer
	short   []string
	longest int
}

// NewRedactor returns a Redactor of secrets: a password, a token, the user info of a URL. It searches for each whole
// secret, as it is and as URLs and quotes encode it. It never searches for parts, which may be ordinary words.
func NewRedactor(secrets ...string) *Redactor {
	r := &Redactor{}
	var long []string
	for _, s := range secrets {
		if s == "" {
			continue
		}

		quoted := strconv.Quote(s)
		forms := []string{s, url.QueryEscape(s), url.PathEscape(s), url.User(s).String(), quoted[1 : len(quoted)-1]}
		for _, form := range forms {
			switch {
			case len(form) >= shortest:
				long = append(long, form)
			case !slices.Contains(r.short, form):
				r.short = append(r.short, form)
			}
		}
	}

	// If two match at the same place, the longer one wins.
	slices.SortFunc(long, func(a, b string) int { return len(b) - len(a) })

	pairs := make([]string, 0, 2*len(long))
	for _, form := range long {
		pairs = append(pairs, form, Redacted)
	}

	if len(long) > 0 {
		r.long = strings.NewReplacer(pairs...)
		r.longest = len(long[0])
	}

	return r
}

// Longest returns the length in bytes of the longest secret that is redacted anywhere. A text that was cut may end with
// up to one byte less of a secret.
func (r *Redactor) Longest() int {
	if r == nil {
		return 0
	}
	return r.longest
}

// Redact returns the text with [Redacted] in place of each secret. A text without secrets is unchanged.
func (r *Redactor) Redact(text string) string {
	if r == nil {
		return text
	}
	if r.long != nil {
		text = r.long.Replace(text)
	}
	for _, s := range r.short {
		text = redactToken(text, s)
	}
	return text
}

// redactToken redacts a short secret where delimiters, or the ends of the text, are around it.
func redactToken(text, s string) string {
	var out strings.Builder
	done := 0
	for at := 0; ; {
		i := strings.Index(text[at:], s)
		if i < 0 {
			break
		}

		from := at + i
		to := from + len(s)
		at = from + 1

		if alone(text, from, to) {
			out.WriteString(text[done:from] + Redacted)
			done = to
			at = to
		}
	}

	if done == 0 {
		return text
	}
	return out.String() + text[done:]
}

// alone reports whether delimiters are around a part of a text.
func alone(text string, from, to int) bool {
	isStart := from == 0 || strings.IndexByte(delimiters, text[from-1]) >= 0
	isEnd := to == len(text) || strings.IndexByte(delimiters, text[to]) >= 0
	return isStart && isEnd
}
