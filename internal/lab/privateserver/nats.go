package privateserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
)

// NATS describes a NATS server with JetStream. conf is its configuration without address and store, such as
// "authorization { token: t }".
func NATS(conf string) Program {
	return Program{
		Name: "NATS",
		Command: command("nats-server", "on Debian, apt-get install nats-server; on macOS, brew install nats-server", func(s *Server) ([]string, error) {
			path, err := s.WriteFile("nats.conf", []byte(conf+"\n"))
			return []string{"-c", path, "-a", "127.0.0.1", "-p", strconv.Itoa(s.Port()), "-js", "-sd", s.Dir(), "-n", s.nickname()}, err
		}),
		Ask: askNATS,
	}
}

// nickname identifies this server: the name of its directory.
func (s *Server) nickname() string { return filepath.Base(s.dir) }

// askNATS reads the greeting. The server listens once its streams are loaded.
func askNATS(ctx context.Context, s *Server) error {
	greeting, err := talk(ctx, s.Addr(), "")
	if bytes.Contains(greeting, fmt.Appendf(nil, `"server_name":%q`, s.nickname())) {
		return nil
	}
	return errors.Join(err, fmt.Errorf("the server greets with %q", greeting))
}
