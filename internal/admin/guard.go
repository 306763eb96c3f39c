package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/field"
)

// minToken is the length of a token that cannot be guessed, in bytes.
const minToken = 16

// CheckToken returns an error about the setting at path for a token that is too short, or that no header can carry, and nil for
// an empty one.
func CheckToken(path string, token handlers.Secret) error {
	text := token.Reveal()
	switch {
	case text == "":
		return nil
	case len(text) < minToken:
		return field.Errorf(path, "is shorter than %d characters: create one with `openssl rand -hex 32`", minToken)
	case strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		return field.Errorf(path, "has characters that a header cannot carry: use letters and digits")
	default:
		return nil
	}
}

// Verifier recognizes a token without holding it. NewVerifier creates one. It is safe for concurrent use.
type Verifier struct {
	sum atomic.Pointer[[sha256.Size]byte]
}

// NewVerifier returns the verifier of this token, which must not be empty.
func NewVerifier(token handlers.Secret) *Verifier {
	v := &Verifier{}
	v.Replace(token)
	return v
}

// Replace makes this the token, in place of the one before, and reports whether it is another one.
func (v *Verifier) Replace(token handlers.Secret) (changed bool) {
	sum := sha256.Sum256([]byte(token.Reveal()))
	before := v.sum.Swap(&sum)
	return before == nil || *before != sum
}

// Verify reports whether this is the token. It takes as long for a wrong token as
// for the right one, whatever their lengths.
func (v *Verifier) Verify(token string) bool {
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], v.sum.Load()[:]) == 1
}

// guard allows requests with the token. If no token is set, it allows all requests, except requests for a foreign host
// name where the server listens on loopback.
type guard struct {
	*Verifier

	open bool
	host string // of the configured address
}

func newGuard(token *Verifier, address string) guard {
	g := guard{Verifier: token, open: token == nil}
	g.host, _, _ = net.SplitHostPort(address) // "" where the program listens
	return g
}

// isLocal reports whether a request came in over loopback, so that its sender runs on this machine.
func isLocal(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && at.IP.IsLoopback()
}

// knows reports whether the request names this server as its host. Without a token, only programs on this machine can reach a
// server on loopback. A web page whose host name resolves to this machine (DNS rebinding) could otherwise read the answers.
func (g guard) knows(r *http.Request) bool {
	host := r.Host
	if !g.open || !isLocal(r) || host == "" { // every browser sends a Host
		return true
	}

	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}

	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	_, err := netip.ParseAddr(host)
	isOwn := host != "" && strings.EqualFold(host, g.host)
	return err == nil || strings.EqualFold(host, "localhost") || isOwn
}

// allows reports whether the request has the token, or no token is set.
func (g guard) allows(r *http.Request) bool {
	if g.open {
		return g.knows(r)
	}

	scheme, shown, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return g.Verify(strings.TrimSpace(shown)) && strings.EqualFold(scheme, "Bearer")
}

// protect passes only allowed requests to h.
func (g guard) protect(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.knows(r) {
			say(w, http.StatusMisdirectedRequest, "without a token this answers to an address, to localhost, "+
				"or to the host of admin.listen only: set admin.token\n")
			return
		}

		if !g.allows(r) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="notifyd"`)
			say(w, http.StatusUnauthorized, "this needs the token (admin.token): Authorization: Bearer <token>\n")
			return
		}

		h.ServeHTTP(w, r)
	})
}
