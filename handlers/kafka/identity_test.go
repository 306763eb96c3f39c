package kafka

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/handlers"
)

// authorizationServer gives a token to one client, and repeats what others send. It returns its URL.
func authorizationServer(t *testing.T, id, password, scope, token string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		user, pass, _ := r.BasicAuth()
		if user != id || strings.ReplaceAll(pass, "+", " ") != password || r.FormValue("grant_type") != "client_credentials" || r.FormValue("scope") != scope {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprintf(w, `{"error":"invalid_client","error_description":"not %s"}`, pass)
			return
		}
		_, _ = fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":3600}`, token)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestTokensAreUsedAgain: a token of an authorization server serves for as long as it is valid.
func TestTokensAreUsedAgain(t *testing.T) {
	t.Parallel()
	requests := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"access_token":"t%d","token_type":"Bearer","expires_in":3600}`, requests)
	}))
	t.Cleanup(s.Close)
	tokens := newTokens(OAuth{TokenURL: s.URL, ClientID: "a", ClientSecret: handlers.NewSecret("b")})
	for range 3 {
		if got, err := tokens.get(t.Context()); got != "t1" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
	tokens.last.Expiry = time.Now()
	if got, err := tokens.get(t.Context()); got != "t2" || err != nil {
		t.Errorf("after it has expired: %q, %v", got, err)
	}
}

// TestMSKIAM: the login of MSK is signed with the identity of the AWS SDK, and has no secret key.
func TestMSKIAM(t *testing.T) { //nolint:paralleltest // the SDK reads the environment
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_SESSION_TOKEN": "s3ssion", "AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull} {
		t.Setenv(name, value)
	}
	s := &secrets{}
	m := mechanism(SASL{Mechanism: SASLMSKIAM}, "", s)
	_, message, err := m.Authenticate(t.Context(), "b-1.shop.abc.c2.kafka.eu-central-1.amazonaws.com:9098")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"action":"kafka-cluster:Connect"`, "AKIDEXAMPLE", "/eu-central-1/kafka-cluster/", "s3ssion"} {
		if !strings.Contains(string(message), part) {
			t.Errorf("the login lacks %q: %s", part, message)
		}
	}
	if strings.Contains(string(message), "hunter2") || m.Name() != "AWS_MSK_IAM" || s.Redact("hunter2 s3ssion") != "[redacted] [redacted]" {
		t.Errorf("%s: %s", m.Name(), s.Redact("hunter2 s3ssion"))
	}
}
