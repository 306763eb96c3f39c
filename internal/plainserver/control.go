package plainserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// stopWithin is for a signal that a process is about to take.
const stopWithin = 10 * time.Second

// Start starts a server that went down by [Server.Halt] or [Server.Kill] again:
// same port, same data. It returns once the server answers.
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

// Stop kills the server, whose data nobody needs any more, and removes its
// directory. (An orderly end can take its time: a Redis that cannot save does
// not end at all.) A second Stop does nothing.
func (s *Server) Stop(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	var err error
	if s.proc != nil && !s.proc.exited() {
		err = s.kill()
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
// as on a machine that hangs. It returns when every thread has stopped, where
// that can be seen.
func (s *Server) Pause() error {
	if err := s.freeze(sigStop); err != nil {
		return err
	}
	// The threads stop once one of them has taken the signal, which may be a
	// while on a busy machine.
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for range stopWithin / readyEvery {
		if stopped(s.PID()) {
			return nil
		}
		<-tick.C
	}
	return fmt.Errorf("the server did not stop within %v", stopWithin)
}

// stopped reports whether all threads of a process have stopped. Without /proc
// it says so at once.
func stopped(pid int) bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return true
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // that thread has ended
		}
		// The state stands behind the name, which is in parentheses.
		if i := bytes.LastIndexByte(text, ')'); i >= 0 && !bytes.HasPrefix(text[i:], []byte(") T")) {
			return false
		}
	}
	return true
}

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
