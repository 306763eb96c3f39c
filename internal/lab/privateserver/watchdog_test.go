package privateserver

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestWatchdogEndsTheWholeGroup closes a watchdog's pipe while its server still runs, as
// the owner's death does.
func TestWatchdogEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "server")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	dog, err := startWatchdog(t.Context(), dir, "KILL")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "sleep 1000 & echo; exec sleep 1000")
	cmd.SysProcAttr = Account{}.ProcAttr()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // the child runs
		t.Fatal(err)
	}
	children, err := descendants(t.Context(), cmd.Process.Pid)
	if err != nil || len(children) != 1 {
		t.Fatalf("children = %v, %v; want one", children, err)
	}
	dog.watch(cmd.Process.Pid)
	// Both hold the other end: this returns when both are gone.
	ended := make(chan error, 1)
	go func() {
		_, err := out.Read(make([]byte, 1))
		ended <- errors.Join(err, cmd.Wait())
	}()
	if err := dog.dismiss(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("the server has ended by itself")
	}
	if alive, err := anyAlive(t.Context(), children); alive || err != nil {
		t.Errorf("its child still runs: %t, %v", alive, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat %s: %v, want that it does not exist", dir, err)
	}
}
