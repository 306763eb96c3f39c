package pgserver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// signalSessions sends sig to every child of the postmaster. Each is in a
// session of its own, so that no process group reaches them all.
func (s *Server) signalSessions(ctx context.Context, sig syscall.Signal) error {
	var sent []int
	for {
		pids, err := children(ctx, s.proc.pid)
		if err != nil {
			return err
		}
		pids = slices.DeleteFunc(pids, func(pid int) bool { return slices.Contains(sent, pid) })
		// One more look after each round, for a child whose birth was under way.
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := signalPID(pid, sig); err != nil {
				return err
			}
		}
		sent = append(sent, pids...)
	}
}

// children returns the process ids of the children of pid.
func children(ctx context.Context, pid int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	if len(stats) > 0 {
		return childrenFromProc(stats, pid), nil
	}
	out, err := exec.CommandContext(ctx, "ps", "-A", "-o", "pid=", "-o", "ppid=").Output()
	if err != nil {
		return nil, fmt.Errorf("list the sessions of PostgreSQL: ps: %w", err)
	}
	return childrenFromPS(out, pid), nil
}

func childrenFromProc(stats []string, pid int) []int {
	var pids []int
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		// "pid (name) state ppid ...", and the name may hold anything.
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(fields) < 2 || fields[1] != strconv.Itoa(pid) {
			continue
		}
		if child, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

func childrenFromPS(out []byte, pid int) []int {
	var pids []int
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) != 2 || fields[1] != strconv.Itoa(pid) {
			continue
		}
		if child, err := strconv.Atoi(fields[0]); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}
