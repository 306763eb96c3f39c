package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Header is the name of the request's header.
const Header = "Idempotency-Key"

// maxKeyBytes is far more than any unique value needs.
const maxKeyBytes = 255

// errNoKey is the error of a request without a key.
var errNoKey = errors.New("the header " + Header + " is missing")

// Key returns the key of a request, for a handler that stores it with its work:
// with a unique constraint on it, the work is not even repeated if the process
// dies between the work and the storing of the answer. The error describes the
// mistake in the header; the middleware has refused such a request already.
func Key(r *http.Request) (string, error) { return keyOf(r.Header) }

// keyOf returns the key of a request. The draft requires a string of Structured
// Fields, in double quotes; most clients send the bare value. Both name the same
// key.
func keyOf(h http.Header) (string, error) {
	values := h.Values(Header)
	switch len(values) {
	case 0:
		return "", errNoKey
	case 1:
	default:
		return "", fmt.Errorf("the header %s occurs %d times", Header, len(values))
	}
	return parseKey(strings.Trim(values[0], " \t"))
}

func parseKey(value string) (string, error) {
	key := value
	if strings.HasPrefix(value, `"`) {
		var err error
		key, err = unquote(value)
		if err != nil {
			return "", err
		}
	} else if strings.ContainsAny(value, " \"") {
		return "", fmt.Errorf("the header %s has blanks or quotes within: put the value in double quotes", Header)
	}

	switch {
	case strings.TrimSpace(key) == "":
		return "", fmt.Errorf("the header %s is empty", Header)
	case len(key) > maxKeyBytes:
		return "", fmt.Errorf("the header %s has %d characters, at most %d are allowed", Header, len(key), maxKeyBytes)
	}

	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return "", fmt.Errorf("the header %s has characters that are not printable ASCII", Header)
		}
	}

	return key, nil
}

// unquote reads a string of RFC 8941, section 3.3.3, with no text after it.
func unquote(value string) (string, error) {
	var key strings.Builder
	for i := 1; i < len(value); i++ {
		switch c := value[i]; c {
		case '\\':
			i++
			if i >= len(value) || value[i] != '"' && value[i] != '\\' {
				return "", fmt.Errorf("the header %s has a backslash that escapes nothing", Header)
			}
			key.WriteByte(value[i])
		case '"':
			if i != len(value)-1 {
				return "", fmt.Errorf("the header %s has text after its closing quote", Header)
			}
			return key.String(), nil
		default:
			key.WriteByte(c)
		}
	}
	return "", fmt.Errorf("the header %s has no closing quote", Header)
}

// digest hashes parts, each preceded by its length, so that no two lists of parts
// are alike. The store holds no text of clients.
func digest(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		_ = binary.Write(h, binary.BigEndian, uint64(len(p))) // a hash does not fail
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}
