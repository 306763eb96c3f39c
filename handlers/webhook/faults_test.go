package webhook

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// short is a timeout that is meant to run out.
const short = 50 * time.Millisecond

// serveRaw is a server that speaks for itself: each connection is given to serve
// in turn, with its number from 0 on.
func serveRaw(t *testing.T, serve func(n int, c net.Conn, r *bufio.Reader)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return // closed below
			}
			all.Go(func() {
				defer func() { _ = c.Close() }()
				serve(n, c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

// readRequest reads a whole request.
func readRequest(r *bufio.Reader) bool {
	req, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// awaitEnd waits until the other side has closed the connection.
func awaitEnd(r *bufio.Reader) { _, _ = io.Copy(io.Discard, r) }

const noContent = "HTTP/1.1 204 No Content\r\n\r\n"

// wireFaults are the faults of a server that has a request.
var wireFaults = map[string]struct {
	serve      func(c net.Conn, r *bufio.Reader) // after the request
	cfg        Config
	want, text string
}{
	"no answer": {
		serve: func(_ net.Conn, r *bufio.Reader) { awaitEnd(r) }, cfg: Config{ResponseTimeout: short},
		want: "unavailable", text: "the request is written, but the answer to it: response_timeout of 50ms is over (maybe delivered: it will be sent again with the same webhook-id)",
	},
	"slow headers": {
		serve: func(c net.Conn, r *bufio.Reader) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX-Slow")
			awaitEnd(r)
		}, cfg: Config{ResponseTimeout: short}, want: "unavailable", text: "response_timeout of 50ms is over",
	},
	"whole timeout": {
		serve: func(_ net.Conn, r *bufio.Reader) { awaitEnd(r) }, cfg: Config{ResponseTimeout: short, RequestTimeout: short},
		want: "unavailable", text: "_timeout of 50ms is over",
	},
	"endless headers": {
		serve: func(c net.Conn, _ *bufio.Reader) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for i := 0; ; i++ {
				if _, err := fmt.Fprintf(c, "X-%d: %s\r\n", i, strings.Repeat("x", 1000)); err != nil {
					return
				}
			}
		}, want: "unavailable", text: "server response headers exceeded 65536 bytes",
	},
	"slow body of 200": {
		serve: func(c net.Conn, r *bufio.Reader) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
			awaitEnd(r)
		}, want: "delivered",
	},
	"slow body of 400": {
		serve: func(c net.Conn, r *bufio.Reader) {
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\n\r\nno such")
			awaitEnd(r)
		}, want: "unclear, permanent", text: "400 Bad Request: no such",
	},
	"endless body of 200": {
		serve: func(c net.Conn, _ *bufio.Reader) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			for {
				if _, err := c.Write(make([]byte, 4096)); err != nil {
					return
				}
			}
		}, want: "delivered",
	},
	"endless body of 500": {
		serve: func(c net.Conn, _ *bufio.Reader) {
			_, _ = io.WriteString(c, "HTTP/1.1 500 Oops\r\n\r\n")
			for {
				if _, err := io.WriteString(c, "fire\r\n"+strings.Repeat("é\x00 ", 100)); err != nil {
					return
				}
			}
		}, want: "unclear, retry", text: "500 Internal Server Error: fire é é",
	},
	"body cut off": {
		serve: func(c net.Conn, _ *bufio.Reader) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
		}, want: "delivered",
	},
	"closed without an answer": {
		serve: func(net.Conn, *bufio.Reader) {}, want: "unavailable", text: "maybe delivered",
	},
	"not HTTP": {
		serve: func(c net.Conn, _ *bufio.Reader) { _, _ = io.WriteString(c, "220 mail.example.com ESMTP\r\n") },
		want:  "unavailable", text: "malformed HTTP",
	},
	"informational first": {
		serve: func(c net.Conn, _ *bufio.Reader) {
			_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\n\r\n"+noContent)
		},
		want: "delivered",
	},
}

func TestFaultsOnTheWire(t *testing.T) {
	t.Parallel()
	for name, c := range wireFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := serveRaw(t, func(_ int, conn net.Conn, r *bufio.Reader) {
				if readRequest(r) {
					c.serve(conn, r)
				}
			})
			c.cfg.URL = "http://" + addr + "/hook?token=marker-token"
			// What takes long for another reason than the one that is expected
			// hangs.
			c.cfg.RequestTimeout = cmp.Or(c.cfg.RequestTimeout, time.Hour)
			err := deliverytest.Open(t, New, c.cfg).Deliver(t.Context(), event(ada))
			checkVerdict(t, err, c.want, c.text)
			if err != nil && (len(err.Error()) > 600 || strings.ContainsAny(err.Error(), "\r\n\x00")) {
				t.Errorf("%d bytes: %q", len(err.Error()), err)
			}
		})
	}
}

// TestLittleIsReadOfAnAnswer: a server that does not stop talking costs neither
// memory nor bandwidth.
func TestLittleIsReadOfAnAnswer(t *testing.T) {
	t.Parallel()
	for _, code := range []int{200, 400} {
		sent := make(chan int, 1)
		addr := serveRaw(t, func(_ int, c net.Conn, r *bufio.Reader) {
			if !readRequest(r) {
				return
			}
			_, _ = fmt.Fprintf(c, "HTTP/1.1 %d X\r\n\r\n", code)
			total := 0
			for chunk := []byte(strings.Repeat("x", 1<<16)); ; {
				n, err := c.Write(chunk)
				if total += n; err != nil {
					sent <- total
					return
				}
			}
		})
		_ = deliver(t, Config{URL: "http://" + addr}, event(ada))
		// The buffers of the two sockets hold a few MB by themselves.
		if n := <-sent; n > 16<<20 {
			t.Errorf("%d: the server got rid of %d bytes", code, n)
		}
	}
}

func TestDeliverAfterClose(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, nil)
	h := deliverytest.Open(t, New, Config{URL: r.url()})
	for range 2 {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := h.Deliver(testenv.Within(t, patience), event(ada)); !errors.Is(err, outcome.ErrClosed) || verdictOn(err) != "unavailable" {
		t.Errorf("%s: %v", verdictOn(err), err)
	}
}

func checkVerdict(t *testing.T, err error, want, text string) {
	t.Helper()
	if got := verdictOn(err); got != want {
		t.Errorf("%s, want %s: %v", got, want, err)
	}
	if err == nil {
		return
	}
	if !strings.Contains(err.Error(), text) || !strings.HasPrefix(err.Error(), "webhook: ") {
		t.Errorf("got  %v\nwant %s", err, text)
	}
	// The second one is how "me:" begins in base64, as in Basic authentication.
	if strings.Contains(err.Error(), "marker-token") || strings.Contains(err.Error(), "bWU6") {
		t.Errorf("the token is shown: %v", err)
	}
}

func TestFaultsOfTheWay(t *testing.T) {
	t.Parallel()
	secure, ca := startTLSReceiver(t, nil)
	plain := startReceiver(t, nil)
	silent := serveRaw(t, func(_ int, _ net.Conn, r *bufio.Reader) { awaitEnd(r) })
	closed := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	const query = "/?token=marker-token"
	for name, c := range map[string]struct {
		cfg  Config
		text string
	}{
		"refused":           {Config{URL: "http://" + closed + query}, "connecting: dial tcp " + closed + ": connect: connection refused"},
		"no such name":      {Config{URL: "http://nobody.invalid" + query, ProxyURL: none, ConnectTimeout: patience}, "connecting: dial tcp: lookup nobody.invalid"},
		"unknown authority": {Config{URL: secure.url() + query}, "name the authority's certificate with tls.ca_file"},
		"wrong name":        {Config{URL: secure.url() + query, TLS: handlers.TLS{CAFile: ca, ServerName: "shop.invalid"}}, "check tls.server_name"},
		"TLS to a plain port": {
			Config{URL: strings.Replace(plain.url(), "http:", "https:", 1) + query}, "is it http:// and not https://?",
		},
		"plain to a TLS port": {Config{URL: strings.Replace(secure.url(), "https:", "http:", 1) + query}, "(write https:// into url)"},
		"no TLS handshake":    {Config{URL: "https://" + silent + query, TLSTimeout: short}, "TLS handshake: tls_timeout of 50ms is over"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := "unavailable"
			if name == "plain to a TLS port" {
				want = "unclear, permanent" // Go's server answers so
			}
			checkVerdict(t, deliver(t, c.cfg, event(ada)), want, c.text)
		})
	}
	t.Run("proxy refuses", func(t *testing.T) {
		t.Parallel()
		err := deliver(t, Config{URL: "https://shop.example.com" + query, ProxyURL: secretOf("http://me:marker-token@" + closed)}, event(ada))
		checkVerdict(t, err, "unavailable", "connecting: proxyconnect tcp: dial tcp "+closed)
		// The proxy is the destination's, also where the event chose the host.
		err = deliver(t, Config{
			URL: "{{ .Payload.u }}", DynamicHost: true, Addresses: AddressesAny, ProxyURL: secretOf("http://me:marker-token@" + closed),
		}, event(`{"u":"https://shop.example.com/"}`))
		checkVerdict(t, err, "unavailable", "connecting: proxyconnect tcp: dial tcp "+closed)
	})
}

// TestStaleConnection: a server closes a connection that is idle while the next
// request is on its way. That is not an outage.
func TestStaleConnection(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		staleAfter time.Duration
		want       string
	}{
		"idle for long":     {0, "delivered"},
		"idle for a moment": {time.Hour, "unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requests := make(chan int, 10)
			addr := serveRaw(t, func(n int, c net.Conn, r *bufio.Reader) {
				for i := 0; readRequest(r); i++ {
					requests <- n
					if n == 0 && i == 1 {
						return // the second request on the first connection is not answered
					}
					_, _ = io.WriteString(c, noContent)
				}
			})
			h := deliverytest.Open(t, New, Config{URL: "http://" + addr})
			h.staleAfter = c.staleAfter
			if err := h.Deliver(testenv.Within(t, patience), event(ada)); err != nil {
				t.Fatal(err)
			}
			err := h.Deliver(testenv.Within(t, patience), event(ada))
			if got := verdictOn(err); got != c.want {
				t.Fatalf("%s, want %s: %v", got, c.want, err)
			}
			if got := verdictOn(h.Deliver(testenv.Within(t, patience), event(ada))); got != "delivered" {
				t.Errorf("afterwards: %s", got)
			}
		})
	}
}

// TestNotSentAgainOnANewConnection: a server that falls over a request must not
// get it twice in one delivery.
func TestNotSentAgainOnANewConnection(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	connections := 0
	addr := serveRaw(t, func(_ int, _ net.Conn, r *bufio.Reader) {
		mu.Lock()
		connections++
		mu.Unlock()
		readRequest(r)
	})
	h := deliverytest.Open(t, New, Config{URL: "http://" + addr})
	h.staleAfter = 0
	checkVerdict(t, h.Deliver(testenv.Within(t, patience), event(ada)), "unavailable", "maybe delivered")
	mu.Lock()
	defer mu.Unlock()
	if connections != 1 {
		t.Errorf("%d connections, want 1", connections)
	}
}

func TestConnectionIsUsedAgain(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"204":             nil,
		"200 with a body": statusOf(200, strings.Repeat("x", 50_000)),
		"400 with a body": statusOf(400, strings.Repeat("x", 50_000)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startReceiver(t, answer)
			h := deliverytest.Open(t, New, Config{URL: r.url()})
			for range 5 {
				_ = h.Deliver(testenv.Within(t, patience), event(ada))
			}
			from := make(map[string]bool)
			for _, req := range r.all() {
				from[req.RemoteAddr] = true
			}
			if len(from) != 1 || len(r.all()) != 5 {
				t.Errorf("%d connections for %d requests", len(from), len(r.all()))
			}
		})
	}
}

func TestRetryAfterShutsTheHost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status        int
		cfg           Config
		first, second string
	}{
		"fixed host":   {503, Config{}, "unavailable", "unavailable"},
		"dynamic host": {429, Config{DynamicHost: true, ProxyURL: none, AllowAddresses: []string{"127.0.0.0/8"}}, "after 30m0s", "after "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startReceiver(t, statusOf(c.status, "slowly", "Retry-After", "1800"))
			c.cfg.URL = r.url()
			if c.cfg.DynamicHost {
				c.cfg.URL = `{{ print "` + r.url() + `" }}`
			}
			h := deliverytest.Open(t, New, c.cfg)
			checkVerdict(t, h.Deliver(testenv.Within(t, patience), event(ada)), c.first, http.StatusText(c.status)+": slowly")
			err := h.Deliver(testenv.Within(t, patience), event(ada))
			if got := verdictOn(err); !strings.HasPrefix(got, c.second) || !regexp.MustCompile(`forbids requests for (30m0|29m5\d)s more`).MatchString(err.Error()) {
				t.Errorf("%s: %v", got, err)
			}
			r.one(t)
		})
	}
}

// TestThrottlingIsForTheLane: what a fixed host asks for with 429 is handed on, and
// what the lane sends all the same is sent: an event that is refused alone must
// not keep the others.
func TestThrottlingIsForTheLane(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, statusOf(429, "slowly", "Retry-After", "1800"))
	h := deliverytest.Open(t, New, Config{URL: r.url()})
	for range 2 {
		checkVerdict(t, h.Deliver(testenv.Within(t, patience), event(ada)), "throttled for 30m0s", "429 Too Many Requests: slowly")
	}
	if n := len(r.all()); n != 2 {
		t.Errorf("%d requests", n)
	}
}

func TestRedirectIsAnAnswer(t *testing.T) {
	t.Parallel()
	other := startReceiver(t, nil)
	for _, code := range []int{301, 302, 303, 307, 308} {
		r := startReceiver(t, http.RedirectHandler(other.url(), code).ServeHTTP)
		checkVerdict(t, deliver(t, Config{URL: r.url()}, event(ada)), "unavailable", "redirects are not followed: write the final address into url")
	}
	if n := len(other.all()); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	plain := startReceiver(t, nil)
	secure, ca := startTLSReceiver(t, nil)
	for name, c := range map[string]struct {
		r   *receiver
		cfg Config
	}{
		"HTTP/1.1": {plain, Config{URL: plain.url()}},
		"HTTP/2":   {secure, Config{URL: secure.url(), TLS: handlers.TLS{CAFile: ca}, ConnectTimeout: patience, TLSTimeout: patience}}, // a hundred handshakes
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := deliverytest.Open(t, New, c.cfg)
			var all sync.WaitGroup
			for worker := range 100 {
				all.Go(func() {
					for i := range 5 {
						e := event(ada)
						e.ID = int64(worker*5 + i + 1)
						if err := h.Deliver(testenv.Within(t, patience), e); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			seen := make(map[int64]int)
			for _, id := range c.r.ids() {
				seen[id]++
			}
			if len(seen) != 500 || len(c.r.ids()) != 500 {
				t.Errorf("%d requests with %d events, want 500", len(c.r.ids()), len(seen))
			}
		})
	}
}

func TestCancelledWhileWaitingForATurn(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, nil)
	h := deliverytest.Open(t, New, Config{URL: r.url(), HostRateLimit: 0.001})
	if err := h.Deliver(testenv.Within(t, patience), event(ada)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() { done <- h.Deliver(ctx, event(ada)) }()
	stopping := errors.New("the relay is stopping")
	cancel(stopping)
	if err := <-done; !errors.Is(err, stopping) || delivery.IsUnavailable(err) || delivery.IsPermanent(err) {
		t.Errorf("got %v", err)
	}
	deadline, end := context.WithTimeout(t.Context(), patience)
	defer end()
	err := h.Deliver(deadline, event(ada))
	if !delivery.IsThrottled(err) || !strings.Contains(err.Error(), "host_rate_limit leaves no turn in time: lower concurrency, or raise timeout") {
		t.Errorf("%s: %v", verdictOn(err), err)
	}
}
