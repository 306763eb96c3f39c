package admin

import (
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/handlers"
)

// TestLive: a process that answers is not live for that alone. Who shows no token does not learn the reason.
func TestLive(t *testing.T) {
	t.Parallel()
	var lost atomic.Bool
	address := serve(t, Config{Token: NewVerifier(handlers.NewSecret(token)), Live: func() error {
		if lost.Load() {
			return errors.New("event 42 is due for mail and not claimed")
		}
		return nil
	}})
	right, stranger := Access{Address: address, Token: handlers.NewSecret(token)}, Access{Address: address}
	right.must(t, "/livez", http.StatusOK)
	stranger.must(t, "/livez", http.StatusOK)
	lost.Store(true)
	if text := right.must(t, "/livez", http.StatusServiceUnavailable); text != "event 42 is due for mail and not claimed\n" {
		t.Errorf("%q", text)
	}
	if text := stranger.must(t, "/livez", http.StatusServiceUnavailable); text != "not live; with the token the answer says why\n" {
		t.Errorf("%q", text)
	}
}

// TestFailures: each failed check has a separate line.
func TestFailures(t *testing.T) {
	t.Parallel()
	address := serve(t, Config{Checks: []Check{
		{Name: "started", Do: func() error { return nil }},
		{Name: "relay", Do: func() error { return errors.Join(errors.New("one"), errors.New("two")) }},
		{Name: "listener", Advisory: true, Do: func() error { return errors.New("polls") }},
	}})
	a := Access{Address: address}
	if got, want := Failures(a.must(t, "/readyz?verbose", http.StatusServiceUnavailable)), []string{"relay: one", "relay: two"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Failures("not ready\n"); !slices.Equal(got, []string{"not ready"}) {
		t.Errorf("%q", got)
	}
}
