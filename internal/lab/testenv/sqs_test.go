//go:build testall

package testenv

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestSQS(t *testing.T) {
	t.Parallel()
	endpoint := SQS(t)
	if again := SQS(t); again != endpoint {
		t.Errorf("two endpoints: %s and %s", endpoint, again)
	}
	health(t, endpoint+"/health")
}

func TestSQSEnds(t *testing.T) {
	t.Parallel()
	SQS(t) // or skip
	s, err := sqs.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(s.endpoint, "http://127.0.0.1:") {
		t.Errorf("endpoint %s", s.endpoint)
	}
	health(t, s.endpoint+"/health")
	if err := s.stop(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

func health(t *testing.T, url string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // nothing was written
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%s, %v", resp.Status, err)
	}
}
