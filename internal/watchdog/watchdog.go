// Package watchdog ends a private server, and removes its directory, when the
// process that started it has died without doing so: by a kill -9, or by the end
// of a test that has hung.
package watchdog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
)

// watchScript reads process ids, the last one being the server that runs now
// (0: none), until its owner closes the pipe or dies. Then it kills that server
// and removes the directory $1. SIGKILL, since the data is thrown away.
const watchScript = `
pid=0
while read -r p; do pid=$p; done
if [ "$pid" -gt 0 ]; then
	kill -s KILL "$pid"
	n=0
	while [ "$n" -lt 10 ] && kill -s 0 "$pid"; do sleep 1; n=$((n+1)); done
fi
rm -rf -- "$1"
`

// Watchdog ends a server whose owner died.
type Watchdog struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
	mu   sync.Mutex // one id at a time
}

// Start starts the watchdog of the server in dir. The caller ends it by
// Dismiss.
func Start(ctx context.Context, dir string) (*Watchdog, error) {
	// Its life is the server's, not ctx's.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", "-c", watchScript, "notifyd-server-watchdog", dir)
	// A process group of its own: Ctrl-C and a kill of our group pass it by.
	cmd.SysProcAttr = OwnGroup()
	cmd.Dir = "/"
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("watchdog of a server: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("watchdog of a server: %w", err), pipe.Close())
	}
	return &Watchdog{cmd: cmd, pipe: pipe}, nil
}

// Watch names the process to end. A watchdog that was killed cannot be told,
// which costs its service and nothing else.
func (w *Watchdog) Watch(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = fmt.Fprintln(w.pipe, pid)
}

// Forget tells that the process is gone: its id may soon be somebody else's.
func (w *Watchdog) Forget() { w.Watch(0) }

// Dismiss ends the watchdog, after the server is gone and forgotten.
func (w *Watchdog) Dismiss() error {
	err := w.pipe.Close()
	if waitErr := w.cmd.Wait(); err == nil {
		err = waitErr
	}
	if err != nil {
		return fmt.Errorf("watchdog of a server: %w", err)
	}
	return nil
}
