package rabbitserver

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// descendants returns the process ids of the children of pid, and of theirs,
// where the system has a /proc. Erlang's helpers are in sessions of their own,
// so that no process group reaches them all.
func descendants(pid int) []int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	parents := make(map[int][]int)
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		child, err1 := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		_, ppid := parseStat(b)
		parent, err2 := strconv.Atoi(ppid)
		if err1 == nil && err2 == nil {
			parents[parent] = append(parents[parent], child)
		}
	}
	all := parents[pid]
	for i := 0; i < len(all); i++ {
		all = append(all, parents[all[i]]...)
	}
	return all
}

// alive reports whether a process runs. A zombie, which has no command line,
// does not.
func alive(pid int) bool {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && len(cmdline) > 0
}

// threadStates returns the states of all threads of a process: "R", "S", "T".
func threadStates(pid int) []string {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return nil
	}
	var states []string
	for _, path := range stats {
		if b, err := os.ReadFile(path); err == nil {
			state, _ := parseStat(b)
			states = append(states, state)
		}
	}
	return states
}

// parseStat reads "pid (name) state ppid ..."; the name may hold anything.
func parseStat(b []byte) (state, ppid string) {
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 2 {
		return "", ""
	}
	return fields[0], fields[1]
}
