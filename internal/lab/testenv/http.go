package testenv

import (
	"io"
	"log"
	"net/http"
	"testing"
)

// Answer is the answer to a request, read to its end.
type Answer struct {
	Code   int
	Body   string
	Header http.Header
}

// Ask sends a request, which must be answered.
func Ask(tb testing.TB, client *http.Client, request *http.Request) Answer {
	tb.Helper()
	response, err := client.Do(request) //nolint:gosec // the address is the test's own
	if err != nil {
		tb.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // read to its end

	body, err := io.ReadAll(response.Body)
	if err != nil {
		tb.Fatal(err)
	}

	return Answer{Code: response.StatusCode, Body: string(body), Header: response.Header}
}

// Quiet returns the log of a server whose errors are expected: it discards them.
func Quiet() *log.Logger { return log.New(io.Discard, "", 0) }
