package idempotency

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
)

// errParsed means that the body was consumed already.
var errParsed = errors.New("the body was read before: put the middleware before handlers that parse forms")

// readBody returns the body of r, at most limit bytes, and a request that still has the
// body.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, *http.Request, error) {
	if r.PostForm != nil || r.MultipartForm != nil {
		return nil, nil, errParsed
	}

	var body []byte
	if r.Body != nil && r.Body != http.NoBody {
		var err error
		body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
		if err != nil {
			return nil, nil, err
		}
	}

	again := r.Clone(r.Context())
	again.Body = io.NopCloser(bytes.NewReader(body))
	again.ContentLength = int64(len(body))
	again.TransferEncoding = nil
	if len(body) == 0 {
		again.Body = http.NoBody
	}

	return body, again, nil
}

// fingerprint identifies a request. It includes the URI as the client wrote it,
// because http.StripPrefix maps two paths to one.
func fingerprint(r *http.Request, body []byte) string {
	uri := r.RequestURI
	if !strings.HasPrefix(uri, "/") {
		uri = r.URL.RequestURI()
	}
	return digest([]byte(r.Method), []byte(uri), body)
}
