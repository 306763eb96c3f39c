package privateserver

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
)

// entry is a process as the system lists it.
type entry struct {
	pid, parent int
	state       string // "R", "S", "Z"
	start       string // distinguishes it from a later process with the same id
}

// is reports whether e is the process that was listed as other before, and neither a
// zombie nor a later process.
func (e entry) is(other entry) bool {
	isSame := e.pid == other.pid && e.start == other.start
	hasEnded := strings.HasPrefix(e.state, "Z") || e.state == "X"
	return isSame && !hasEnded
}

// processes lists all processes of the machine.
func processes(ctx context.Context) ([]entry, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	if len(stats) > 0 {
		return fromProc(stats), nil
	}

	out, err := exec.CommandContext(ctx, "ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "state=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: ps: %w", err)
	}
	return fromPS(string(out)), nil
}

func fromProc(stats []string) []entry {
	const startTime = 19 // counted from the state
	var all []entry
	for _, path := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		fields := statFields(path)
		if err != nil || len(fields) <= startTime {
			continue // it has ended meanwhile
		}

		if parent, err := strconv.Atoi(fields[1]); err == nil {
			all = append(all, entry{pid: pid, parent: parent, state: fields[0], start: fields[startTime]})
		}
	}
	return all
}

// statFields reads "pid (name) state ppid ...", and returns the fields behind the name,
// which may contain any character.
func statFields(path string) []string {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

func fromPS(out string) []entry {
	var all []entry
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}

		pid, pidErr := strconv.Atoi(fields[0])
		parent, parentErr := strconv.Atoi(fields[1])
		if pidErr == nil && parentErr == nil {
			all = append(all, entry{pid: pid, parent: parent, state: fields[2]})
		}
	}
	return all
}

// descendants returns all descendants of pid. No process group contains all of them: backends of PostgreSQL and helpers
// of Erlang have separate sessions.
func descendants(ctx context.Context, pid int) ([]entry, error) {
	all, err := processes(ctx)
	if err != nil {
		return nil, err
	}

	children := make(map[int][]entry)
	for _, e := range all {
		children[e.parent] = append(children[e.parent], e)
	}

	found := slices.Clone(children[pid])
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].pid]...)
	}
	return found, nil
}

// anyAlive reports whether one of these processes still runs.
func anyAlive(ctx context.Context, these []entry) (bool, error) {
	if len(these) == 0 {
		return false, nil
	}
	all, err := processes(ctx)
	return slices.ContainsFunc(all, func(e entry) bool { return slices.ContainsFunc(these, e.is) }), err
}

// stopped reports whether all threads of a process have stopped; without /proc it is
// always true.
func stopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return true
	}
	return !slices.ContainsFunc(threads, func(path string) bool {
		fields := statFields(path)
		return len(fields) > 0 && !slices.Contains([]string{"T", "t", "Z", "X"}, fields[0])
	})
}
