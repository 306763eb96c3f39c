package privateserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
)

const (
	// startAgainFor and startAgainEvery bound a start while an ending process still holds the port or the memory of the
	// last run.
	startAgainFor   = 5 * time.Second
	startAgainEvery = 100 * time.Millisecond
	// obeyWithin and lookEvery bound the wait for processes that have not yet acted on a signal.
	obeyWithin = 10 * time.Second
	lookEvery  = 5 * time.Millisecond
)

var errDisobeyed = fmt.Errorf("a process of the server did not obey a signal within %s", obeyWithin)

// Start starts a server again after [Server.Halt] or [Server.Kill], with the same ports
// and data. It returns once the server answers.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.startAgain(ctx)
}

func (s *Server) startAgain(ctx context.Context) error {
	switch {
	case s.stopped:
		return ErrStopped
	case s.running():
		return ErrRunning
	}

	deadline := time.After(startAgainFor)
	tick := time.NewTicker(startAgainEvery)
	defer tick.Stop()

	for {
		err := s.start(ctx)
		if !errors.Is(err, ErrBusy) {
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

// Stop kills the server and removes its directory. An orderly end can be slow: a Redis that cannot save does not end at
// all. A second Stop does nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.stopped {
		return nil
	}

	s.stopped = true
	var err error
	if s.running() {
		err = s.kill(ctx)
	}

	if s.program.Cleanup != nil {
		err = errors.Join(err, s.program.Cleanup(s))
	}

	return errors.Join(err, os.RemoveAll(s.dir), s.dog.dismiss())
}

// Halt takes the server down by SIGTERM, in an orderly way, and keeps its data for
// [Server.Start]. When ctx is done first, the server is killed, and the error wraps
// [ErrForced].
func (s *Server) Halt(ctx context.Context) error { return s.HaltBy(ctx, syscall.SIGTERM) }

// HaltBy is [Server.Halt] by another signal.
func (s *Server) HaltBy(ctx context.Context, sig os.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halt(ctx, sig)
}

// RestartBy is [Server.HaltBy] and [Server.Start]. A server that is down is only started.
func (s *Server) RestartBy(ctx context.Context, sig os.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if err := s.halt(ctx, sig); err != nil && !errors.Is(err, ErrDown) {
		return err
	}
	return s.startAgain(ctx)
}

func (s *Server) halt(ctx context.Context, sig os.Signal) error {
	if !s.running() {
		return ErrDown
	}

	if s.frozen {
		// A stopped process does not see the next signal.
		if err := s.thaw(ctx); err != nil {
			return err
		}
	}

	p := s.proc.Load()
	// List the descendants while the server runs: they outlive it for a moment.
	tree, err := descendants(ctx, p.pid)
	if err := errors.Join(err, p.signal(sig)); err != nil {
		return err
	}

	select {
	case <-p.done:
		return s.ended(ctx, p, tree)
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("%w: %w", ErrForced, context.Cause(ctx)), s.kill(ctx))
	}
}

// Kill ends the server and all its processes by SIGKILL, like a crash, and returns when
// they are gone. Written data stays, and [Server.Start] recovers it.
func (s *Server) Kill(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if !s.running() {
		return ErrDown
	}
	return s.kill(ctx)
}

// kill ends the process that was launched last, even if ctx is done.
func (s *Server) kill(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	p := s.proc.Load()

	var tree []entry
	var listErr error
	if !p.exited() {
		// A child notices that its parent has ended, but only at its next wait: a busy session could still commit after
		// the crash. So kill the children too. Stop the parent first, so that it forks no more of them. An error of the
		// signal does not matter.
		_ = p.signal(sigStop)
		tree, listErr = descendants(ctx, p.pid)
	}

	err := p.signal(syscall.SIGKILL)
	for _, child := range tree {
		_ = signalPID(child.pid, syscall.SIGKILL) // it may have ended meanwhile
	}

	if err != nil {
		return errors.Join(err, listErr)
	}

	<-p.done // SIGKILL cannot be refused, so the wait is short
	return errors.Join(listErr, s.ended(ctx, p, tree))
}

// ended forgets an ended process, ends the rest of its process group, and waits until
// its descendants are gone.
func (s *Server) ended(ctx context.Context, p *process, tree []entry) error {
	s.frozen = false
	s.dog.forget()
	return errors.Join(signalPID(-p.pid, syscall.SIGKILL), await(context.WithoutCancel(ctx), func(ctx context.Context) (bool, error) {
		left, err := anyAlive(ctx, tree)
		return !left, err
	}))
}

// Pause freezes the server and all its processes by SIGSTOP: connections stay open
// without an answer, as on a machine that hangs. It returns when every thread has
// stopped, as far as the platform shows that.
func (s *Server) Pause(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if !s.running() {
		return ErrDown
	}

	s.frozen = true
	p := s.proc.Load()
	// Stop the parent first: a stopped parent forks no children.
	if err := p.signal(sigStop); err != nil {
		return err
	}

	pids, err := signalDescendants(ctx, p.pid, sigStop)
	if err != nil {
		return err
	}

	// The threads of a process stop once one of them has taken the signal, which may
	// take a while on a busy machine.
	pids = append(pids, p.pid)
	return await(ctx, func(context.Context) (bool, error) {
		return !slices.ContainsFunc(pids, func(pid int) bool { return !stopped(pid) }), nil
	})
}

// Resume continues a paused server.
func (s *Server) Resume(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if !s.running() {
		return ErrDown
	}
	return s.thaw(ctx)
}

func (s *Server) thaw(ctx context.Context) error {
	p := s.proc.Load()
	if _, err := signalDescendants(ctx, p.pid, sigCont); err != nil {
		return err
	}
	if err := p.signal(sigCont); err != nil {
		return err
	}

	s.frozen = false
	return nil
}

func (s *Server) running() bool { return s.PID() != 0 }

// signalDescendants sends sig to all descendants of pid.
func signalDescendants(ctx context.Context, pid int, sig syscall.Signal) (sent []int, err error) {
	for {
		tree, err := descendants(ctx, pid)
		if err != nil {
			return nil, err
		}

		tree = slices.DeleteFunc(tree, func(e entry) bool { return slices.Contains(sent, e.pid) })
		// List them again after each round, for a child whose fork was under way.
		if len(tree) == 0 {
			return sent, nil
		}

		for _, e := range tree {
			if err := signalPID(e.pid, sig); err != nil {
				return nil, err
			}
			sent = append(sent, e.pid)
		}
	}
}

// await polls for a change by the kernel, which sends no event.
func await(ctx context.Context, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, obeyWithin, errDisobeyed)
	defer cancel()

	tick := time.NewTicker(lookEvery)
	defer tick.Stop()

	for {
		if ok, err := done(ctx); ok || err != nil {
			return err
		}

		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
