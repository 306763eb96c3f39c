//go:build testall

package testenv

import (
	"context"
	"net/http"
	"strings"
	"testing"
)

func TestPubSub(t *testing.T) {
	t.Parallel()
	endpoint := PubSub(t)
	if again := PubSub(t); again != endpoint {
		t.Errorf("two endpoints: %s and %s", endpoint, again)
	}
	s, err := pubsub.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(s.endpoint + "/v1/projects/p/topics/none")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if !strings.HasPrefix(s.endpoint, "http://127.0.0.1:") || resp.StatusCode != http.StatusNotFound {
		t.Errorf("endpoint %s: %s", s.endpoint, resp.Status)
	}
	if err := s.stop(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}
