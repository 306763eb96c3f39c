package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
)

// answer is the answer of a handler.
type answer struct {
	Status int         `json:"status"`
	Header http.Header `json:"header,omitempty"`
	// Large reports that the body was too large to be kept.
	Large bool `json:"large,omitempty"`

	body []byte
}

// encode returns a line of JSON and the body behind it.
func (a *answer) encode() ([]byte, error) {
	head, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("encode an answer: %w", err)
	}
	return slices.Concat(head, []byte{'\n'}, a.body), nil
}

func decode(text []byte) (*answer, error) {
	head, body, ok := bytes.Cut(text, []byte{'\n'})
	a := &answer{body: body}
	if err := json.Unmarshal(head, a); err != nil {
		return nil, fmt.Errorf("the stored answer cannot be read: %w", err)
	}
	if !ok || a.Status < http.StatusOK || a.Status > 999 {
		return nil, errors.New("the stored answer is incomplete")
	}
	return a, nil
}

// chosen returns the headers to store: the ones in list.
func chosen(h http.Header, list []string) http.Header {
	out := make(http.Header, len(list))
	for _, name := range list {
		if values := h.Values(name); len(values) > 0 {
			out[http.CanonicalHeaderKey(name)] = slices.Clone(values)
		}
	}
	return out
}

// bodyAllowed follows the rules of net/http.
func bodyAllowed(status int) bool {
	return status >= http.StatusOK && status != http.StatusNoContent && status != http.StatusNotModified
}

// write sends the status and the body; the headers are in w already.
func (a *answer) write(w http.ResponseWriter, method string) {
	length := a.Header.Get("Content-Length") // as for a HEAD
	switch {
	case !bodyAllowed(a.Status):
	case method != http.MethodHead:
		w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	case length == "" && len(a.body) > 0:
		w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	w.WriteHeader(a.Status)
	if method != http.MethodHead && bodyAllowed(a.Status) {
		_, _ = w.Write(a.body) // a client that went away gets the answer with its next request
	}
}
