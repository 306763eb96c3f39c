package config_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/config"
)

// TestDiffShowsNoSecrets: a difference in secrets alone is named, and no value of
// either file is shown.
func TestDiffShowsNoSecrets(t *testing.T) {
	t.Parallel()
	old := mustParse(t, full)
	is := mustParse(t, strings.NewReplacer("s3cret", "0ther", "hunter2", "hunter3", "t0ken", "t1ken").Replace(full))
	if d := config.Diff(old, mustParse(t, full)); !d.Empty() || len(d.Names()) != 0 {
		t.Errorf("a file differs from itself: %+v", d)
	}
	d := config.Diff(old, is)
	if want := []string{"destinations.mail changed", "database.url"}; !slices.Equal(d.Names(), want) {
		t.Errorf("got %v, want %v", d.Names(), want)
	}
	var paths []string
	for _, c := range append(d.Destinations[0].Settings, d.Settings...) {
		if !c.Hidden() {
			t.Errorf("%+v", c)
		}
		paths = append(paths, c.Path)
	}
	if want := []string{"password", "tokens.api", "database.url"}; !slices.Equal(slices.Sorted(slices.Values(paths)), slices.Sorted(slices.Values(want))) {
		t.Errorf("got %v", paths)
	}
	text := fmt.Sprintf("%+v", d)
	for _, secret := range []string{"s3cret", "0ther", "hunter", "t0ken", "t1ken"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s is shown in %s", secret, text)
		}
	}
}

// TestRouteOf: the file's routes have the same meaning as in the relay.
func TestRouteOf(t *testing.T) {
	t.Parallel()
	c := mustParse(t, "version: 1\ndestinations: {a: {type: log}, b: {type: log}}\nroutes:\n"+
		"  - {match: 'a.*', to: a}\n  - {match: 'a.b.*', to: b}\n  - {match: a.b.c, to: [a, b]}\n  - {match: one, to: a}\n")
	for typ, want := range map[string]string{"a.x": "a", "a.b.x": "b", "a.b.c": "a b", "one": "a", "two": "", "a": "", "a.b": "a", "a.": "a"} {
		if got := strings.Join(c.RouteOf(typ), " "); got != want {
			t.Errorf("%s goes to %q, want %q", typ, got, want)
		}
	}
	for pattern, want := range map[string]bool{"a.*": true, "a.z.*": true, "a.b.c": true, "a.q": true, "one": true, "one.*": false, "*": false, "z": false} {
		if c.Covers(pattern) != want {
			t.Errorf("%s is covered: %t", pattern, !want)
		}
	}
}
