package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// resetPeak resets the peak, and returns how the peak is measured.
func resetPeak() (how string, err error) {
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return "VmHWM since the start of this process", nil //nolint:nilerr // a sandbox may forbid it, and the peak is an upper bound then
	}
	return "VmHWM of this process, reset before the drain", nil
}

// peak returns the peak of the resident memory, in bytes.
func peak() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, fmt.Errorf("no VmHWM in /proc/self/status")
	}
	kib, err := strconv.ParseInt(fields[0], 10, 64)
	return kib << 10, err
}

// clockTick is the unit of CPU times in /proc. It is the same on every architecture that Go supports.
const clockTick = 10 * time.Millisecond

// Fields of /proc/PID/stat after the name: their numbers in proc(5) minus 3.
const (
	statParent = 1
	statCPU    = 11 // utime and stime
	statFamily = 13 // cutime and cstime: of children that were waited for
	statFields = 15
)

// stat returns the fields of a process after its name, or nil if the process is gone.
func stat(pid int) []string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	// The second field is a name in parentheses, which may contain any character.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < statFields {
		return nil
	}
	return fields
}

// ticks adds up two times.
func ticks(fields []string) (total time.Duration, ok bool) {
	for _, field := range fields[:2] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, false
		}
		total += time.Duration(n) * clockTick
	}
	return total, true
}

// cpuOf returns the CPU time that processes on this machine have used; ok is false if it is unknown. A process that is
// gone counts as 0.
func cpuOf(pids []int) (total time.Duration, ok bool) {
	for _, pid := range pids {
		fields := stat(pid)
		if fields == nil {
			continue
		}
		one, readable := ticks(fields[statCPU:])
		if !readable {
			return 0, false
		}
		total, ok = total+one, true
	}
	return total, ok
}

// parentOf returns the parent of a process, 0 if it is unknown.
func parentOf(pid int) int {
	fields := stat(pid)
	if fields == nil {
		return 0
	}
	parent, err := strconv.Atoi(fields[statParent])
	if err != nil {
		return 0
	}
	return parent
}

// cpuOfFamily returns the CPU time of a process and its children, including ended children.
func cpuOfFamily(pid int) (total time.Duration) {
	entries, err := os.ReadDir("/proc")
	if pid == 0 || err != nil {
		return 0
	}
	family := []int{pid}
	for _, e := range entries {
		if child, err := strconv.Atoi(e.Name()); err == nil && parentOf(child) == pid {
			family = append(family, child)
		}
	}
	total, _ = cpuOf(family)
	if fields := stat(pid); fields != nil {
		gone, _ := ticks(fields[statFamily:])
		total += gone
	}
	return total
}
