package privateserver_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestLives kills, halts and freezes a server of each kind.
func TestLives(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*privateserver.Server{
		"redis": testenv.OwnRedis(t),
		"nats":  testenv.OwnNATS(t, ""),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lives(t, s)
		})
	}
}

func lives(t *testing.T, s *privateserver.Server) {
	t.Helper()
	addr, pid := s.Addr(), s.PID()
	if err := s.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) || s.PID() != 0 {
		t.Errorf("after Kill: %v, pid %d", err, s.PID())
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.Addr() != addr || s.PID() == pid {
		t.Errorf("after a restart the server is %d at %s, was %d at %s", s.PID(), s.Addr(), pid, addr)
	}
	if err := s.Start(t.Context()); err == nil {
		t.Error("a running server was started again")
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Halt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(t.Context()); err == nil {
		t.Error("Kill of a dead server returned no error")
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err == nil {
		t.Error("a server without data was started")
	}
}

func TestStartQuotesTheServer(t *testing.T) {
	t.Parallel()
	for want, program := range map[string]privateserver.Program{
		"emperor":     privateserver.Redis("--maxmemory-policy", "emperor"),
		"Parse error": privateserver.NATS("empire {"),
	} {
		s, err := privateserver.Start(t.Context(), program)
		if errors.Is(err, privateserver.ErrNotFound) {
			testenv.Need(t, want, err)
		}
		if err == nil {
			_ = s.Stop(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Start = %v, want what the server says: %s", err, want)
		}
	}
}

func TestNotInstalled(t *testing.T) {
	t.Parallel()
	_, err := privateserver.Start(t.Context(), privateserver.Program{
		Name: "none",
		Command: func(*privateserver.Server) (string, []string, error) {
			path, err := privateserver.LookPath("no-such-server", "build one")
			return path, nil, err
		},
	})
	if !errors.Is(err, privateserver.ErrNotFound) || !strings.Contains(err.Error(), "build one") {
		t.Errorf("Start = %v, want ErrNotFound with the cure", err)
	}
}
