//go:build testall

package pubsub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestTokens: one token is for many requests, and another one is fetched when it is not
// accepted any more.
func TestTokens(t *testing.T) {
	t.Parallel()
	top := newTopic(t, "")
	g := startGoogle(t, top.endpoint)
	cfg := g.config(t, top.name)
	cfg.CredentialsFile = g.keyFile(t, "quota_project_id", "payer")
	h := deliverytest.Open(t, New, cfg)
	if errs := h.DeliverBatch(testenv.Within(t, patience), events(40, "a", "b", "c", "d")); deliverytest.Classes(errs) != deliverytest.Times("delivered", 40) || g.issued.Load() != 1 {
		t.Errorf("%d tokens for one batch: %v", g.issued.Load(), errs)
	}
	if got := g.quota.Load(); got != "payer" {
		t.Errorf("charged to %v", got)
	}
	g.expired.Store(1)
	err := h.Deliver(testenv.Within(t, patience), event(1, `{}`))
	if deliverytest.Class(err) != "unavailable" || !strings.Contains(err.Error(), "check the credentials") || strings.Contains(err.Error(), tokenPrefix) {
		t.Errorf("got %v", err)
	}
	if err := h.Deliver(testenv.Within(t, patience), event(1, `{}`)); err != nil || g.issued.Load() != 2 {
		t.Errorf("%d tokens: %v", g.issued.Load(), err)
	}
	// A file that is replaced counts from the next token on.
	replaced, err := os.ReadFile(g.keyFile(t, "client_email", "stranger@shop.iam.gserviceaccount.com"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.CredentialsFile, replaced, 0o600); err != nil {
		t.Fatal(err)
	}
	g.expired.Store(2)
	for _, want := range []string{"UNAUTHENTICATED", "getting a token: 400 Bad Request: invalid_grant: Invalid grant: account not found (check"} {
		err := h.Deliver(testenv.Within(t, patience), event(1, `{}`))
		if deliverytest.Class(err) != "unavailable" || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestTokenIsAwaited: a delivery whose context is done does not wait for the server of tokens.
func TestTokenIsAwaited(t *testing.T) {
	t.Parallel()
	asked, end := make(chan struct{}), make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the end of the connection is noticed
		close(asked)
		select {
		case <-end:
		case <-r.Context().Done():
		}
	}))
	defer silent.Close()
	defer close(end)
	g := startGoogle(t, "http://localhost")
	cfg := g.config(t, "orders")
	cfg.CredentialsFile = g.keyFile(t, "token_uri", silent.URL)
	cfg.RequestTimeout = patience / 4
	h := deliverytest.Open(t, New, cfg)
	ctx, cancel := context.WithCancelCause(testenv.Within(t, patience))
	cause := errors.New("the relay stops")
	go func() {
		<-asked
		cancel(cause)
	}()
	if err := h.Deliver(ctx, event(1, `{}`)); !errors.Is(err, cause) || delivery.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
}

// TestCheck asks for the right to publish.
func TestCheck(t *testing.T) {
	t.Parallel()
	top := newTopic(t, "")
	g := startGoogle(t, top.endpoint)
	h := deliverytest.Open(t, New, g.config(t, top.name))
	if err := h.Check(testenv.Within(t, patience)); err != nil {
		t.Error(err)
	}
	for rights, want := range map[string]string{`{}`: "lack pubsub.topics.publish", `<html>`: "not from Pub/Sub"} {
		g.rights = rights
		if err := h.Check(testenv.Within(t, patience)); deliverytest.Class(err) != "unavailable" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", rights, err)
		}
	}
	cfg := top.config()
	if err := deliverytest.Open(t, New, cfg).Check(testenv.Within(t, patience)); err != nil {
		t.Error(err)
	}
	cfg.Topic = "nowhere"
	if err := deliverytest.Open(t, New, cfg).Check(testenv.Within(t, patience)); deliverytest.Class(err) != "unavailable" || !strings.Contains(err.Error(), "create the topic") {
		t.Errorf("got %v", err)
	}
}

// TestMetadataServer: on Google's machines there is no file.
func TestMetadataServer(t *testing.T) {
	top := newTopic(t, "")
	g := startGoogle(t, top.endpoint)
	answer := fmt.Sprintf(`{"access_token": "%s1", "token_type": "Bearer", "expires_in": 3599}`, tokenPrefix)
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Metadata-Flavor") != "Google" || r.URL.Path != "/computeMetadata/v1/instance/service-accounts/default/token" || r.FormValue("scopes") != scope {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer metadata.Close()
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(metadata.URL, "http://"))
	cfg := g.config(t, top.name)
	cfg.CredentialsFile = ""
	if err := deliverytest.Open(t, New, cfg).Deliver(testenv.Within(t, patience), event(1, `{}`)); err != nil {
		t.Error(err)
	}
	answer = `{}`
	if err := deliverytest.Open(t, New, cfg).Deliver(testenv.Within(t, patience), event(1, `{}`)); deliverytest.Class(err) != "unavailable" || !strings.Contains(err.Error(), "metadata server") {
		t.Errorf("got %v", err)
	}
}

// TestDefaultCredentials: the environment names the file, or the emulator.
func TestDefaultCredentials(t *testing.T) {
	top := newTopic(t, "")
	g := startGoogle(t, top.endpoint)
	cfg := g.config(t, top.name)
	t.Setenv(credentialsVariable, cfg.CredentialsFile)
	cfg.CredentialsFile = ""
	if err := deliverytest.Open(t, New, cfg).Deliver(testenv.Within(t, patience), event(1, `{}`)); err != nil {
		t.Error(err)
	}
	home := t.TempDir()
	dir := filepath.Join(home, ".config", "gcloud")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(os.Getenv(credentialsVariable), filepath.Join(dir, "application_default_credentials.json")); err != nil {
		t.Fatal(err)
	}
	t.Setenv(credentialsVariable, "")
	t.Setenv("HOME", home)
	t.Setenv("APPDATA", filepath.Join(home, ".config"))
	if err := deliverytest.Open(t, New, cfg).Deliver(testenv.Within(t, patience), event(2, `{}`)); err != nil {
		t.Error(err)
	}
	t.Setenv(emulatorVariable, strings.TrimPrefix(top.endpoint, "http://"))
	if err := deliverytest.Open(t, New, Config{Project: "shop", Topic: top.name}).Deliver(testenv.Within(t, patience), event(3, `{}`)); err != nil {
		t.Error(err)
	}
	if got := top.ids(t); len(got) != 3 {
		t.Errorf("arrived: %v", got)
	}
	t.Setenv(emulatorVariable, "http://a:b@localhost")
	if _, err := New(Config{Project: "shop", Topic: top.name}); field.Path(err) != "endpoint" {
		t.Errorf("got %v", err)
	}
}

// TestCredentialsFile: what is wrong with a file is found at once, and not repeated.
func TestCredentialsFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, c := range map[string]struct{ content, want string }{
		"missing.json": {"", "cannot be read"},
		"text.json":    {"sesame-open", "is not a file of credentials"},
		"other.json":   {`{"type": "sesame-open"}`, "is not a file of credentials"},
		"half.json":    {`{"type": "external_account", "audience": "sesame-open"}`, "is not complete"},
	} {
		if c.content != "" {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := New(Config{Topic: "projects/shop/topics/orders", CredentialsFile: name}, handlers.WithBaseDir(dir))
		if field.Path(err) != "credentials_file" || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
