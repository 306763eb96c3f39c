package privateserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
)

// watchScript reads process ids until its owner closes the pipe or dies. The last id is the running server, or 0 without
// one. Then the script sends the signal $2 to that server's process group, and removes the directory $1. A frozen server
// needs CONT.
const watchScript = `
pid=0
while read -r p; do pid=$p; done
if [ "$pid" -gt 0 ]; then
	kill -s "$2" -- "-$pid"
	kill -s CONT -- "-$pid"
	n=0
	while [ "$n" -lt 10 ] && kill -s 0 "$pid"; do sleep 1; n=$((n+1)); done
fi
rm -rf -- "$1"
`

// watchdog ends a server whose owner died. See the package comment.
type watchdog struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
	mu   sync.Mutex // one id at a time
}

// startWatchdog starts the watchdog of the server in dir. signal, such as KILL, ends the
// server; dismiss ends the watchdog.
func startWatchdog(ctx context.Context, dir, signal string) (*watchdog, error) {
	// The watchdog lives as long as the server, not as ctx.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", "-c", watchScript, "notifyd-watchdog", dir, signal)
	// A separate process group, against Ctrl-C and a kill of this process's group.
	cmd.SysProcAttr = Account{}.ProcAttr()
	cmd.Dir = "/"

	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("watchdog of a server: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("watchdog of a server: %w", err), pipe.Close())
	}
	return &watchdog{cmd: cmd, pipe: pipe}, nil
}

// watch tells the watchdog which process to end. A watchdog that was killed cannot read the id; the error is ignored.
func (w *watchdog) watch(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = fmt.Fprintln(w.pipe, pid)
}

// forget clears the process to end: the id of an ended process may be reused.
func (w *watchdog) forget() { w.watch(0) }

// dismiss ends the watchdog once the server is gone and forgotten.
func (w *watchdog) dismiss() error {
	err := w.pipe.Close()
	if waitErr := w.cmd.Wait(); err == nil {
		err = waitErr
	}
	if err != nil {
		return fmt.Errorf("watchdog of a server: %w", err)
	}
	return nil
}
