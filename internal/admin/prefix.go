package admin

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/internal/field"
)

// consolePath is the path of the console on a server without a prefix.
const consolePath = "/console/"

// prefixForm is the form of a prefix: segments of characters that no URL escapes, and none of dots, which a URL resolves.
var prefixForm = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+$`)

// CheckPrefix returns an error about the setting at path for a prefix that cannot be used, and nil for an empty one.
func CheckPrefix(path, prefix string) error {
	first, _, _ := strings.Cut(strings.TrimPrefix(prefix, "/"), "/")
	endpoints := []string{"console", "debug", "healthz", "livez", "metrics", "readyz", "version"}

	switch {
	case prefix == "":
		return nil
	case !prefixForm.MatchString(prefix):
		return field.Errorf(path, "must be a path of letters, digits, and - _ . ~, such as /ops, "+
			"with a slash at the beginning and none at the end")
	case slices.Contains(endpoints, first): // a proxy may cut the prefix off, and the path would be ambiguous
		return field.Errorf(path, "must not begin with /%s, where an endpoint itself is", first)
	default:
		return nil
	}
}

// prefixed serves requests with and without the prefix, because some proxies cut it off and others do not: h gets all of them
// with the prefix.
func prefixed(prefix string, h http.Handler) http.Handler {
	if prefix == "" {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == prefix || strings.HasPrefix(r.URL.Path, prefix+"/") {
			h.ServeHTTP(w, r)
			return
		}

		whole := new(http.Request)
		*whole = *r
		whole.URL = new(url.URL)
		*whole.URL = *r.URL
		whole.URL.Path = prefix + "/" + strings.TrimPrefix(r.URL.Path, "/")
		if r.URL.RawPath != "" {
			whole.URL.RawPath = prefix + "/" + strings.TrimPrefix(r.URL.RawPath, "/")
		}

		h.ServeHTTP(w, whole)
	})
}
