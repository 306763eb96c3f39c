package rabbitserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	// pollEvery and pollWithin are for signals that processes are about to take.
	pollEvery  = 5 * time.Millisecond
	pollWithin = 10 * time.Second
)

// Start starts a node that went down by [Server.Halt] or [Server.Kill] again:
// same ports, same data. It returns once the node takes connections.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return errStopped
	case s.running():
		return errRunning
	}
	return s.start(ctx)
}

// Stop kills the node, whose data nobody needs any more, and removes its
// directory. A second Stop does nothing.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	s.stopped = true
	var err error
	if s.running() {
		err = s.kill(s.helpers())
	}
	return errors.Join(err, os.RemoveAll(s.dir), s.dog.dismiss())
}

// Halt takes the node down in order, which closes the connections of clients,
// and keeps its data for [Server.Start]. When ctx is done first, the node is
// killed, and the error says so.
func (s *Server) Halt(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return errDown
	}
	// Found while the node is there: they outlive it for a moment.
	helpers := s.helpers()
	// A paused node would not see the signal that ends it.
	if err := errors.Join(s.node.signal(sigCont), s.node.signal(sigTerm)); err != nil {
		return err
	}
	select {
	case <-s.node.done:
		return s.kill(helpers) // and epmd
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("the node did not stop in time and was killed: %w", context.Cause(ctx)), s.kill(helpers))
	}
}

// Kill ends the node and its helpers by SIGKILL and returns when they are gone.
// What was confirmed stays; [Server.Start] recovers it.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return errDown
	}
	return s.kill(s.helpers())
}

// helpers are the processes that the node has started.
func (s *Server) helpers() []int {
	if s.node == nil {
		return nil
	}
	return descendants(s.node.pid)
}

// kill ends what is left of the node, its epmd and its helpers.
func (s *Server) kill(helpers []int) error {
	err := errors.Join(s.node.kill(), s.epmd.kill())
	for _, pid := range helpers {
		// It may be gone already, which is all that is wanted.
		_ = signalPID(pid, sigKill)
	}
	s.node, s.epmd = nil, nil
	s.dog.watch()
	return errors.Join(err, poll(func() bool { return !slices.ContainsFunc(helpers, alive) }))
}

// Pause freezes the node by SIGSTOP: connections stay open and nobody answers,
// as on a machine that hangs. It returns when every thread has stopped.
func (s *Server) Pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return errDown
	}
	if err := s.node.signal(sigStop); err != nil {
		return err
	}
	// The threads stop once one of them has taken the signal, which may be a
	// while on a busy machine.
	stopped := func() bool {
		return !slices.ContainsFunc(threadStates(s.node.pid), func(s string) bool { return s != "T" })
	}
	return poll(stopped)
}

// Resume lets a paused node go on where it was.
func (s *Server) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return errDown
	}
	return s.node.signal(sigCont)
}

func (s *Server) running() bool { return s.node != nil && !s.node.exited() }

// Ctl runs rabbitmqctl on the node and returns what it printed. It takes about
// a second.
func (s *Server) Ctl(ctx context.Context, args ...string) (string, error) {
	cmd := s.command(ctx, s.programs.ctl, append([]string{"--quiet"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("rabbitmqctl %s: %w: %s", args[0], err, bytes.TrimSpace(append(stdout.Bytes(), stderr.Bytes()...)))
	}
	return strings.TrimSpace(stdout.String()), nil
}

// poll waits for what the kernel is about to do and does not announce.
func poll(done func() bool) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	deadline := time.After(pollWithin)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			return fmt.Errorf("the processes of the node did not obey a signal within %v", pollWithin)
		}
	}
	return nil
}
