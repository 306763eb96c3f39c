package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Mode says how a server goes down.
type Mode uint8

const (
	// Fast ends all sessions, rolls their transactions back and writes a
	// checkpoint.
	Fast Mode = iota
	// Smart waits until the last client has gone.
	Smart
	// Immediate lets go of everything; the next start recovers from the log.
	Immediate
)

var (
	errStopped = errors.New("the server is stopped and its data removed")
	errDown    = errors.New("the server is not running")
	errRunning = errors.New("the server is already running")
)

// Waits for another try when the port or the memory of the last run is not
// free yet. What holds them is on its way out, so five seconds are plenty.
const (
	startAgainFor   = 5 * time.Second
	startAgainEvery = 100 * time.Millisecond
)

// Start starts a server that went down by [Server.Halt] or [Server.Kill] again:
// same port, same data. It returns once the server answers queries.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.startAgain(ctx)
}

func (s *Server) startAgain(ctx context.Context) error {
	switch {
	case s.stopped:
		return errStopped
	case s.proc != nil && !s.proc.exited():
		return errRunning
	}
	deadline := time.After(startAgainFor)
	tick := time.NewTicker(startAgainEvery)
	defer tick.Stop()
	for {
		err := s.start(ctx)
		if !errors.Is(err, errPortTaken) && !errors.Is(err, errNotGone) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-deadline:
			return err
		case <-tick.C:
		}
	}
}

// Stop ends the server fast and removes its directory. ctx bounds the orderly
// part: when it is done, the server is killed, and Stop returns without error
// all the same. A second Stop does nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	err := s.halt(ctx, Fast)
	if errors.Is(err, errDown) || errors.Is(err, errForced) {
		err = nil
	}
	return errors.Join(err, s.freeMemory(), os.RemoveAll(s.dir), s.dog.dismiss())
}

// Halt takes the server down and keeps its data, for [Server.Start]. When ctx
// is done first, the server is killed, and the error says so.
func (s *Server) Halt(ctx context.Context, mode Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halt(ctx, mode)
}

// Restart is [Server.Halt] and [Server.Start]. A server that is down is only
// started.
func (s *Server) Restart(ctx context.Context, mode Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errStopped
	}
	if err := s.halt(ctx, mode); err != nil && !errors.Is(err, errDown) {
		return err
	}
	return s.startAgain(ctx)
}

// errForced reports an orderly stop that took too long.
var errForced = errors.New("the server did not stop in time and was killed")

func (s *Server) halt(ctx context.Context, mode Mode) error {
	if s.proc == nil || s.proc.exited() {
		return errDown
	}
	if s.frozen {
		// A stopped process does not see the signal that follows.
		if err := s.thaw(ctx); err != nil {
			return err
		}
	}
	if err := s.proc.interrupt(mode); err != nil {
		return err
	}
	select {
	case <-s.proc.done:
		s.dog.forget()
		return nil
	case <-ctx.Done():
		err := fmt.Errorf("%w: %w", errForced, context.Cause(ctx))
		return errors.Join(err, s.kill(context.WithoutCancel(ctx)))
	}
}

// Kill ends the server and all its sessions by SIGKILL, as the machine's power
// switch would do, and returns when it is gone. Committed data stays;
// [Server.Start] recovers it.
func (s *Server) Kill(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.exited() {
		return errDown
	}
	return s.kill(ctx)
}

func (s *Server) kill(ctx context.Context) error {
	// Sessions end by themselves when the postmaster is gone, but only at their
	// next wait: a busy one could commit after the crash. A postmaster that is
	// stopped makes no more of them. Whether it could be stopped does not matter.
	_ = s.proc.signal(sigStop)
	sessions, listErr := children(ctx, s.proc.pid)
	err := s.proc.signal(sigKill)
	for _, pid := range sessions {
		// It may be gone already, which is all that is wanted.
		_ = signalPID(pid, sigKill)
	}
	if err != nil {
		return errors.Join(err, listErr)
	}
	<-s.proc.done // SIGKILL cannot be refused, so this is short
	s.frozen = false
	s.dog.forget()
	return listErr
}

// Pause freezes the server and all its sessions by SIGSTOP: connections stay
// open and nobody answers, as on a machine that hangs.
func (s *Server) Pause(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.exited() {
		return errDown
	}
	s.frozen = true
	// The postmaster first: after that there are no new sessions.
	if err := s.proc.signal(sigStop); err != nil {
		return err
	}
	return s.signalSessions(ctx, sigStop)
}

// Resume lets a paused server go on where it was.
func (s *Server) Resume(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.exited() {
		return errDown
	}
	return s.thaw(ctx)
}

func (s *Server) thaw(ctx context.Context) error {
	if err := s.signalSessions(ctx, sigCont); err != nil {
		return err
	}
	if err := s.proc.signal(sigCont); err != nil {
		return err
	}
	s.frozen = false
	return nil
}
