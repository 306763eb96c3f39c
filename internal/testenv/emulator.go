package testenv

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// emulatorReadyWithin allows for a busy machine; a start takes a second.
const emulatorReadyWithin = time.Minute

// sharedEmulator is one emulator for all tests of a test binary.
type sharedEmulator struct {
	variable string // of the environment: the URL of one that runs already
	start    func(ctx context.Context) (*emulator, error)

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
	if raw := os.Getenv(s.variable); raw != "" {
		if u, err := url.Parse(raw); err != nil || u.Host == "" || u.User != nil {
			s.err = fmt.Errorf("%s is not a URL, or holds a password", s.variable)
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

// emulator is a running program that prints its URL and ends with its standard input.
type emulator struct {
	name, endpoint string
	cmd            *exec.Cmd
	stdin          io.Closer
	stderr         bytes.Buffer
}

func startEmulator(ctx context.Context, name, program string, args ...string) (*emulator, error) {
	// It lives as long as all tests, not only the first.
	s := &emulator{name: name, cmd: exec.CommandContext(context.WithoutCancel(ctx), program, args...)}
	s.cmd.Stderr = &s.stderr
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the emulator of %s: %w", name, err)
	}
	late := time.AfterFunc(emulatorReadyWithin, func() { _ = s.cmd.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if s.endpoint = strings.TrimSpace(line); late.Stop() && err == nil {
		return s, nil
	}
	_ = s.stdin.Close()
	_ = s.cmd.Wait() // fills stderr
	return nil, fmt.Errorf("start the emulator of %s: not ready within %v, or ended: %s", name, emulatorReadyWithin, s.stderr.String())
}

// stop ends the emulator, gracefully until ctx is done.
func (s *emulator) stop(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = s.cmd.Process.Kill() })()
	err := s.stdin.Close()
	if waitErr := s.cmd.Wait(); waitErr != nil {
		err = errors.Join(err, fmt.Errorf("end the emulator of %s: %w: %s", s.name, waitErr, s.stderr.String()))
	}
	return err
}

// inCache returns a file below .cache of this checkout, where a script of the directory
// scripts/PARTS[0] has put it.
func inCache(parts ...string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "scripts", parts[0], "setup")); err == nil {
			path := filepath.Join(append([]string{dir, ".cache"}, parts...)...)
			_, err := os.Stat(path)
			return path, err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fs.ErrNotExist
		}
		dir = parent
	}
}
