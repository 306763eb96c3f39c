package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/http/pprof"
	"strings"

	"github.com/notifyd/notifyd/internal/secret"
)

// guard lets those pass who show the token; everybody if there is none.
type guard struct {
	sum  [sha256.Size]byte
	open bool
}

func newGuard(token secret.String) guard {
	return guard{sum: sha256.Sum256([]byte(token.Reveal())), open: token.IsZero()}
}

// knows reports whether a request shows the token. It takes as long for a wrong one
// as for the right one, whatever their lengths.
func (g guard) knows(r *http.Request) bool {
	if g.open {
		return true
	}
	scheme, shown, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(shown)))
	return subtle.ConstantTimeCompare(sum[:], g.sum[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// keep lets nobody else to h.
func (g guard) keep(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.knows(r) {
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
