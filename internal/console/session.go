package console

import (
	"crypto/rand"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// cookieName is the name of the session's cookie.
	cookieName = "notifyd_session"
	// sessionLife is how long a login lasts: a working day.
	sessionLife = 8 * time.Hour
	// maxSessions bounds memory. The oldest goes first.
	maxSessions = 256
)

// session is the id of a login, as the cookie has it. It is empty without a login.
type session string

// sessions are the open logins. They end with the process.
type sessions struct {
	mu   sync.Mutex
	ends map[session]time.Time
}

// open begins a session.
func (s *sessions) open(now time.Time) session {
	id := session(rand.Text())
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest session
	for other, end := range s.ends {
		if !now.Before(end) {
			delete(s.ends, other)
		} else if oldest == "" || end.Before(s.ends[oldest]) {
			oldest = other
		}
	}
	if len(s.ends) >= maxSessions {
		delete(s.ends, oldest)
	}
	if s.ends == nil {
		s.ends = make(map[session]time.Time)
	}
	s.ends[id] = now.Add(sessionLife)
	return id
}

// lives reports whether the session is open.
func (s *sessions) lives(id session, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, ok := s.ends[id]
	return ok && now.Before(end)
}

func (s *sessions) close(id session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ends, id)
}

const (
	// loginBurst is how many logins one address may try at once, and loginEvery how long it waits
	// for each further one.
	loginBurst = 10
	loginEvery = 10 * time.Second
	// maxAddresses bounds memory.
	maxAddresses = 1024
)

// attempts limits how often one address may try to log in.
type attempts struct {
	mu  sync.Mutex
	all map[netip.Prefix]time.Time // when all logins of an address may be tried again
}

// allow reports whether the client may try now. Clients of one IPv6 network count as one.
func (a *attempts) allow(remote string, now time.Time) bool {
	var from netip.Prefix // for clients whose address is unknown
	if at, err := netip.ParseAddrPort(remote); err == nil {
		addr := at.Addr().Unmap()
		from, _ = addr.Prefix(min(64, addr.BitLen())) // never longer than the address
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	full, known := a.all[from]
	if full.Before(now) {
		full = now
	}
	if full = full.Add(loginEvery); full.Sub(now) > loginBurst*loginEvery {
		return false
	}
	if !known && len(a.all) >= maxAddresses || a.all == nil {
		a.all = make(map[netip.Prefix]time.Time)
	}
	a.all[from] = full
	return true
}

// isLoopbackHost reports whether the Host of a request is a name of this machine
// that no DNS server controls.
func isLoopbackHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if strings.EqualFold(name, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.Unmap().IsLoopback()
}

// handler serves a page to an authorized viewer. Its error is shown.
type handler func(w http.ResponseWriter, r *http.Request, s session) error

// door lets viewers in: it has the pages of the login, and knows the open sessions.
type door struct {
	console  *Console
	sessions sessions
	attempts attempts
}

// inside admits requests with a session, and redirects others to the login.
// Without a token every request is admitted.
func (d *door) inside(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, ok := d.session(r)
		if !ok && d.console.cfg.Token != nil {
			d.sendToLogin(w, r)
			return
		}
		if err := h(w, r, s); err != nil {
			d.console.fail(w, r, s, err)
		}
	})
}

// session returns the open session of the request's cookie.
func (d *door) session(r *http.Request) (session, bool) {
	cookie, err := r.Cookie(cookieName)
	if err != nil || !d.sessions.lives(session(cookie.Value), time.Now()) {
		return "", false
	}
	return session(cookie.Value), true
}

func (d *door) sendToLogin(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || strings.HasPrefix(r.URL.Path, Path+"live/") {
		d.console.fail(w, r, "", failure{http.StatusUnauthorized, "You are not logged in, or the session has ended."})
		return
	}
	target := Path + "login"
	if r.URL.Path != Path {
		target += "?next=" + url.QueryEscape(r.URL.RequestURI())
	}
	http.Redirect(w, r, target, http.StatusSeeOther)
}

// act admits a form, unless the console is read-only.
func (c *Console) act(h handler) handler {
	return func(w http.ResponseWriter, r *http.Request, s session) error {
		if c.cfg.ReadOnly {
			return forbidden("This console is read-only (admin.read_only).")
		}
		if err := r.ParseForm(); err != nil {
			return badRequest("The form is malformed.")
		}
		return h(w, r, s)
	}
}

// loginBody is the data of the login page.
type loginBody struct {
	Next  string
	Wrong bool
}

// localPath returns the page after the login: always a page of the console,
// whatever the request names.
func localPath(next string) string {
	if strings.HasPrefix(next, Path) && !strings.ContainsAny(next, "\\\r\n") {
		return next
	}
	return Path
}

func (d *door) showLogin(w http.ResponseWriter, r *http.Request) {
	next := localPath(r.URL.Query().Get("next"))
	if _, in := d.session(r); in || d.console.cfg.Token == nil {
		http.Redirect(w, r, next, http.StatusSeeOther) //nolint:gosec // localPath made it
		return
	}
	if err := d.console.render(w, http.StatusOK, "login", d.console.newPage("Log in", "login", "", loginBody{Next: next})); err != nil {
		d.console.fail(w, r, "", err)
	}
}

func (d *door) login(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		d.console.fail(w, r, "", badRequest("The form is malformed."))
		return
	}
	if !d.attempts.allow(r.RemoteAddr, time.Now()) {
		d.console.cfg.Log.WarnContext(r.Context(), "too many logins at the console", "remote", r.RemoteAddr)
		w.Header().Set("Retry-After", strconv.Itoa(int(loginEvery.Seconds())))
		d.console.fail(w, r, "", failure{http.StatusTooManyRequests, "Too many logins were tried from your address. Wait ten seconds, and try again."})
		return
	}
	next := localPath(r.PostForm.Get("next"))
	if d.console.cfg.Token != nil && !d.console.cfg.Token.Verify(strings.TrimSpace(r.PostForm.Get("token"))) {
		d.console.cfg.Log.WarnContext(r.Context(), "failed login at the console", "remote", r.RemoteAddr)
		if err := d.console.render(w, http.StatusUnauthorized, "login", d.console.newPage("Log in", "login", "", loginBody{next, true})); err != nil {
			d.console.fail(w, r, "", err)
		}
		return
	}
	if old, ok := d.session(r); ok {
		d.sessions.close(old)
	}
	setCookie(w, r, d.sessions.open(time.Now()), sessionLife)
	d.console.cfg.Log.InfoContext(r.Context(), "login at the console", "remote", r.RemoteAddr)
	http.Redirect(w, r, next, http.StatusSeeOther) //nolint:gosec // localPath made it
}

func (d *door) logout(w http.ResponseWriter, r *http.Request, s session) error {
	d.sessions.close(s)
	setCookie(w, r, "", -time.Second)
	http.Redirect(w, r, Path, http.StatusSeeOther)
	return nil
}

func setCookie(w http.ResponseWriter, r *http.Request, id session, life time.Duration) {
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // Secure under TLS: without, it would never come back
		Name: cookieName, Value: string(id), Path: Path, MaxAge: int(life.Seconds()),
		HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	})
}
