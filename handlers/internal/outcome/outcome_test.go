package outcome_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/internal/secret"
)

// TestFind: the first rule that has a code counts, and the place of an event has a class of its own.
func TestFind(t *testing.T) {
	t.Parallel()
	table := outcome.Table[error]{
		{Codes: []error{io.EOF, io.ErrUnexpectedEOF}, Class: outcome.Unavailable, Own: outcome.Retry, Cure: "one"},
		{Codes: []error{io.EOF, io.ErrClosedPipe}, Class: outcome.Permanent, Cure: "two"},
	}
	for _, c := range []struct {
		err   error
		own   bool
		class outcome.Class
		cure  string
	}{
		{io.EOF, false, outcome.Unavailable, "one"},
		{io.EOF, true, outcome.Retry, "one"},
		{fmt.Errorf("read: %w", io.ErrUnexpectedEOF), false, outcome.Unavailable, "one"},
		{io.ErrClosedPipe, true, outcome.Permanent, "two"},
		{io.ErrNoProgress, true, outcome.Unknown, ""},
		{nil, false, outcome.Unknown, ""},
	} {
		if class, cure := outcome.Match(table, c.own, c.err); class != c.class || cure != c.cure {
			t.Errorf("%v, own %t: class %d, %q; want %d, %q", c.err, c.own, class, cure, c.class, c.cure)
		}
	}
	if class, _ := table.Find(false, io.ErrClosedPipe); class != outcome.Permanent {
		t.Errorf("found as class %d", class)
	}
}

// TestMark: each class has the mark of its name, and a pause where it can have one.
func TestMark(t *testing.T) {
	t.Parallel()
	for class, want := range map[outcome.Class]string{
		outcome.Unknown:      "retry after 1m0s",
		outcome.Retry:        "retry after 1m0s",
		outcome.Permanent:    "permanent",
		outcome.Unavailable:  "unavailable after 1m0s",
		outcome.Unauthorized: "unauthorized",
		outcome.Throttled:    "throttled after 1m0s",
		outcome.Unclear:      "unclear",
		outcome.UnclearRetry: "unclear retry after 1m0s",
	} {
		err := class.Mark(time.Minute, io.EOF)
		got := map[outcome.Class]string{
			outcome.Retry: "retry", outcome.Permanent: "permanent", outcome.Unavailable: "unavailable",
			outcome.Unauthorized: "unauthorized", outcome.Throttled: "throttled",
			outcome.Unclear: "unclear", outcome.UnclearRetry: "unclear retry",
		}[outcome.Of(err)]
		if wait, ok := delivery.RetryDelay(err); ok {
			got += " after " + wait.String()
		}
		if got != want || !errors.Is(err, io.EOF) {
			t.Errorf("class %d is %q, want %q", class, got, want)
		}
	}
	if err := outcome.Retry.Mark(0, io.EOF); err != io.EOF { //nolint:errorlint // it is the same
		t.Errorf("a retry without a pause is %v", err)
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	own := errors.New("own")
	d := &outcome.Destination{
		Name: "shop", Secrets: secret.NewRedactor("s3cret"), Safe: []error{own},
		TLS: outcome.TLS{Prefix: "tls.", Plain: "check the port"},
	}
	certificate := &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	content := outcome.Content(errors.New("no id"))
	for _, c := range []struct {
		failure outcome.Failure
		text    string
		cause   error
	}{
		{outcome.Failure{Err: own}, "shop: own", own},
		{outcome.Failure{Err: io.EOF}, "shop: EOF", nil},
		{outcome.Failure{Err: fmt.Errorf("x: %w", io.EOF), Code: io.EOF, Cure: "wait"}, "shop: x: EOF (wait)", io.EOF},
		{outcome.Failure{Text: "it said\n s3cret"}, "shop: it said [redacted]", nil},
		{outcome.Failure{Text: "x", Code: errors.New("s3cret")}, "shop: x", nil},
		{outcome.Failure{Err: content}, "shop: no id", content},
		{outcome.Failure{Err: fmt.Errorf("x: %w", refused), Text: "no server"}, "shop: no server", refused},
		{outcome.Failure{Err: certificate, Text: "x"}, "shop: x (check tls.server_name, or name the authority's certificate with tls.ca_file)", certificate},
		{outcome.Failure{Err: tls.RecordHeaderError{}, Text: "x"}, "shop: x (the port does not speak TLS: check the port)", nil},
		{outcome.Failure{Err: &os.PathError{Op: "open", Path: "/s3cret", Err: syscall.EMFILE}, Text: "x"}, "shop: x", syscall.EMFILE},
		{outcome.Failure{Err: errors.New(`invalid proxy address "http://user:word@"`)}, "shop: HTTP_PROXY or HTTPS_PROXY is not a URL", nil},
		{outcome.Failure{Err: fmt.Errorf("x: %w", errors.New(`invalid proxy address "http://user:word@"`)), Text: "maybe sent: invalid proxy address"}, "shop: HTTP_PROXY or HTTPS_PROXY is not a URL", nil},
		{outcome.Failure{Text: "INVALID_ARGUMENT: invalid proxy address"}, "shop: INVALID_ARGUMENT: invalid proxy address", nil},
		{outcome.Failure{Err: fmt.Errorf("invalid proxy address: %w", io.EOF), Code: io.EOF}, "shop: invalid proxy address: EOF", io.EOF},
	} {
		got := d.Line(c.failure)
		if got.Error() != c.text || !errors.Is(errors.Unwrap(got), c.cause) || (errors.Unwrap(got) == nil) != (c.cause == nil) {
			t.Errorf("%+v: %q with the cause %v", c.failure, got, errors.Unwrap(got))
		}
	}
	if err := d.Closed(); outcome.Of(err) != outcome.Unavailable || !errors.Is(err, outcome.ErrClosed) || err.Error() != "shop: the destination is closed" {
		t.Errorf("closed: %v", err)
	}
	if err := d.Refuse(io.EOF); outcome.Of(err) != outcome.Permanent || err.Error() != "shop: EOF" {
		t.Errorf("refused: %v", err)
	}
}

// TestNoAnswer: what ended first decides, and a request that met no server has not arrived.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &outcome.Destination{Name: "shop"}
		cause := errors.New("stopping")
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		late, stop := outcome.Within(t.Context(), "request_timeout", time.Second)
		defer stop()
		<-late.Done()
		request := func(err error) error { return &url.Error{Op: "Post", URL: "https://s3cret", Err: err} }
		for _, c := range []struct {
			ctx, within context.Context //nolint:containedctx // a row of a table
			err         error
			class       outcome.Class
			text        string
		}{
			{ended, ended, io.EOF, outcome.Retry, "shop: maybe sent: stopping"},
			{t.Context(), late, io.EOF, outcome.Unavailable, "shop: maybe sent: no answer: request_timeout of 1s is over"},
			{t.Context(), t.Context(), request(io.EOF), outcome.Unavailable, "shop: maybe sent: EOF"},
			{t.Context(), t.Context(), request(&net.OpError{Op: "dial", Net: "tcp", Err: io.EOF}), outcome.Unavailable, "shop: dial tcp: EOF"},
			{t.Context(), t.Context(), delivery.Unauthorized(io.EOF), outcome.Unauthorized, "shop: maybe sent: EOF"},
		} {
			err := d.NoAnswer(c.ctx, c.within, "maybe sent", c.err)
			if outcome.Of(err) != c.class || err.Error() != c.text {
				t.Errorf("got class %d: %v; want %d: %s", outcome.Of(err), err, c.class, c.text)
			}
		}
	})
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	calls := 0
	answer := func(err error) error { calls++; return fmt.Errorf("answer: %w", err) }
	errs := []error{nil, io.EOF, nil, io.EOF, io.ErrClosedPipe, outcome.Content(io.ErrClosedPipe)}
	got := outcome.Answers(errs, answer)
	if calls != 3 || got[0] != nil || got[1] != got[3] || !errors.Is(got[4], io.ErrClosedPipe) || !outcome.IsContent(got[5]) || outcome.IsContent(got[4]) { //nolint:errorlint // it is the same
		t.Errorf("%v after %d calls", got, calls)
	}
	if got := outcome.Answers(make([]error, 3), answer); got != nil {
		t.Errorf("no failures are %v", got)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	header := func(value string) http.Header { return http.Header{"Retry-After": {value}} }
	for value, want := range map[string]time.Duration{
		"0": 0, "120": 2 * time.Minute, " 7 ": 7 * time.Second, "3600": time.Hour, "3601": time.Hour,
		"18446744073709551616":             time.Hour, // more than 64 bits
		"Sat, 21 Nov 2026 10:00:30 GMT":    30 * time.Second,
		"Saturday, 21-Nov-26 10:00:30 GMT": 30 * time.Second,
		"Sat Nov 21 10:00:30 2026":         30 * time.Second,
		"Sat, 21 Nov 2026 09:00:00 GMT":    0,
		"Sat, 21 Nov 2099 10:00:00 GMT":    time.Hour,
	} {
		if got, ok := outcome.RetryAfter(header(value), now); got != want || !ok {
			t.Errorf("%q is %v, %t; want %v", value, got, ok, want)
		}
	}
	for _, value := range []string{"", "soon", "-1", "1.5", "0x10", "1e3", "2026-11-21T10:00:00Z"} {
		if got, ok := outcome.RetryAfter(header(value), now); ok {
			t.Errorf("%q is %v, want none", value, got)
		}
	}
	for code, want := range map[int]string{503: "HTTP 503 Service Unavailable", 599: "HTTP 599"} {
		if got := outcome.Status(code); got != want {
			t.Errorf("%d is %q", code, got)
		}
	}
}
