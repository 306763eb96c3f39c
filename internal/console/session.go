package console

import (
	"cmp"
	"crypto/rand"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
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
	// maxSessions bounds the logins with the same rights. The oldest goes first: a viewer ends no login of an operator.
	maxSessions = 256
)

// session is the id of a login, as the cookie has it. It is empty without a login.
type session string

// viewer is the sender of a request.
type viewer struct {
	session  session
	readOnly bool // logged in with the token that permits no action
	// actor is the name by a trusted proxy, "" for none, and misnamed why the proxy's name cannot be used.
	actor    string
	misnamed error
}

// by returns the name of the viewer in the audit.
func (v viewer) by() string { return cmp.Or(v.actor, consoleActor) }

// login is an open session.
type login struct {
	end      time.Time
	readOnly bool
}

// sessions are the open logins. They end with the process.
type sessions struct {
	mu  sync.Mutex
	all map[session]login
}

// open begins a session.
func (s *sessions) open(now time.Time, readOnly bool) session {
	id := session(rand.Text())

	s.mu.Lock()
	defer s.mu.Unlock()

	var oldest session
	alike := 0
	for other, l := range s.all {
		if !now.Before(l.end) {
			delete(s.all, other)
			continue
		}
		if l.readOnly != readOnly {
			continue
		}

		alike++
		if oldest == "" || l.end.Before(s.all[oldest].end) {
			oldest = other
		}
	}

	if alike >= maxSessions {
		delete(s.all, oldest)
	}
	if s.all == nil {
		s.all = make(map[session]login)
	}

	s.all[id] = login{now.Add(sessionLife), readOnly}
	return id
}

// find returns the login of an open session.
func (s *sessions) find(id session, now time.Time) (l login, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	l, open = s.all[id]
	return l, open && now.Before(l.end)
}

// closeAll ends all logins.
func (s *sessions) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.all)
}

func (s *sessions) close(id session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}

const (
	// loginBurst is how many logins one address may try at once, and loginEvery how long it waits
	// for each further one.
	loginBurst = 10
	loginEvery = 10 * time.Second
	// maxAddresses bounds memory.
	maxAddresses = 1024
)

// attempts limits how often one address may try to log in with a wrong token.
type attempts struct {
	mu  sync.Mutex
	all map[netip.Prefix]tried
}

// tried is what an address has tried.
type tried struct {
	full    time.Time // when all logins of the address may be tried again
	refused bool      // the last one was refused
}

// allow reports whether the client may try now, and whether an attempt that it may not make is the first one. Clients of one IPv6
// network count as one.
func (a *attempts) allow(remote string, now time.Time) (allowed, isFirst bool) {
	var from netip.Prefix // for clients whose address is unknown
	if at, err := netip.ParseAddrPort(remote); err == nil {
		addr := at.Addr().Unmap()
		from, _ = addr.Prefix(min(64, addr.BitLen())) // never longer than the address
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	last, known := a.all[from]
	full := last.full
	if full.Before(now) {
		full = now
	}

	full = full.Add(loginEvery)
	if full.Sub(now) > loginBurst*loginEvery {
		a.all[from] = tried{full: last.full, refused: true}
		return false, !last.refused
	}

	if !known && len(a.all) >= maxAddresses || a.all == nil {
		a.all = make(map[netip.Prefix]tried)
	}

	a.all[from] = tried{full: full}
	return true, false
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
type handler func(w http.ResponseWriter, r *http.Request, v viewer) error

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
		v, ok := d.viewer(r)
		if !ok && d.console.cfg.Token != nil {
			d.sendToLogin(w, r)
			return
		}

		if err := h(w, r, v); err != nil {
			d.console.fail(w, r, v, err)
		}
	})
}

// viewer returns the sender of a request, and whether the request has an open session.
func (d *door) viewer(r *http.Request) (v viewer, open bool) {
	v.actor, v.misnamed = d.console.cfg.Actor.of(r)
	if v.misnamed == nil {
		v.actor = cmp.Or(v.actor, d.console.cfg.Person)
	}

	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return v, false
	}

	l, open := d.sessions.find(session(cookie.Value), time.Now())
	if open {
		v.session = session(cookie.Value)
		v.readOnly = l.readOnly
	}
	return v, open
}

func (d *door) sendToLogin(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || r.PathValue("page") != "" { // the latter is a stream
		d.console.fail(w, r, viewer{}, failure{http.StatusUnauthorized, "You are not logged in, or the session has ended."})
		return
	}

	target := d.console.path + "login"
	if r.URL.Path != d.console.path {
		target += "?next=" + url.QueryEscape(r.URL.RequestURI())
	}

	http.Redirect(w, r, target, http.StatusSeeOther)
}

// act admits a form of a viewer who may act.
func (c *Console) act(h handler) handler {
	return func(w http.ResponseWriter, r *http.Request, v viewer) error {
		switch {
		case c.cfg.ReadOnly:
			return forbidden("This console is read-only (admin.read_only).")
		case v.readOnly:
			return forbidden("This login is read-only (admin.read_only_token). Log out, and log in with the other token to act.")
		case v.misnamed != nil:
			return badRequest("Nothing was done, because it cannot be recorded who acts: " + v.misnamed.Error() + ".")
		}

		if err := r.ParseForm(); err != nil {
			return badRequest("The form is malformed.")
		}
		return h(w, r, v)
	}
}

// loginBody is the data of the login page.
type loginBody struct {
	Next  string
	Wrong bool
}

// localPath returns the page after the login: always a page of the console,
// whatever the request names.
func (c *Console) localPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || strings.ContainsAny(next, "\\\r\n") {
		return c.path
	}
	if u.IsAbs() || u.Host != "" {
		return c.path
	}

	whole := strings.TrimSuffix(path.Clean(u.Path), "/") + "/" // .. may leave the console
	isInside := strings.HasPrefix(u.Path, c.path) && strings.HasPrefix(whole, c.path)
	if !isInside {
		return c.path
	}
	return next
}

func (d *door) showLogin(w http.ResponseWriter, r *http.Request) {
	next := d.console.localPath(r.URL.Query().Get("next"))
	if _, in := d.viewer(r); in || d.console.cfg.Token == nil {
		http.Redirect(w, r, next, http.StatusSeeOther) //nolint:gosec // localPath made it
		return
	}

	p := d.console.newPage(nil, "Log in", "login", viewer{}, loginBody{Next: next})
	if err := d.console.render(w, http.StatusOK, "login", p); err != nil {
		d.console.fail(w, r, viewer{}, err)
	}
}

func (d *door) login(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		d.console.fail(w, r, viewer{}, badRequest("The form is malformed."))
		return
	}

	next := d.console.localPath(r.PostForm.Get("next"))
	readOnly, ok := d.verify(strings.TrimSpace(r.PostForm.Get("token")))

	if !ok { // the right token gets in however many wrong ones were tried from the same proxy
		d.refuse(w, r, next)
		return
	}

	old, _ := d.viewer(r)
	d.sessions.close(old.session)
	d.setCookie(w, r, d.sessions.open(time.Now(), readOnly), sessionLife)
	d.console.cfg.Log.InfoContext(r.Context(), "console login", "read_only", readOnly, "remote", r.RemoteAddr)
	http.Redirect(w, r, next, http.StatusSeeOther) //nolint:gosec // localPath made it
}

// refuse answers a login with a wrong token.
func (d *door) refuse(w http.ResponseWriter, r *http.Request, next string) {
	log := d.console.cfg.Log
	allowed, isFirst := d.attempts.allow(r.RemoteAddr, time.Now())
	if !allowed {
		if isFirst { // a line for each would fill the log
			log.WarnContext(r.Context(), "too many console logins", "remote", r.RemoteAddr)
		}
		w.Header().Set("Retry-After", strconv.Itoa(int(loginEvery.Seconds())))
		text := "Too many logins were tried from your address. Wait ten seconds, and try again."
		d.console.fail(w, r, viewer{}, failure{http.StatusTooManyRequests, text})
		return
	}

	log.WarnContext(r.Context(), "console login failed", "remote", r.RemoteAddr)
	p := d.console.newPage(nil, "Log in", "login", viewer{}, loginBody{next, true})
	if err := d.console.render(w, http.StatusUnauthorized, "login", p); err != nil {
		d.console.fail(w, r, viewer{}, err)
	}
}

// verify reports whether a token is one of those that people log in with, and whether that login may only look.
func (d *door) verify(token string) (readOnly, ok bool) {
	cfg := &d.console.cfg
	if cfg.Token == nil || cfg.Token.Verify(token) {
		return false, true
	}
	return true, cfg.ReadOnlyToken != nil && cfg.ReadOnlyToken.Verify(token)
}

func (d *door) logout(w http.ResponseWriter, r *http.Request, v viewer) error {
	d.sessions.close(v.session)
	d.setCookie(w, r, "", -time.Second)
	http.Redirect(w, r, d.console.path, http.StatusSeeOther)
	return nil
}

func (d *door) setCookie(w http.ResponseWriter, r *http.Request, id session, life time.Duration) {
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // Secure under TLS: without, it would never come back
		Name:     cookieName,
		Value:    string(id),
		Path:     d.console.path,
		MaxAge:   int(life.Seconds()),
		HttpOnly: true,
		Secure:   r.TLS != nil,
		SameSite: http.SameSiteStrictMode,
	})
}
