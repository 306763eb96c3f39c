package rabbitserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
)

// watchScript reads lines of process ids, the last one being what runs now,
// until its owner closes the pipe or dies. Then it kills those and removes the
// directory $1. A node that was stopped in order leaves an empty line.
const watchScript = `
pids=
while read -r line; do pids=$line; done
for pid in $pids; do kill -s KILL "$pid"; done
[ -z "$pids" ] || sleep 1
rm -rf -- "$1"
`

// watchdog ends a node whose owner died. See the package comment.
type watchdog struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
	mu   sync.Mutex // one line at a time
}

// startWatchdog starts the watchdog of the node in dir. The caller ends it by
// dismiss.
func startWatchdog(ctx context.Context, dir string) (*watchdog, error) {
	// Its life is the node's, not ctx's.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", "-c", watchScript, "notifyd-rabbitmq-watchdog", dir)
	cmd.SysProcAttr = account{}.procAttr()
	cmd.Dir = "/"
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("watchdog of RabbitMQ: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("watchdog of RabbitMQ: %w", err), pipe.Close())
	}
	return &watchdog{cmd: cmd, pipe: pipe}, nil
}

// watch names the processes to end, none for a node that is down. A watchdog
// that was killed cannot be told, which costs its service and nothing else.
func (w *watchdog) watch(pids ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = fmt.Fprintln(w.pipe, pids...)
}

// dismiss ends the watchdog, after the node is gone and forgotten.
func (w *watchdog) dismiss() error {
	err := w.pipe.Close()
	if waitErr := w.cmd.Wait(); err == nil {
		err = waitErr
	}
	if err != nil {
		return fmt.Errorf("watchdog of RabbitMQ: %w", err)
	}
	return nil
}
