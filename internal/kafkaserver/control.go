package kafkaserver

import (
	"context"
	"errors"
	"os"
	"syscall"
)

// Start starts a server that went down by [Server.Halt] or [Server.Kill] again:
// same ports, same data. It returns once the server takes part in its cluster.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return errStopped
	case s.proc != nil && !s.proc.exited():
		return errRunning
	}
	return s.start(ctx)
}

// Stop ends the server in an orderly way and removes its directory. When ctx is
// done first, the server is killed, and Stop returns without error all the same.
// A second Stop does nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	err := s.halt(ctx)
	if errors.Is(err, errDown) || ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(s.dir), s.dog.Dismiss())
}

// Halt takes the server down in an orderly way and keeps its data, for
// [Server.Start]. When ctx is done first, the server is killed, and the error
// says so.
func (s *Server) Halt(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halt(ctx)
}

func (s *Server) halt(ctx context.Context) error {
	if s.proc == nil || s.proc.exited() {
		return errDown
	}
	// A frozen process does not see the signal that follows.
	if err := errors.Join(s.proc.signal(sigCont), s.proc.signal(syscall.SIGTERM)); err != nil {
		return err
	}
	select {
	case <-s.proc.done:
		s.dog.Forget()
		return nil
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), s.kill())
	}
}

// Kill ends the server by SIGKILL and returns when it is gone. What it had
// written stays; [Server.Start] recovers it.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.exited() {
		return errDown
	}
	return s.kill()
}

func (s *Server) kill() error {
	if err := s.proc.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-s.proc.done // SIGKILL cannot be refused, so this is short
	s.dog.Forget()
	return nil
}

// Pause freezes the server by SIGSTOP: connections stay open and nobody answers,
// as on a machine that hangs.
func (s *Server) Pause() error { return s.freeze(sigStop) }

// Resume lets a paused server go on where it was.
func (s *Server) Resume() error { return s.freeze(sigCont) }

func (s *Server) freeze(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.proc.exited() {
		return errDown
	}
	return s.proc.signal(sig)
}
