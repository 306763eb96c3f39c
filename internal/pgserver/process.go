package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// readyEvery is how often a starting server is tried. It needs 50 ms or
	// more, so a shorter interval would only compete with it.
	readyEvery = 20 * time.Millisecond
	// readyWithin is for a start that has to recover a long log first.
	readyWithin = 2 * time.Minute
	// answerWithin bounds one such try.
	answerWithin = 2 * time.Second
	// tailBytes of the log go into an error: some twenty lines.
	tailBytes = 2048
)

var (
	errPortTaken = errors.New("the port is in use")
	errNotGone   = errors.New("sessions of the last run are not gone yet")
	errNotReady  = fmt.Errorf("no answer within %s", readyWithin)
)

// process is one run of the postmaster.
type process struct {
	cmd  *exec.Cmd
	pid  int
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
func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to postgres: %w", sig, err)
	}
	return nil
}

// interrupt asks for an orderly end.
func (p *process) interrupt(mode Mode) error {
	switch mode {
	case Smart:
		return p.signal(syscall.SIGTERM)
	case Immediate:
		return p.signal(syscall.SIGQUIT)
	case Fast:
	}
	return p.signal(syscall.SIGINT)
}

// start runs postgres and waits until it answers. On an error no process is
// left.
func (s *Server) start(ctx context.Context) error {
	logSize, err := s.launch(ctx)
	if err != nil {
		return err
	}
	err = s.ready(ctx)
	if err == nil {
		return nil
	}
	if !s.proc.exited() {
		err = errors.Join(err, s.kill(context.WithoutCancel(ctx)))
	}
	s.dog.forget()
	tail := s.logTail(logSize)
	switch {
	case strings.Contains(tail, "Address already in use"):
		err = errPortTaken
	case strings.Contains(tail, "pre-existing shared memory block"), strings.Contains(tail, `"postmaster.pid" already exists`):
		err = errNotGone
	}
	return fmt.Errorf("start PostgreSQL on port %d: %w; its log ends with:\n%s", s.port, err, tail)
}

// launch starts the process and returns how long the log was before.
func (s *Server) launch(ctx context.Context) (logSize int64, err error) {
	log, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, fmt.Errorf("open the log of PostgreSQL: %w", err)
	}
	defer log.Close() //nolint:errcheck // nothing was written through this handle
	if logSize, err = log.Seek(0, io.SeekEnd); err != nil {
		return 0, fmt.Errorf("open the log of PostgreSQL: %w", err)
	}
	// ctx bounds the start, not the life of the server.
	cmd := s.command(context.WithoutCancel(ctx), "postgres", "-D", s.dataDir(), "-p", strconv.Itoa(s.port))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start PostgreSQL: %w", err)
	}
	p := &process{cmd: cmd, pid: cmd.Process.Pid, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		// How it ended is in its log, and read from there.
		_ = cmd.Wait()
	}()
	s.proc, s.frozen = p, false
	s.dog.watch(p.pid)
	return logSize, nil
}

// command prepares a program of PostgreSQL: as the right account, in its own
// process group (so that Ctrl-C reaches this process alone, which then ends the
// server in its own time), in a directory that the account can enter, and
// without the settings that a developer's environment may hold.
func (s *Server) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.binDir, program), args...)
	cmd.SysProcAttr = s.account.procAttr()
	cmd.Dir = s.dir
	cmd.WaitDelay = answerWithin
	cmd.Env = append(postgresEnv(os.Environ()), "LC_ALL=C")
	return cmd
}

// postgresEnv drops what would change the server or the language of the
// messages that start looks for.
func postgresEnv(environ []string) []string {
	kept := make([]string, 0, len(environ)+1)
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "LC_") && !strings.HasPrefix(kv, "LANG") {
			kept = append(kept, kv)
		}
	}
	return kept
}

// ready waits for the first answer of the process just launched.
func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, errNotReady)
	defer cancel()
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-s.proc.done:
			return errors.New("postgres exited")
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), last)
		case <-tick.C:
			if last = s.ask(ctx); last == nil {
				return nil
			}
		}
	}
}

// ask connects once and learns the version. It accepts only our own server:
// another one may sit on a port that ours did not get.
func (s *Server) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL(""))
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // the answer counts, not the farewell
	var dataDir, version string
	const query = `SELECT current_setting('data_directory'), current_setting('server_version')`
	if err := conn.QueryRow(ctx, query).Scan(&dataDir, &version); err != nil {
		return err
	}
	if dataDir != s.dataDir() {
		return fmt.Errorf("another server, with its data in %s, has the port", dataDir)
	}
	if s.version == "" {
		s.version = version
	}
	return nil
}

// logTail returns the end of what was logged since the log had the size from.
func (s *Server) logTail(from int64) string {
	b, err := os.ReadFile(s.LogFile())
	if err != nil {
		return err.Error()
	}
	if from < int64(len(b)) {
		b = b[from:]
	}
	return tail(b)
}

func tail(b []byte) string {
	b = bytes.TrimSpace(b)
	if len(b) > tailBytes {
		b = b[len(b)-tailBytes:]
	}
	return string(b)
}
