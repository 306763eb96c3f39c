package awsapi

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/handlers"
)

// TestPlainBody: see plainBody.
func TestPlainBody(t *testing.T) {
	t.Parallel()
	seen := false
	next := tripper(func(r *http.Request) (*http.Response, error) {
		_, has := r.Body.(io.WriterTo)
		seen = !has
		return &http.Response{Body: http.NoBody}, nil
	})
	body := io.NopCloser(strings.NewReader("x"))
	if _, has := body.(io.WriterTo); !has {
		t.Fatal("the body has no WriteTo to hide")
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/", body)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := plainBody{next}.RoundTrip(r)
	if err != nil || !seen {
		t.Fatalf("%v; WriteTo is hidden: %t", err, seen)
	}
	_ = answer.Body.Close()

	loaded, _, err := load(handlers.AWS{Region: "eu-central-1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	client, ok := loaded.HTTPClient.(*http.Client)
	if !ok {
		t.Fatalf("the client is a %T", loaded.HTTPClient)
	}
	if _, ok := client.Transport.(plainBody); !ok {
		t.Errorf("the transport is a %T", client.Transport)
	}
}

type tripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
