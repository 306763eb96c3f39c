package handlertest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// recorder is a test whose end can be looked at.
type recorder struct {
	testing.TB
	ctx context.Context //nolint:containedctx // it is what a testing.TB has

	mu              sync.Mutex
	failed, skipped bool
	text            strings.Builder
	cleanups        []func()
}

// record runs f as a test of its own.
func record(tb testing.TB, f func(tb testing.TB)) *recorder {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	r := &recorder{TB: tb, ctx: ctx}
	alone(func() { f(r) })
	cancel()
	for {
		r.mu.Lock()
		n := len(r.cleanups)
		if n == 0 {
			r.mu.Unlock()
			return r
		}
		last := r.cleanups[n-1]
		r.cleanups = r.cleanups[:n-1]
		r.mu.Unlock()
		alone(last)
	}
}

// alone runs f in a goroutine, which f may end.
func alone(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) write(failed bool, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || failed
	r.text.WriteString(text + "\n")
}

func (r *recorder) Helper()                  {}
func (r *recorder) Context() context.Context { return r.ctx }
func (r *recorder) Log(args ...any)          { r.write(false, fmt.Sprint(args...)) }
func (r *recorder) Error(args ...any)        { r.write(true, fmt.Sprint(args...)) }
func (r *recorder) Logf(format string, args ...any) {
	r.write(false, fmt.Sprintf(format, args...))
}

func (r *recorder) Errorf(format string, args ...any) {
	r.write(true, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skip(args ...any) {
	r.Log(args...)
	r.mu.Lock()
	r.skipped = true
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

// report holds the results of the properties of one destination.
type report struct {
	whole *recorder
	tests map[string]*recorder
}

func recordRun(tb testing.TB, d Destination) report {
	tb.Helper()
	rep := report{tests: make(map[string]*recorder)}
	rep.whole = record(tb, func(tb testing.TB) {
		tb.Helper()
		run(tb, d, func(name string, f func(tb testing.TB)) bool {
			r := record(tb, f)
			rep.tests[name] = r
			return !r.failed
		})
	})
	return rep
}

func (rep report) named(which func(r *recorder) bool) []string {
	var names []string
	for name, r := range rep.tests {
		if which(r) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (rep report) failed() []string { return rep.named(func(r *recorder) bool { return r.failed }) }

func (rep report) skipped() []string { return rep.named(func(r *recorder) bool { return r.skipped }) }

func (rep report) text(names []string) string {
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "--- %s:\n%s", name, rep.tests[name].text.String())
	}
	return b.String()
}
