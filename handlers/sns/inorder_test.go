//go:build testall

package sns

import (
	"bytes"
	"cmp"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// inOrder is a way to the emulator at endpoint on which the fields of forms are in the order of the
// numbers in their names. The emulator publishes entries in the order in which their fields come,
// and the SDK sorts those by name, with entry 10 before entry 2. SNS goes by the numbers.
func inOrder(tb testing.TB, endpoint string) string {
	tb.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		tb.Fatal(err)
	}
	s := httptest.NewServer(&httputil.ReverseProxy{
		Transport: &http.Transport{DisableKeepAlives: true},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host
			form, err := io.ReadAll(r.In.Body)
			if err != nil { // the client is gone
				form = nil
			}
			form = sorted(form)
			r.Out.Body, r.Out.ContentLength = io.NopCloser(bytes.NewReader(form)), int64(len(form))
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	})
	tb.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func sorted(form []byte) []byte {
	number := regexp.MustCompile(`member\.(\d+)\.`)
	of := func(field string) int {
		if m := number.FindStringSubmatch(field); m != nil {
			n, _ := strconv.Atoi(m[1]) // it is one
			return n
		}
		return 0
	}
	fields := strings.Split(string(form), "&")
	slices.SortStableFunc(fields, func(a, b string) int { return cmp.Compare(of(a), of(b)) })
	return []byte(strings.Join(fields, "&"))
}
