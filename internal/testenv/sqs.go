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
	"testing"
	"time"
)

// EnvSQSEndpoint names the environment variable with the URL of the shared SQS:
// an emulator that accepts any credentials.
const EnvSQSEndpoint = "NOTIFYD_TEST_SQS_ENDPOINT"

// sqsReadyWithin allows for a busy machine; a start takes a second.
const sqsReadyWithin = time.Minute

// sqsScript runs the emulator on the loopback, which its own program cannot, and
// prints its port. It ends with its standard input, and so with this process,
// however that dies.
const sqsScript = `
import { pathToFileURL } from "node:url";
const { buildApp } = await import(pathToFileURL(process.argv[1]).href);
const app = buildApp({ logger: false });
process.stdin.on("end", () => process.exit(0)).resume();
console.log(await app.listen({ port: 0, host: "127.0.0.1" }));
`

// errNoSQS is in the chain of the error if the emulator is not installed.
var errNoSQS = errors.New("the emulator of SQS is missing: make setup fetches it from npm, and node runs it")

// sharedSQS is one emulator for all tests of a test binary.
type sharedSQS struct {
	mu       sync.Mutex
	endpoint string
	err      error // why the start failed; it is tried once
}

// sqs is state of the package for the same reason as postgres.
var sqs sharedSQS //nolint:gochecknoglobals // see postgres

// SQS returns the URL of the SQS that all tests of this binary share: the one of
// [EnvSQSEndpoint], or a private emulator that [Main] ends. It accepts any
// credentials. Tests create queues of their own.
func SQS(tb testing.TB) (endpoint string) {
	tb.Helper()
	endpoint, err := sqs.get(tb.Context())
	if err != nil && !errors.Is(err, errNoSQS) {
		tb.Fatal(err)
	}
	require(tb, "sqs", err)
	return endpoint
}

func (s *sharedSQS) get(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endpoint != "" || s.err != nil {
		return s.endpoint, s.err
	}
	if raw := os.Getenv(EnvSQSEndpoint); raw != "" {
		if u, err := url.Parse(raw); err != nil || u.Host == "" || u.User != nil {
			s.err = fmt.Errorf("%s is not a URL, or holds a password", EnvSQSEndpoint)
			return "", s.err
		}
		s.endpoint = raw
		return raw, nil
	}
	server, err := startSQS(ctx)
	if err != nil {
		s.err = err
		return "", err
	}
	s.endpoint = server.endpoint
	shared.stopLater(server.stop)
	return s.endpoint, nil
}

// sqsServer is a running emulator.
type sqsServer struct {
	endpoint string
	cmd      *exec.Cmd
	stdin    io.Closer
	stderr   bytes.Buffer
}

func startSQS(ctx context.Context) (*sqsServer, error) {
	app, err := findSQS()
	if err != nil {
		return nil, err
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return nil, errNoSQS
	}
	// It lives as long as all tests, not only the first.
	s := &sqsServer{cmd: exec.CommandContext(context.WithoutCancel(ctx), node, "--input-type=module", "--eval", sqsScript, app)}
	s.cmd.Stderr = &s.stderr
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the emulator of SQS: %w", err)
	}
	late := time.AfterFunc(sqsReadyWithin, func() { _ = s.cmd.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if s.endpoint = strings.TrimSpace(line); late.Stop() && err == nil {
		return s, nil
	}
	_ = s.stdin.Close()
	_ = s.cmd.Wait() // fills stderr
	return nil, fmt.Errorf("start the emulator of SQS: not ready within %v, or ended: %s", sqsReadyWithin, s.stderr.String())
}

// stop ends the emulator, gracefully until ctx is done.
func (s *sqsServer) stop(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = s.cmd.Process.Kill() })()
	err := s.stdin.Close()
	if waitErr := s.cmd.Wait(); waitErr != nil {
		err = errors.Join(err, fmt.Errorf("end the emulator of SQS: %w: %s", waitErr, s.stderr.String()))
	}
	return err
}

// findSQS returns the emulator that scripts/sqs/setup has fetched into this checkout.
func findSQS() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "scripts", "sqs", "package.json")); err == nil {
			app := filepath.Join(dir, ".cache", "sqs", "node_modules", "fauxqs", "dist", "app.js")
			if _, err := os.Stat(app); err != nil {
				return "", errNoSQS
			}
			return app, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errNoSQS
		}
		dir = parent
	}
}
