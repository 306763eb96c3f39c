package pgserver

import (
	"context"
	"errors"
	"os"
	"syscall"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// Mode is how a server shuts down.
type Mode uint8

const (
	// Fast ends all sessions, rolls their transactions back and writes a
	// checkpoint.
	Fast Mode = iota
	// Smart waits until the last client has gone.
	Smart
	// Immediate ends without a checkpoint; the next start recovers from the log.
	Immediate
)

func (m Mode) signal() os.Signal {
	switch m {
	case Smart:
		return syscall.SIGTERM
	case Immediate:
		return syscall.SIGQUIT
	case Fast:
	}
	return syscall.SIGINT
}

// Stop ends the server in the mode [Fast] and removes its directory. When ctx is done
// first, the server is killed, which is not an error. A second Stop does nothing.
func (s *Server) Stop(ctx context.Context) error {
	err := s.Halt(ctx, Fast)
	if errors.Is(err, privateserver.ErrDown) || errors.Is(err, privateserver.ErrForced) {
		err = nil
	}
	return errors.Join(err, s.Server.Stop(ctx))
}

// Halt takes the server down and keeps its data for [Server.Start]. When ctx is done
// first, the server is killed, and the error wraps [privateserver.ErrForced].
func (s *Server) Halt(ctx context.Context, mode Mode) error { return s.HaltBy(ctx, mode.signal()) }

// Restart is [Server.Halt] and [Server.Start]. A server that is down is only started.
func (s *Server) Restart(ctx context.Context, mode Mode) error {
	return s.RestartBy(ctx, mode.signal())
}
