package credential

import (
	"bytes"
	"context"
	"os/exec"
	"time"
)

// waitDelay is how long a run waits for the output of children that outlive the program.
const waitDelay = 500 * time.Millisecond

// run runs a program. When ctx ends, the program and, where the system has process groups, its children are killed.
func run(ctx context.Context, argv []string) (stdout, stderr []byte, err error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, complaints limited
	cmd.Stdout = &out
	cmd.Stderr = &complaints
	cmd.WaitDelay = waitDelay
	inGroup(cmd)
	err = cmd.Run()
	return out.Bytes(), complaints.Bytes(), err //nolint:wrapcheck // the caller names the program
}

// limited keeps the first bytes of an output, one more than a credential may have.
type limited struct{ bytes.Buffer }

// Write implements io.Writer. It drops further bytes, so that the program does not block.
func (l *limited) Write(p []byte) (int, error) {
	if left := maxBytes + 1 - l.Len(); left > 0 {
		l.Buffer.Write(p[:min(len(p), left)])
	}
	return len(p), nil
}
