package bench

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// usage is what work has used.
type usage struct {
	wal                   float64 // bytes of write-ahead log
	rss                   int64   // peak of the resident memory of this process, in bytes; 0 where there is no /proc
	postgres, sink, relay time.Duration
}

// own returns the CPU time that does not depend on the sink.
func (u usage) own() time.Duration { return u.postgres + u.relay }

// howMemory describes usage.rss for people.
const howMemory = "memory is the peak of this process (VmHWM), which is reset before each drain if the system allows it"

// meter measures what work uses. sink is the process of a private sink, or 0. In profiles the label "drain" has the name.
func (e *Env) meter(ctx context.Context, name string, sink int, work func(context.Context) error) (u usage, err error) {
	debug.FreeOSMemory()
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // resets the peak; where that is forbidden, the peak is an upper bound
	before, err := e.used(ctx, sink)
	if err != nil {
		return u, err
	}

	pprof.Do(ctx, pprof.Labels("drain", name), func(ctx context.Context) { err = work(ctx) })
	if err != nil {
		return u, err
	}

	u, err = e.used(ctx, sink)
	u.wal -= before.wal
	u.postgres -= before.postgres
	u.sink -= before.sink
	u.relay -= before.relay
	return u, err
}

// used returns the totals up to now. The CPU time of PostgreSQL is known for a private server only.
func (e *Env) used(ctx context.Context, sink int) (u usage, err error) {
	u.relay = ownCPU()
	u.rss = peakMemory()
	u.sink = cpuOf(sink)
	var backend int
	err = e.Pool.QueryRow(ctx, "SELECT pg_backend_pid(), (pg_current_wal_insert_lsn() - '0/0')::float8").Scan(&backend, &u.wal)
	if err == nil && e.Private() {
		u.postgres = cpuOfFamily(parentOf(backend))
	}
	return u, err
}

// ownCPU returns the CPU time that this process has used.
func ownCPU() time.Duration {
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) != nil {
		return 0 // getrusage of the calling process cannot fail
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// burn uses the CPU for d of the thread's CPU time, which excludes waits for a core.
func burn(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	threadCPU := func() time.Duration {
		var t unix.Timespec
		if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
			return 0 // the clock of the calling thread cannot fail
		}
		return time.Duration(t.Nano())
	}
	for from := threadCPU(); threadCPU()-from < d; {
	}
}

// peakMemory returns the peak of the resident memory, in bytes.
func peakMemory() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	return number64(kib) << 10
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

// stat returns the fields of a process after its name. They are empty if the process is gone, or there is no /proc.
func stat(pid int) []string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return make([]string, statFields)
	}
	// The second field is a name in parentheses, which may contain any character.
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
}

// ticks adds up two times.
func ticks(fields []string) time.Duration {
	return time.Duration(number64(fields[0])+number64(fields[1])) * clockTick
}

// cpuOf returns the CPU time that processes of this machine have used.
func cpuOf(pids ...int) (total time.Duration) {
	for _, pid := range pids {
		total += ticks(stat(pid)[statCPU:])
	}
	return total
}

// parentOf returns the parent of a process, 0 if it is unknown.
func parentOf(pid int) int { return int(number64(stat(pid)[statParent])) }

// cpuOfFamily returns the CPU time of a process and its children, including ended children.
func cpuOfFamily(pid int) (total time.Duration) {
	entries, err := os.ReadDir("/proc")
	if pid == 0 || err != nil {
		return 0
	}
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err == nil && parentOf(child) == pid {
			total += cpuOf(child)
		}
	}
	return total + cpuOf(pid) + ticks(stat(pid)[statFamily:])
}

// number64 parses a number; any other text is 0.
func number64(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
