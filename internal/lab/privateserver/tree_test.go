package privateserver

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// tree is a server with one child in its process group, and one outside it.
func tree(t *testing.T) *Server {
	t.Helper()
	if _, err := exec.LookPath("setsid"); err != nil && os.Getenv("NOTIFYD_TEST_REQUIRE") == "" {
		t.Skip(err)
	}
	const script = `sleep 1000 & setsid sleep 1000 & trap 'kill $!; exit' TERM; while :; do wait; done`
	s, err := Start(t.Context(), Program{
		Name:    "tree",
		Command: func(*Server) (string, []string, error) { return "/bin/sh", []string{"-c", script}, nil },
		Ask: func(ctx context.Context, s *Server) error {
			if all, err := descendants(ctx, s.PID()); err != nil || len(all) < 2 {
				return errors.Join(err, errors.New("the children are not there"))
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestNoProcessOutlivesItsServer ends a server in three ways.
func TestNoProcessOutlivesItsServer(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(*Server, context.Context) error{"Kill": (*Server).Kill, "Halt": (*Server).Halt, "Stop": (*Server).Stop} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := tree(t)
			pid := s.PID()
			children, err := descendants(t.Context(), pid)
			if err != nil {
				t.Fatal(err)
			}
			if err := end(s, t.Context()); err != nil {
				t.Fatal(err)
			}
			if alive, err := anyAlive(t.Context(), children); alive || err != nil {
				t.Errorf("a process is left: %t, %v", alive, err)
			}
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("signal to the server: %v, want that it is gone", err)
			}
		})
	}
}

// TestPauseStopsAll also halts the server while it is paused.
func TestPauseStopsAll(t *testing.T) {
	t.Parallel()
	s := tree(t)
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	children, err := descendants(t.Context(), s.PID())
	if err != nil {
		t.Fatal(err)
	}
	if states := statesOf(children); !slices.Equal(states, []string{"T"}) || !stopped(s.PID()) {
		t.Errorf("children are in state %q, the server is stopped: %t", states, stopped(s.PID()))
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if stopped(s.PID()) {
		t.Error("the server is stopped after Resume")
	}
	if err := errors.Join(s.Pause(t.Context()), s.Halt(t.Context())); err != nil {
		t.Error(err)
	}
}

// statesOf returns the different states of processes.
func statesOf(these []entry) []string {
	var states []string
	for _, e := range these {
		states = append(states, e.state)
	}
	slices.Sort(states)
	return slices.Compact(states)
}

// TestHaltEndsWithItsContext halts a server by a signal that ends no process.
func TestHaltEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := tree(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := s.HaltBy(ctx, syscall.Signal(0)); !errors.Is(err, ErrForced) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("HaltBy = %v, want %v", err, ErrForced)
	}
	if err := s.Halt(t.Context()); !errors.Is(err, ErrDown) {
		t.Errorf("Halt of a dead server = %v, want %v", err, ErrDown)
	}
	if err := s.RestartBy(t.Context(), syscall.SIGTERM); err != nil {
		t.Errorf("RestartBy of a dead server = %v, want nil", err)
	}
}

func TestAccountCannotEnterAClosedDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() // closed to others
	if err := (Account{}).CanEnter(dir); err != nil {
		t.Errorf("our own account: %v", err)
	}
	if err := (Account{name: "other", uid: 54321, gid: 54321}).CanEnter(dir); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("CanEnter = %v, want %v", err, fs.ErrPermission)
	}
}

func TestProcessesFromBothSources(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var stats []string
	for pid, stat := range map[int]string{
		7: "7 (postgres: a b) S 5 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 70",
		8: "8 (odd ) name) R 5 8 8 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 80",
	} {
		path := filepath.Join(dir, strconv.Itoa(pid), "stat")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(stat), 0o644); err != nil {
			t.Fatal(err)
		}
		stats = append(stats, path)
	}
	slices.Sort(stats)
	if got, want := fromProc(stats), []entry{{7, 5, "S", "70"}, {8, 5, "R", "80"}}; !slices.Equal(got, want) {
		t.Errorf("fromProc = %v, want %v", got, want)
	}
	if got, want := fromPS("  7     5 S\n  8     5 R\n"), []entry{{7, 5, "S", ""}, {8, 5, "R", ""}}; !slices.Equal(got, want) {
		t.Errorf("fromPS = %v, want %v", got, want)
	}
}

func TestEntryIs(t *testing.T) {
	t.Parallel()
	e := entry{7, 5, "S", "70"}
	for other, want := range map[entry]bool{
		{7, 1, "R", "70"}: true,
		{7, 1, "Z", "70"}: false,
		{7, 1, "S", "71"}: false,
		{8, 5, "S", "70"}: false,
	} {
		if got := other.is(e); got != want {
			t.Errorf("%v is %v: %t, want %t", other, e, got, want)
		}
	}
}
