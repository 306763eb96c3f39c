package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// resetPeak makes peak start anew, and says how it is measured.
func resetPeak() (how string, err error) {
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return "VmHWM since the start of this process", nil //nolint:nilerr // a sandbox may forbid it, and the peak is an upper bound then
	}
	return "VmHWM of this process, reset before the drain", nil
}

// peak returns the most memory that was resident, in bytes.
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

// clockTick is the unit of CPU times in /proc, which is the same on every
// architecture that Go runs on.
const clockTick = 10 * time.Millisecond

// cpuOf returns the CPU time that processes on this machine have used; ok is
// false where that cannot be told. Processes that are gone count nothing.
func cpuOf(pids []int) (total time.Duration, ok bool) {
	for _, pid := range pids {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}
		// The second field is a name that may hold anything, in parentheses.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 13 {
			continue
		}
		for _, field := range fields[11:13] { // utime and stime
			ticks, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return 0, false
			}
			total += time.Duration(ticks) * clockTick
		}
		ok = true
	}
	return total, ok
}
