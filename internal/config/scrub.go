package config

import (
	"strconv"
	"strings"

	"github.com/notifyd/notifyd/internal/secret"
)

// shortest is the length from which a text is redacted anywhere in a message. A
// shorter one would match parts of ordinary words, so it is redacted as a whole
// word only.
const shortest = 3

// scrub removes every trace of the given values from a message of a handler's
// Validate or of a parser that it called: the value itself, and every word that
// is part of one, because parsers quote the part that they reject. The words of own,
// the format of the message, stay: "must begin with amqp://" repeats no secret.
func scrub(message, own string, values []string) string {
	for _, v := range values {
		if len(v) < shortest || strings.Contains(own, v) {
			continue
		}
		message = strings.ReplaceAll(message, v, secret.Redacted)
		quoted := strconv.Quote(v)
		message = strings.ReplaceAll(message, quoted[1:len(quoted)-1], secret.Redacted)
	}
	kept := make(map[string]bool)
	for word := range strings.FieldsSeq(own) {
		kept[bareWord(word)] = true
	}
	words := strings.Split(message, " ")
	for i, word := range words {
		bare := bareWord(word)
		if bare != "" && !kept[bare] && partOf(bare, values) {
			words[i] = strings.Replace(word, bare, secret.Redacted, 1)
		}
	}
	return strings.Join(words, " ")
}

func bareWord(word string) string { return strings.Trim(word, "\"'`.,:;()[]<>") }

func partOf(word string, values []string) bool {
	for _, v := range values {
		if word == v || len(word) >= shortest && strings.Contains(v, word) {
			return true
		}
	}
	return false
}
