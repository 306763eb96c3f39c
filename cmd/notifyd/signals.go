package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/cli"
)

// oneStop is the time within which several signals count as one: a shell and a supervisor
// may both signal the same process, and no person types that fast.
const oneStop = 100 * time.Millisecond

// stopping counts the signals that stop.
type stopping struct{ first time.Time }

// another records a signal, and reports whether it is the first, and whether it is a
// second request to stop.
func (s *stopping) another(now time.Time) (first, again bool) {
	if s.first.IsZero() {
		s.first = now
		return true, false
	}
	return false, now.Sub(s.first) > oneStop
}

// untilSignal returns a context that ends with the first SIGTERM, SIGINT or
// SIGHUP; a second one, later than [oneStop], ends the process, except for SIGHUP,
// which a closed terminal may send several times. stop gives the signals back.
func untilSignal(ctx context.Context, log *slog.Logger) (until context.Context, stop func()) {
	return watchSignals(ctx, log, catchHangups(), func() bool { return true }, nil)
}

// untilSignalOrReload is untilSignal for a daemon that reads its configuration again
// at SIGHUP. All signals during a reload request one more reload together. The SIGHUP
// of a closed terminal stops all the same. hangups is what catchHangups has returned, before the configuration was read.
func untilSignalOrReload(
	ctx context.Context, log *slog.Logger, hangups chan os.Signal,
) (until context.Context, reloads <-chan struct{}, stop func()) {
	wanted := make(chan struct{}, 1)
	if signal.Ignored(syscall.SIGHUP) {
		log.WarnContext(ctx, "SIGHUP is ignored, as under nohup: start without nohup to reload by SIGHUP")
	}

	attended := cli.IsTerminal(os.Stdin)

	// Without it a write to a closed pipe on standard output or error would end the process,
	// with all destinations. The write fails instead: a fault of the destination "log", or a
	// lost line of the log.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)

	until, end := watchSignals(ctx, log, hangups, func() bool { return attended && !cli.IsTerminal(os.Stdin) }, wanted)
	return until, wanted, func() {
		end()
		signal.Stop(pipes)
	}
}

// catchHangups returns a channel that receives SIGHUP, which ends the process otherwise.
func catchHangups() chan os.Signal {
	hangups := make(chan os.Signal, 1)   // many of them must not keep out a SIGTERM
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signal.Notify(hangups, syscall.SIGHUP)
	}
	return hangups
}

// watchSignals ends the context with a signal that stops. A SIGHUP stops if hungUp
// is true, else it requests a reload.
func watchSignals(
	ctx context.Context, log *slog.Logger, hangups chan os.Signal, hungUp func() bool, reloads chan<- struct{},
) (until context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)

	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	ended := make(chan struct{})

	go func() {
		defer close(ended)
		var stops stopping
		for {
			var s os.Signal
			select {
			case s = <-hangups:
				if !hungUp() {
					select {
					case reloads <- struct{}{}:
					default: // one is pending already, and will read the file as it is then
					}
					continue
				}
				if !stops.first.IsZero() {
					continue
				}
			case s = <-signals:
			case <-done:
				return
			}

			switch first, again := stops.another(time.Now()); {
			case again:
				log.ErrorContext(ctx, "second signal, exiting at once", "signal", s.String())
				os.Exit(command.ExitFailure)
			case first:
				log.InfoContext(ctx, "stopping: a second signal exits at once", "signal", s.String())
				cancel()
			}
		}
	}()

	return ctx, func() {
		signal.Stop(signals)
		signal.Stop(hangups)
		close(done)
		<-ended
		cancel()
	}
}
