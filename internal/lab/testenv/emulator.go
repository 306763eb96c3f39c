package testenv

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// emulatorReadyWithin allows for a busy machine; a start takes a second or some.
const emulatorReadyWithin = 2 * time.Minute

// sharedEmulator is one emulator for all tests of a test binary: a program that prints its URL, and ends when its
// standard input does.
type sharedEmulator struct {
	name string // for errors
	env  string // of a shared one
	// program returns the program, or an error that names the way to install it.
	program func() (name string, args []string, err error)

	mu       sync.Mutex
	endpoint string
	err      error // why the start failed; it is tried once
}

func (s *sharedEmulator) get(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.endpoint != "" || s.err != nil {
		return s.endpoint, s.err
	}

	if raw := os.Getenv(s.env); raw != "" {
		if u, err := url.Parse(raw); err != nil || u.Host == "" || u.User != nil {
			s.err = fmt.Errorf("%s is not a URL, or holds a password", s.env)
			return "", s.err
		}
		s.endpoint = raw
		return raw, nil
	}

	server, err := s.start(ctx)
	if err != nil {
		s.err = err
		return "", err
	}

	s.endpoint = server.endpoint
	shared.stopLater(server.stop)
	return s.endpoint, nil
}

// emulator is a running emulator.
type emulator struct {
	name     string
	endpoint string
	cmd      *exec.Cmd
	stdin    io.Closer
	stderr   bytes.Buffer
}

func (s *sharedEmulator) start(ctx context.Context) (*emulator, error) {
	program, args, err := s.program()
	if err != nil {
		return nil, err
	}

	// It lives as long as all tests, not only the first.
	e := &emulator{name: s.name, cmd: exec.CommandContext(context.WithoutCancel(ctx), program, args...)}
	e.cmd.Stderr = &e.stderr

	stdout, err := e.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}

	e.stdin, err = e.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}

	if err := e.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the emulator of %s: %w", s.name, err)
	}

	late := time.AfterFunc(emulatorReadyWithin, func() { _ = e.cmd.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	e.endpoint = strings.TrimSpace(line)
	if late.Stop() && err == nil {
		return e, nil
	}

	_ = e.stdin.Close()
	_ = e.cmd.Wait() // fills stderr
	return nil, fmt.Errorf("start the emulator of %s: not ready within %v, or ended: %s",
		s.name, emulatorReadyWithin, e.stderr.String())
}

// stop ends the emulator, gracefully until ctx is done.
func (e *emulator) stop(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = e.cmd.Process.Kill() })()
	err := e.stdin.Close()
	if waitErr := e.cmd.Wait(); waitErr != nil {
		err = errors.Join(err, fmt.Errorf("end the emulator of %s: %w: %s", e.name, waitErr, e.stderr.String()))
	}
	return err
}

// fetched returns a file below .cache that the script with the given source, a file of this checkout,
// has fetched; false if it is missing.
func fetched(source string, file ...string) (string, bool) {
	dir, err := os.Getwd()
	if err != nil {
		return "", false
	}

	for {
		if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(source))); err == nil {
			path := filepath.Join(append([]string{dir, ".cache"}, file...)...)
			_, err := os.Stat(path)
			return path, err == nil
		}

		parent := filepath.Dir(dir)
		if parent == dir {
			return "", false
		}
		dir = parent
	}
}
