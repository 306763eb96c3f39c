// Package profiles serves profiles of the process. It is apart from package admin because net/http/pprof adds its own, open
// to everyone, to http.DefaultServeMux of each program that links it.
package profiles

import (
	"net/http"
	"net/http/pprof"
)

// Handler serves /debug/pprof/. The command line is left out: it may hold a connection string.
func Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}
