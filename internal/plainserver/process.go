package plainserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/notifyd/notifyd/internal/watchdog"
)

const (
	// readyEvery is how often a starting server is tried; it takes milliseconds.
	readyEvery = 5 * time.Millisecond
	// readyWithin is for a machine on which everything else runs at once.
	readyWithin = time.Minute
	// answerWithin bounds one such try.
	answerWithin = 2 * time.Second
	// tailBytes is how much of a log an error shows.
	tailBytes = 2048
)

var (
	errPortTaken = errors.New("the port is in use")
	errNotReady  = fmt.Errorf("no answer within %s", readyWithin)
	errStopped   = errors.New("the server is stopped and its data removed")
	errDown      = errors.New("the server is not running")
	errRunning   = errors.New("the server is already running")
)

// process is one run of the server.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and been waited for
}

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal sends sig through the process handle, which is safe against a process
// id that belongs to somebody else by now.
func (p *process) signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to the server: %w", sig, err)
	}
	return nil
}

// start runs the server and waits until it answers. On an error no process is
// left.
func (s *Server) start(ctx context.Context) error {
	args, err := s.program.Args(s.dir, s.port)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", s.program.Name, err)
	}
	defer log.Close() //nolint:errcheck // nothing was written through this handle
	// ctx bounds the start, not the life of the server.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), s.path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.SysProcAttr = watchdog.OwnGroup()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", s.program.Name, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // why it ended is in its log
	}()
	s.proc = p
	s.dog.Watch(cmd.Process.Pid)
	if err = s.ready(ctx); err == nil {
		return nil
	}
	err = errors.Join(err, s.kill())
	text, readErr := os.ReadFile(s.LogFile())
	if bytes.Contains(text, []byte("ddress already in use")) {
		err = errPortTaken
	}
	if len(text) > tailBytes {
		text = text[len(text)-tailBytes:]
	}
	return fmt.Errorf("start %s: %w; its log ends with:\n%s", s.program.Name, errors.Join(err, readErr), bytes.TrimSpace(text))
}

// ready waits until the process just launched answers.
func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, errNotReady)
	defer cancel()
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-s.proc.done:
			return errors.New("the process has ended")
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), last)
		case <-tick.C:
			if last = s.ask(ctx); last == nil && !s.proc.exited() {
				return nil
			}
		}
	}
}

func (s *Server) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return s.program.Ask(ctx, s.Addr(), s.dir, s.proc.cmd.Process.Pid)
}
