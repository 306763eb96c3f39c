// Package admin serves what operators and their tools ask a daemon for: whether
// it lives, whether it is ready, its metrics, and the console.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// readTimeout bounds a request: it has no body worth the name.
	readTimeout = 5 * time.Second
	// writeTimeout bounds an answer, the one question to the database included.
	writeTimeout = 10 * time.Second
	// idleTimeout closes connections that nobody uses.
	idleTimeout = time.Minute
	// closeTimeout bounds finishing answers when the daemon stops.
	closeTimeout = time.Second
	// maxHeader bounds a request's headers, in bytes.
	maxHeader = 16 << 10
)

// Check is a condition of readiness: nil means fulfilled, and the text of an
// error is shown to whoever asks.
type Check struct {
	Name string
	Do   func() error
	// Advisory makes it a condition that is shown and does not decide: what
	// fails is nothing that a restart or less traffic would mend.
	Advisory bool
}

// Server is an HTTP server. Listen opens it, Run serves.
type Server struct {
	listener net.Listener
	http     *http.Server
	log      *slog.Logger
}

// Config is what a server serves.
type Config struct {
	// Address is where, as host:port.
	Address string
	// Version is what /version answers.
	Version string
	// Metrics are those of /metrics.
	Metrics prometheus.Gatherer
	// Checks decide what /readyz answers.
	Checks []Check
	// Console is what /console/ answers; nil for nothing.
	Console http.Handler
}

// Listen opens the address. It fails at once if the address cannot be had, so
// that a mistake shows when the daemon starts. Run closes what Listen opened.
func Listen(ctx context.Context, cfg Config, log *slog.Logger) (*Server, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("admin.listen: %w", err)
	}
	return &Server{listener: l, log: log, http: &http.Server{
		Handler:           handler(cfg),
		ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}, nil
}

// Addr is where the server listens.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Run serves until ctx ends, and returns nil then. Answers that are under way
// may take another second.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-ctx.Done()
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if s.http.Shutdown(within) != nil {
			_ = s.http.Close() // there is nothing more to be done about it
		}
	}()
	err := s.http.Serve(s.listener)
	if errors.Is(err, http.ErrServerClosed) {
		<-done
		return nil
	}
	return fmt.Errorf("admin server: %w", err)
}

func handler(cfg Config) http.Handler {
	mux := http.NewServeMux()
	live := func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok\n") }
	mux.HandleFunc("GET /livez", live)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, cfg.Version+"\n") })
	ready := func(w http.ResponseWriter, r *http.Request) {
		code, text := readiness(cfg.Checks)
		if code == http.StatusOK && !r.URL.Query().Has("verbose") {
			text = "ok\n"
		}
		say(w, code, text)
	}
	mux.HandleFunc("GET /readyz", ready)
	mux.HandleFunc("GET /healthz", ready)
	if cfg.Console != nil {
		mux.Handle("/console/", cfg.Console)
		mux.Handle("GET /{$}", http.RedirectHandler("/console/", http.StatusSeeOther))
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Metrics, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	return mux
}

// readiness looks at all checks, so that the answer names everything that is amiss.
func readiness(checks []Check) (code int, text string) {
	code = http.StatusOK
	for _, c := range checks {
		switch err := c.Do(); {
		case err != nil && c.Advisory:
			text += fmt.Sprintf("[!] %s: %v\n", c.Name, err)
		case err != nil:
			code = http.StatusServiceUnavailable
			text += fmt.Sprintf("[-] %s: %v\n", c.Name, err)
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
	_, _ = w.Write([]byte(text)) // whoever asked is gone
}
