package privateserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	// readyEvery is the interval of checks during a start. The fastest servers take some
	// milliseconds, PostgreSQL 50 ms; more checks would only compete for the CPU.
	readyEvery = 20 * time.Millisecond
	// readyWithin bounds a start. It allows for a busy machine, and for recovery from a long log.
	readyWithin = 2 * time.Minute
	// answerWithin bounds one answer.
	answerWithin = 2 * time.Second
	// tailBytes is how much of a log goes into an error, in bytes. Erlang writes much, with the reason first.
	tailBytes = 8192
)

var errNotReady = fmt.Errorf("no answer within %s", readyWithin)

// process is one run of a server.
type process struct {
	cmd  *exec.Cmd
	pid  int
	done chan struct{} // closed after Wait
}

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal sends sig through the process handle, which is safe against a reused process id.
func (p *process) signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to the server: %w", sig, err)
	}
	return nil
}

// Command prepares a program with the server's account, environment and directory.
func (s *Server) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = s.program.Account.ProcAttr()
	cmd.Dir = s.dir
	cmd.WaitDelay = answerWithin
	if s.program.Env != nil {
		cmd.Env = s.program.Env(s)
	}
	return cmd
}

// start runs the server and waits until it answers. After an error no process is left.
func (s *Server) start(ctx context.Context) error {
	path, args, err := s.program.Command(s)
	if err != nil {
		return err
	}

	from, err := s.launch(ctx, path, args)
	if err == nil {
		err = s.ready(ctx)
		if err == nil {
			return nil
		}
		err = errors.Join(err, s.kill(ctx))
	}

	tail := s.logTail(from)
	signs := append([]string{"ddress already in use", "eaddrinuse"}, s.program.Busy...)
	if slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(tail, sign) }) {
		err = errors.Join(ErrBusy, err)
	}

	return fmt.Errorf("start %s on port %d: %w; its log ends with:\n%s", s.program.Name, s.port, err, tail)
}

// launch starts the process and returns how long the log was before.
func (s *Server) launch(ctx context.Context, path string, args []string) (from int64, err error) {
	log, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close() //nolint:errcheck // nothing was written through this handle
	from, err = log.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}

	// ctx bounds the start, not the life of the server.
	cmd := s.Command(context.WithoutCancel(ctx), path, args...)
	cmd.Stdout = log
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return from, err
	}

	p := &process{cmd: cmd, pid: cmd.Process.Pid, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the log has the reason
	}()

	s.proc.Store(p)
	s.frozen = false
	s.dog.watch(p.pid)
	return from, nil
}

// ready waits for the first answer of the process just launched.
func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, errNotReady)
	defer cancel()

	tick := time.NewTicker(readyEvery)
	defer tick.Stop()

	p := s.proc.Load()
	var last error

	for {
		select {
		case <-p.done:
			return errors.Join(errors.New("the process has ended"), last)
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), last)
		case <-tick.C:
			last = s.ask(ctx)
			if last == nil && !p.exited() {
				return nil
			}
		}
	}
}

func (s *Server) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return s.program.Ask(ctx, s)
}

// logTail returns the end of the log after offset from, in at most tailBytes.
func (s *Server) logTail(from int64) string {
	b, err := os.ReadFile(s.LogFile())
	if err != nil {
		return err.Error()
	}
	return Tail(b[min(from, int64(len(b))):])
}

// Tail returns the end of a program's output, for an error.
func Tail(output []byte) string {
	output = bytes.TrimSpace(output)
	return string(output[max(0, len(output)-tailBytes):])
}
