//go:build testall

package testenv

import (
	"context"
	"strings"
	"testing"
)

func TestAWS(t *testing.T) {
	t.Parallel()
	endpoint := AWS(t)
	if again := AWS(t); again != endpoint {
		t.Errorf("two endpoints: %s and %s", endpoint, again)
	}
	health(t, endpoint+"/moto-api/")
}

func TestAWSEnds(t *testing.T) {
	t.Parallel()
	AWS(t) // or skip
	s, err := aws.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(s.endpoint, "http://127.0.0.1:") {
		t.Errorf("endpoint %s", s.endpoint)
	}
	health(t, s.endpoint+"/moto-api/")
	if err := s.stop(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}
