// Package admin serves the endpoints for operators and their tools: liveness,
// readiness, metrics, and the console.
package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// readTimeout bounds a request: its body is small or empty.
	readTimeout = 5 * time.Second
	// writeTimeout bounds an answer, its one query to the database included.
	writeTimeout = 10 * time.Second
	// profileTimeout is the same for a profile, which takes long on a busy machine.
	profileTimeout = time.Minute
	// idleTimeout closes idle connections.
	idleTimeout = time.Minute
	// closeTimeout bounds the open requests when the daemon stops.
	closeTimeout = time.Second
	// maxHeader bounds a request's headers, in bytes.
	maxHeader = 4 << 10
)

// Check is a condition of readiness: nil means fulfilled, and the text of an
// error is shown to the client.
type Check struct {
	Name string
	Do   func() error
	// Advisory marks a condition that is shown and does not change the status code, because neither a restart nor less
	// traffic would fix its failure.
	Advisory bool
}

// Server is an HTTP server. Listen opens it, Run serves.
type Server struct {
	listener net.Listener
	http     *http.Server
	log      *slog.Logger
}

// Config configures a server.
type Config struct {
	// Address is the host:port to listen on. Setting names it in errors; admin.listen by default.
	Address, Setting string
	// Prefix is the path below which clients see the endpoints, such as "/ops"; "" for none. See [CheckPrefix].
	Prefix string
	// Version is the answer of /version.
	Version string
	// Metrics are served at /metrics.
	Metrics prometheus.Gatherer
	// Checks decide the answer of /readyz.
	Checks []Check
	// Live decides the answer of /livez: an error explains why only a restart is likely to help. Live must not block,
	// even if the rest of the daemon hangs. Nil is always live.
	Live func() error
	// TLS are the files of the server's certificate. They are read again when they change.
	TLS Files
	// Token is required for everything but /livez and the bare answer of /readyz;
	// nil for none.
	Token *Verifier
	// Profiles serves /debug/pprof/; nil for no profiles.
	Profiles http.Handler
	// Console serves /console/; nil for no console. The guard does not check its requests for the token, because a
	// browser cannot send one. The console has a separate login.
	Console http.Handler
}

// Listen opens the address. It fails at once if the address is unavailable or the
// certificate cannot be used, so that a mistake shows when the daemon starts. Run
// closes the listener.
func Listen(ctx context.Context, cfg Config, log *slog.Logger) (*Server, error) {
	var pair *keyPair
	if cfg.TLS != (Files{}) {
		loaded, err := loadKeyPair(cfg.TLS, log)
		if err != nil {
			return nil, err
		}
		pair = loaded
	}

	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w%s", cmp.Or(cfg.Setting, "admin.listen"), err, listenCure(err))
	}

	if pair != nil {
		l = tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get, NextProtos: []string{"http/1.1"}})
	}

	connections := &conns{most: maxConns, all: make(map[net.Conn]client)}
	server := &http.Server{
		Handler:           Handler(cfg),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState:         connections.note,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return &Server{listener: l, log: log, http: server}, nil
}

// listenCure names what to do about an address that cannot be listened on.
func listenCure(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return ": another process has this port, perhaps another relay: give each program of a host its own address"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return ": no network interface of this host has the address: use one that it has, or 0.0.0.0 for all"
	case errors.Is(err, syscall.EACCES):
		return ": ports below 1024 need a privilege: use a higher one"
	default:
		return ""
	}
}

// Addr is the address that the server listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Run serves until ctx ends, and then returns nil. Open requests may take another second.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-ctx.Done()
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if s.http.Shutdown(within) != nil {
			_ = s.http.Close() // nothing is left to do about it
		}
	}()

	err := s.http.Serve(s.listener)
	if errors.Is(err, http.ErrServerClosed) {
		<-done
		return nil
	}
	return fmt.Errorf("admin server: %w", err)
}

// Handler returns the handler of a server, without what only a server has: its address, its certificate, its time-outs and the
// bounds on connections and headers.
func Handler(cfg Config) http.Handler {
	mux := http.NewServeMux()
	g := newGuard(cfg.Token, cfg.Address)
	at := cfg.Prefix

	mux.HandleFunc("GET "+at+"/livez", func(w http.ResponseWriter, r *http.Request) {
		switch err := liveness(cfg.Live); {
		case err == nil:
			say(w, http.StatusOK, "ok\n")
		case g.allows(r):
			say(w, http.StatusServiceUnavailable, err.Error()+"\n")
		default:
			say(w, http.StatusServiceUnavailable, "not live; with the token the answer says why\n")
		}
	})

	version := func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, cfg.Version+"\n") }
	mux.Handle("GET "+at+"/version", g.protect(http.HandlerFunc(version)))

	ready := func(w http.ResponseWriter, r *http.Request) {
		code, text := readiness(cfg.Checks)
		switch {
		case !g.allows(r) && code != http.StatusOK:
			text = "not ready; with the token, or at an address of this machine, the answer says why\n"
		case !g.allows(r), code == http.StatusOK && !r.URL.Query().Has("verbose"):
			text = "ok\n"
		}
		say(w, code, text)
	}
	mux.HandleFunc("GET "+at+"/readyz", ready)
	mux.HandleFunc("GET "+at+"/healthz", ready)

	scraped := promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, EnableOpenMetrics: true}
	mux.Handle("GET "+at+"/metrics", g.protect(promhttp.HandlerFor(cfg.Metrics, scraped)))

	if cfg.Profiles != nil {
		mux.Handle("GET "+at+"/debug/pprof/", g.protect(slowly(http.StripPrefix(at, cfg.Profiles))))
	}

	if cfg.Console != nil {
		mux.Handle(at+consolePath, cfg.Console)
		mux.Handle("GET "+at+"/{$}", http.RedirectHandler(at+consolePath, http.StatusSeeOther))
	}

	return sized(prefixed(at, mux))
}

// slowly gives the answers of a handler profileTimeout instead of writeTimeout.
func slowly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(profileTimeout)) // without it, the limit stays
		h.ServeHTTP(w, r)
	})
}

// sized refuses requests that give no length of their body in advance. Proxies and servers differ about where such a
// request ends that also has a Content-Length, and no client of this server sends one.
func sized(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TransferEncoding) > 0 {
			w.Header().Set("Connection", "close")
			say(w, http.StatusLengthRequired, "send a Content-Length, and no Transfer-Encoding\n")
			return
		}
		h.ServeHTTP(w, r)
	})
}

// liveness calls live. A nil live is always live.
func liveness(live func() error) error {
	if live == nil {
		return nil
	}
	return live()
}

// readiness runs all checks, so that the answer names every failure.
func readiness(checks []Check) (code int, text string) {
	code = http.StatusOK
	for _, c := range checks {
		switch err := c.Do(); {
		case err != nil:
			mark := "[!]"
			if !c.Advisory {
				mark = "[-]"
				code = http.StatusServiceUnavailable
			}
			for line := range strings.Lines(err.Error()) { // several errors, joined
				text += fmt.Sprintf("%s %s: %s\n", mark, c.Name, strings.TrimSuffix(line, "\n"))
			}
		default:
			text += fmt.Sprintf("[+] %s: ok\n", c.Name)
		}
	}

	return code, text
}

func say(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text)) // the client is gone
}
