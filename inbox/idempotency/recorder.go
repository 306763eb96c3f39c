package idempotency

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// recorder is the http.ResponseWriter of the handler. It holds the answer back
// until it is stored, because an answer that has left cannot be revoked.
//
// It has no Unwrap, so that no output bypasses it: http.ResponseController reports Flush
// and Hijack as not supported.
type recorder struct {
	to     http.ResponseWriter
	method string
	limit  int

	mu      sync.Mutex
	header  http.Header // what the handler sees
	sent    http.Header // as at the time when the status was written
	status  int         // 0 until then
	body    bytes.Buffer
	written int64
	large   bool // the body has outgrown the limit and goes to the client
	midway  bool // the handler was interrupted after it had begun to answer
	closed  bool // the handler has ended
}

func newRecorder(w http.ResponseWriter, method string, limit int) *recorder {
	return &recorder{to: w, method: method, limit: limit, header: w.Header().Clone()}
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter. Informational answers (1xx) are
// dropped: they would leave before the key is settled.
func (r *recorder) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http does
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if status >= http.StatusOK && !r.closed {
		r.writeHeader(status)
	}
}

func (r *recorder) writeHeader(status int) {
	if r.status == 0 {
		r.status = status
		r.sent = r.header.Clone()
	}
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, http.ErrHandlerTimeout
	}

	r.writeHeader(http.StatusOK)
	if !bodyAllowed(r.status) {
		return 0, http.ErrBodyNotAllowed
	}

	if length, ok := r.declared(); ok && r.written+int64(len(p)) > length {
		return 0, http.ErrContentLength
	}

	r.written += int64(len(p))
	if !r.large && r.body.Len()+len(p) <= r.limit {
		return r.body.Write(p)
	}

	if !r.large {
		r.large = true
		r.sniff(p)
		replace(r.to.Header(), r.sent)
		r.to.WriteHeader(r.status)
		_, _ = r.to.Write(r.body.Bytes())
		r.body = bytes.Buffer{}
	}

	// A client that went away must not make the handler fail.
	_, _ = r.to.Write(p)
	return len(p), nil
}

// declared returns the Content-Length that the handler has set.
func (r *recorder) declared() (int64, bool) {
	n, err := strconv.ParseInt(r.sent.Get("Content-Length"), 10, 64)
	return n, err == nil && n >= 0
}

// sniff sets the content type as net/http would.
func (r *recorder) sniff(next []byte) {
	_, typed := r.sent["Content-Type"]
	if typed || r.sent.Get("Content-Encoding") != "" || r.body.Len()+len(next) == 0 {
		return
	}
	const most = 512 // bytes that DetectContentType looks at
	start := append(bytes.Clone(r.body.Bytes()[:min(most, r.body.Len())]), next[:min(most, len(next))]...)
	r.sent.Set("Content-Type", http.DetectContentType(start))
}

// cut is called when the handler is interrupted.
func (r *recorder) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.midway = r.status != 0
}

// outcome is the result of a handler.
type outcome struct {
	answer

	interrupted error // the reason why the handler's context ended
	explicit    bool  // the handler has answered before it returned
	whole       bool  // the handler has written as much as it declared
	sent        bool  // the answer was too large to be held, and went to the client
}

// close ends the recording.
func (r *recorder) close(interrupted error) outcome {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.closed = true
	o := outcome{interrupted: interrupted, explicit: r.status != 0, sent: r.large}
	r.writeHeader(http.StatusOK) // the status of net/http for a handler that writes nothing
	r.sniff(nil)

	length, declared := r.declared()
	bodyless := r.method == http.MethodHead || !bodyAllowed(r.status)
	o.whole = !declared || bodyless || r.written == length

	// An answer that was begun before the interruption reports the work, but its end
	// may be missing, unless its length is known.
	isOpen := !declared && !bodyless
	cut := interrupted != nil && r.midway && isOpen
	o.answer = answer{Status: r.status, Header: r.sent, Large: r.large || cut, body: r.body.Bytes()}
	if cut {
		o.body = nil
	}

	return o
}

// SetReadDeadline is for http.ResponseController.
func (r *recorder) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(r.to).SetReadDeadline(t)
}

// SetWriteDeadline is for http.ResponseController.
func (r *recorder) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(r.to).SetWriteDeadline(t)
}

// replace makes to a copy of from.
func replace(to, from http.Header) {
	clear(to)
	maps.Copy(to, from)
}
