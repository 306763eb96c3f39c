package privateserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
)

// Redis describes a Redis. It writes every change to its disk before it answers, so that acknowledged changes survive a
// kill. args are options for its command line, which override the usual ones: "--maxmemory", "1mb".
func Redis(args ...string) Program {
	return redis(func(s *Server) ([]string, error) {
		return append([]string{
			"--port", strconv.Itoa(s.Port()), "--bind", "127.0.0.1", "--dir", s.Dir(), "--save", "",
			"--appendonly", "yes", "--appendfsync", "always",
		}, args...), nil
	})
}

// Sentinel describes a Redis Sentinel that watches the server at master, under the name "mymaster". A server counts as
// down after five seconds: the same limit applies to the replicas, and a busy machine may stop one for a second. A
// failover that found no good replica is repeated after 20 s instead of 6 min.
func Sentinel(master string) Program {
	return redis(func(s *Server) ([]string, error) {
		host, port, err := net.SplitHostPort(master)
		if err != nil {
			return nil, err
		}

		// A Sentinel rewrites this file.
		path, err := s.WriteFile("sentinel.conf", fmt.Appendf(nil, "port %d\nbind 127.0.0.1\ndir %s\n"+
			"sentinel monitor mymaster %s %s 1\n"+
			"sentinel down-after-milliseconds mymaster 5000\nsentinel failover-timeout mymaster 10000\n",
			s.Port(), s.Dir(), host, port))
		return []string{path, "--sentinel"}, err
	})
}

func redis(args func(*Server) ([]string, error)) Program {
	return Program{
		Name:    "Redis",
		Command: command("redis-server", "on Debian, apt-get install redis-server; on macOS, brew install redis", args),
		Ask:     askRedis,
	}
}

// command looks the program up before each start.
func command(program, cure string, args func(*Server) ([]string, error)) func(*Server) (string, []string, error) {
	return func(s *Server) (string, []string, error) {
		path, err := LookPath(program, cure)
		if err != nil {
			return "", nil, err
		}
		list, err := args(s)
		return path, list, err
	}
}

// askRedis compares the process id. A Redis that requires a password or TLS counts as ready without the comparison.
func askRedis(ctx context.Context, s *Server) error {
	answer, err := talk(ctx, s.Addr(), "INFO server\r\n")
	switch {
	case bytes.Contains(answer, fmt.Appendf(nil, "process_id:%d\r\n", s.PID())), bytes.HasPrefix(answer, []byte("-NOAUTH")):
		return nil
	case bytes.HasPrefix(answer, []byte("$")):
		return errors.New("another server has the port")
	case err != nil:
		return err
	default:
		return fmt.Errorf("the server answers %q", answer)
	}
}

// maxAnswer is enough for the first part of an answer.
const maxAnswer = 4096

// talk sends text and returns the first part of the answer.
func talk(ctx context.Context, addr, text string) ([]byte, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // the answer is complete

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
