package pubsub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"cloud.google.com/go/compute/metadata"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/internal/field"
)

const (
	scope = "https://www.googleapis.com/auth/pubsub"
	// credentialsVariable names the file of the application default credentials.
	credentialsVariable = "GOOGLE_APPLICATION_CREDENTIALS" //nolint:gosec // a name
	// freshFor is the least remaining lifetime of a token in use. It covers the duration of
	// a request and the difference between clocks.
	freshFor = time.Minute
)

// tokens gets tokens of access, each when it is needed, and keeps the last one.
type tokens struct {
	path   string // of a file with credentials, "" for the metadata server
	base   http.RoundTripper
	turn   chan struct{} // holds a value while no goroutine fetches a token
	latest *oauth2.Token // of whoever has the turn
	quota  string        // the project that requests are charged to, "" for the topic's
}

// newTokens looks for credentials as Google's libraries do, reads the file if there is one,
// and connects to nothing. file is relative to baseDir, "" for the default.
func newTokens(file, baseDir string, base http.RoundTripper) (*tokens, error) {
	t := &tokens{base: base, turn: make(chan struct{}, 1), quota: os.Getenv("GOOGLE_CLOUD_QUOTA_PROJECT")}
	t.turn <- struct{}{}

	switch {
	case file != "":
		t.path = file
		if !filepath.IsAbs(file) {
			t.path = filepath.Join(baseDir, file)
		}
	case os.Getenv(credentialsVariable) != "":
		t.path = os.Getenv(credentialsVariable)
	default:
		t.path = gcloudFile()
		if t.path == "" {
			return t, nil
		}
	}

	_, quota, err := t.read(context.Background()) //nolint:forbidigo // a file
	t.quota = cmp.Or(t.quota, quota)
	if err != nil {
		return nil, field.Errorf("credentials_file", "%w", err)
	}

	return t, nil
}

// gcloudFile returns the file that "gcloud auth application-default login" writes, "" if
// it does not exist.
func gcloudFile() string {
	dir := os.Getenv("APPDATA")
	if runtime.GOOS != "windows" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}

	path := filepath.Join(dir, "gcloud", "application_default_credentials.json")
	if _, err := os.Stat(path); err != nil { //nolint:gosec // where Google's libraries look as well
		return ""
	}

	return path
}

// read reads the file, whose content is in no error.
func (t *tokens) read(ctx context.Context) (source oauth2.TokenSource, quota string, err error) {
	data, err := os.ReadFile(t.path)
	if err != nil {
		return nil, "", fmt.Errorf("cannot be read: %w", err)
	}

	var head struct {
		Type  google.CredentialsType `json:"type"`
		Quota string                 `json:"quota_project_id"`
	}
	known := []google.CredentialsType{
		google.ServiceAccount,
		google.AuthorizedUser,
		google.ExternalAccount,
		google.ExternalAccountAuthorizedUser,
		google.ImpersonatedServiceAccount,
	}

	if json.Unmarshal(data, &head) != nil || !slices.Contains(known, head.Type) {
		return nil, "", fmt.Errorf("%s is not a file of credentials of Google Cloud: JSON with a type such as service_account", t.path)
	}

	found, err := google.CredentialsFromJSONWithType(ctx, data, head.Type, scope)
	if err != nil {
		return nil, "", fmt.Errorf("%s is not complete as credentials of the type %s", t.path, head.Type)
	}

	return found.TokenSource, head.Quota, nil
}

// authorize puts a token into a request, and returns it.
func (t *tokens) authorize(ctx context.Context, req *http.Request) (token string, err error) {
	select {
	case <-t.turn:
		defer func() { t.turn <- struct{}{} }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}

	if t.latest == nil || !t.latest.Expiry.IsZero() && time.Until(t.latest.Expiry) < freshFor {
		fetched, err := t.fetch(ctx)
		if err != nil {
			return "", fmt.Errorf("getting a token: %w", outcome.WithoutURL(err))
		}
		t.latest = fetched
	}

	t.latest.SetAuthHeader(req)
	if t.quota != "" {
		req.Header.Set("X-Goog-User-Project", t.quota)
	}

	return t.latest.AccessToken, nil
}

// forget has another token fetched in place of this one, which was not accepted. Who has
// the turn is fetching one already.
func (t *tokens) forget(token string) {
	select {
	case <-t.turn:
		defer func() { t.turn <- struct{}{} }()
	default:
		return
	}
	if t.latest != nil && t.latest.AccessToken == token {
		t.latest = nil
	}
}

// roundTripper is an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls f.
func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// fetch asks for a token. The library's sources keep the context that they are made with,
// and not all of them ask under it; so each is made for one token, with a client that
// does.
func (t *tokens) fetch(ctx context.Context) (*oauth2.Token, error) {
	client := &http.Client{Transport: roundTripper(func(req *http.Request) (*http.Response, error) {
		return t.base.RoundTrip(req.WithContext(ctx))
	})}

	if t.path == "" {
		return ofMachine(ctx, client)
	}

	source, _, err := t.read(context.WithValue(ctx, oauth2.HTTPClient, client))
	if err != nil {
		return nil, fmt.Errorf("credentials_file %w", err)
	}

	token, err := source.Token()
	if refusal, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		err = errors.New(sayRefusal(refusal))
		isForGood := refusal.Response != nil && refusal.Response.StatusCode/100 == 4
		if isForGood && refusal.Response.StatusCode != http.StatusTooManyRequests {
			return nil, delivery.Unauthorized(err)
		}
		return nil, err
	}

	return token, err
}

// sayRefusal repeats only the parts of an answer that the protocol intends
// for people.
func sayRefusal(refusal *oauth2.RetrieveError) string {
	var said struct {
		Code string `json:"error"`
		Text string `json:"error_description"`
	}
	text := "refused"
	if refusal.Response != nil {
		text = refusal.Response.Status
	}
	if json.Unmarshal(refusal.Body, &said) == nil && said.Code != "" {
		text += ": " + said.Code + ": " + said.Text
	}
	return text + " (check the key and the clock of this machine)"
}

// ofMachine asks the metadata server of Google Cloud for a token of the service account that
// the machine runs as.
func ofMachine(ctx context.Context, client *http.Client) (*oauth2.Token, error) {
	text, err := metadata.NewClient(client).GetWithContext(ctx, "instance/service-accounts/default/token?scopes="+url.QueryEscape(scope))
	if err != nil {
		return nil, fmt.Errorf("there is neither credentials_file nor %s, and the metadata server does not give one: %w",
			credentialsVariable, err)
	}

	var out struct {
		Token   string `json:"access_token"`
		Type    string `json:"token_type"`
		Seconds int64  `json:"expires_in"`
	}

	if err := json.Unmarshal([]byte(text), &out); err != nil || out.Token == "" {
		return nil, errors.New("the metadata server does not answer as that of Google Cloud")
	}

	return &oauth2.Token{
		AccessToken: out.Token,
		TokenType:   out.Type,
		Expiry:      time.Now().Add(time.Duration(out.Seconds) * time.Second),
	}, nil
}
