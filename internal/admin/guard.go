package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/http/pprof"
	"strings"

	"github.com/notifyd/notifyd/internal/secret"
)

// Verifier recognizes a token without holding it. NewVerifier creates one.
type Verifier struct{ sum [sha256.Size]byte }

// NewVerifier returns the verifier of this token, which must not be empty.
func NewVerifier(token secret.String) Verifier {
	return Verifier{sha256.Sum256([]byte(token.Reveal()))}
}

// Verify reports whether this is the token. It takes as long for a wrong token as
// for the right one, whatever their lengths.
func (v Verifier) Verify(token string) bool {
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], v.sum[:]) == 1
}

// guard lets requests with the token pass; all requests if there is no token.
type guard struct {
	Verifier

	open bool
}

func newGuard(token secret.String) guard {
	return guard{Verifier: NewVerifier(token), open: token.IsZero()}
}

// allows reports whether a request has the token.
func (g guard) allows(r *http.Request) bool {
	if g.open {
		return true
	}
	scheme, shown, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return g.Verify(strings.TrimSpace(shown)) && strings.EqualFold(scheme, "Bearer")
}

// protect lets only those requests through to h.
func (g guard) protect(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.allows(r) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="notifyd"`)
			say(w, http.StatusUnauthorized, "this needs the token of admin.token: Authorization: Bearer <token>\n")
			return
		}
		h.ServeHTTP(w, r)
	})
}

// profiles serves pprof. The command line is left out: it may hold a connection string.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}
