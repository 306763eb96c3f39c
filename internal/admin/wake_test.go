package admin

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/internal/secret"
)

// TestWake: who may wake the relay, and how.
func TestWake(t *testing.T) {
	t.Parallel()
	var woken atomic.Int64
	wake := func() { woken.Add(1) }
	guarded := Access{Address: serve(t, Config{Token: secret.New(token), Wake: wake})}
	open := Access{Address: serve(t, Config{Wake: wake})}
	none := Access{Address: serve(t, Config{})}
	right := guarded
	right.Token = secret.New(token)
	for _, c := range []struct {
		what   string
		access Access
		method string
		header http.Header
		want   int
	}{
		{"with the token", right, http.MethodPost, nil, http.StatusOK},
		{"without the token", guarded, http.MethodPost, nil, http.StatusUnauthorized},
		{"without any token", open, http.MethodPost, nil, http.StatusOK},
		{"a page of another origin", open, http.MethodPost, http.Header{"Sec-Fetch-Site": {"cross-site"}}, http.StatusForbidden},
		{"an older browser's", open, http.MethodPost, http.Header{"Origin": {"https://shop.example.com"}}, http.StatusForbidden},
		{"a link", open, http.MethodGet, nil, http.StatusMethodNotAllowed},
		{"no relay", none, http.MethodPost, nil, http.StatusNotFound},
	} {
		before := woken.Load()
		request, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+c.access.Address+"/wake", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if c.header != nil {
			request.Header = c.header
		}
		if !c.access.Token.IsZero() {
			request.Header.Set("Authorization", "Bearer "+c.access.Token.Reveal())
		}
		response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if does := woken.Load() > before; response.StatusCode != c.want || does != (c.want == http.StatusOK) {
			t.Errorf("%s: %s, woken: %t", c.what, response.Status, does)
		}
	}
	if code, body, err := right.Post(t.Context(), "/wake"); code != http.StatusOK || string(body) != "ok\n" || err != nil {
		t.Errorf("%d, %q, %v", code, body, err)
	}
}

// TestNote: what there is to say beside a condition that is fulfilled.
func TestNote(t *testing.T) {
	t.Parallel()
	note := "resting"
	fine := func() error { return nil }
	a := Access{Address: serve(t, Config{Checks: []Check{
		{Name: "one", Do: fine, Note: func() string { return note }}, {Name: "two", Do: fine, Note: func() string { return "" }},
	}})}
	if text := a.must(t, "/readyz?verbose", http.StatusOK); text != "[+] one: ok, resting\n[+] two: ok\n" {
		t.Errorf("%q", text)
	}
}
