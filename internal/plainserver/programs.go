package plainserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// ErrNotFound says that a program is not installed. The error that wraps it
// names the package.
var ErrNotFound = errors.New("not installed")

// Program says how to start a server, and how to know that it answers.
type Program struct {
	// Name is that of the executable, looked for in PATH and in the directories
	// where Debian and Homebrew put programs.
	Name string
	// Cure says how to get it.
	Cure string
	// Args returns its arguments. It may write files into dir, which is the
	// server's own; port is the one to listen on.
	Args func(dir string, port int) ([]string, error)
	// Ask asks the server with this process id and directory whether it is
	// ready. It must not be taken in by another one that sits on the port.
	Ask func(ctx context.Context, addr, dir string, pid int) error
}

// find returns the path of the executable.
func (p Program) find() (string, error) {
	if path, err := exec.LookPath(p.Name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/opt/homebrew/bin"} {
		path := filepath.Join(dir, p.Name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is %w: %s", p.Name, ErrNotFound, p.Cure)
}

// Redis is Redis. It writes every change to its disk before it answers, so that
// what it has acknowledged survives a kill. args are options for its command
// line, which win over ours: "--maxmemory", "1mb".
func Redis(args ...string) Program {
	return Program{
		Name: "redis-server",
		Cure: "on Debian, apt-get install redis-server; on macOS, brew install redis",
		Args: func(dir string, port int) ([]string, error) {
			return append([]string{
				"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "",
				"--appendonly", "yes", "--appendfsync", "always",
			}, args...), nil
		},
		Ask: askRedis,
	}
}

// Sentinel is a Redis Sentinel that watches the server at master, under the
// name "mymaster". It counts a server as down after five seconds: it judges the
// replicas by the same limit, and a busy machine may stop one for a second. A
// failover that found no good replica is tried again after 20 s instead of 6 min.
func Sentinel(master string) Program {
	p := Redis()
	p.Args = func(dir string, port int) ([]string, error) {
		host, masterPort, err := net.SplitHostPort(master)
		if err != nil {
			return nil, err
		}
		// It rewrites this file.
		path := filepath.Join(dir, "sentinel.conf")
		conf := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor mymaster %s %s 1\n"+
			"sentinel down-after-milliseconds mymaster 5000\nsentinel failover-timeout mymaster 10000\n", port, dir, host, masterPort)
		return []string{path, "--sentinel"}, os.WriteFile(path, []byte(conf), 0o600)
	}
	return p
}

// askRedis asks for the process id, which every Redis tells to those who may
// ask. One that wants a password or TLS is ready too, as far as can be seen.
func askRedis(ctx context.Context, addr, _ string, pid int) error {
	answer, err := talk(ctx, addr, "INFO server\r\n")
	switch {
	case bytes.Contains(answer, fmt.Appendf(nil, "process_id:%d\r\n", pid)), bytes.HasPrefix(answer, []byte("-NOAUTH")):
		return nil
	case bytes.HasPrefix(answer, []byte("$")):
		return errors.New("another server has the port")
	case err != nil:
		return err
	default:
		return fmt.Errorf("the server answers %q", answer)
	}
}

// NATS is NATS with JetStream. conf is the text of its configuration, without
// address and store: "authorization { token: t }".
func NATS(conf string) Program {
	return Program{
		Name: "nats-server",
		Cure: "on Debian, apt-get install nats-server; on macOS, brew install nats-server",
		Args: func(dir string, port int) ([]string, error) {
			path := filepath.Join(dir, "nats.conf")
			return []string{"-c", path, "-a", "127.0.0.1", "-p", strconv.Itoa(port), "-js", "-sd", dir, "-n", name(dir)},
				os.WriteFile(path, []byte(conf+"\n"), 0o600)
		},
		Ask: askNATS,
	}
}

// name is that of a server, out of its directory's.
func name(dir string) string { return filepath.Base(dir) }

// askNATS reads the greeting. The server listens when its streams are there.
func askNATS(ctx context.Context, addr, dir string, _ int) error {
	greeting, err := talk(ctx, addr, "")
	if bytes.Contains(greeting, fmt.Appendf(nil, `"server_name":%q`, name(dir))) {
		return nil
	}
	return errors.Join(err, fmt.Errorf("the server greets with %q", greeting))
}

// maxAnswer is enough for the first part of an answer.
const maxAnswer = 4096

// talk says something and returns the first part of the answer.
func talk(ctx context.Context, addr, text string) ([]byte, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // the answer counts, not the farewell
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	if _, err := conn.Write([]byte(text)); err != nil {
		return nil, err
	}
	buf := make([]byte, maxAnswer)
	n, err := conn.Read(buf)
	return buf[:n], err
}
