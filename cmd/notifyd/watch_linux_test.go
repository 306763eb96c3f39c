package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command/inspect"

	"golang.org/x/sys/unix"
)

// pseudoTerminal returns the two ends of a new terminal.
func pseudoTerminal(t *testing.T) (outside, inside *os.File) {
	t.Helper()
	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this machine has no pseudo terminals: %v", err)
	}
	t.Cleanup(func() { _ = outside.Close() })
	var number int
	raw, err := outside.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			if e := unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); e != nil {
				t.Error(e)
			}
			if number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); err == nil {
				err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	inside, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inside.Close() })
	return outside, inside
}

// TestStatusScreen watches the status in a terminal of 80 columns, and ends it by
// keys. The terminal is then as it was.
func TestStatusScreen(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"q": "q", "ctrl-c": "\x03"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, url := failing(t)
			outside, inside := pseudoTerminal(t)
			before, err := unix.IoctlGetTermios(int(inside.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			seen := newOutput()
			read := make(chan struct{})
			go func() {
				defer close(read)
				buffer := make([]byte, 4096)
				for {
					n, err := outside.Read(buffer)
					_, _ = seen.Write(buffer[:n]) // a buffer
					if err != nil {
						return // the end of the test, or of the terminal
					}
				}
			}()
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), self, "status", "--watch", "-c", path)
			cmd.Env = append(os.Environ(), envSelf+"=1")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = inside, inside, inside
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			seen.await(t, inspect.ScreenEnter)
			seen.await(t, "mail has 2 dead letters")
			if _, err := outside.WriteString("x"); err != nil { // not a key of --watch
				t.Fatal(err)
			}
			execute(t, url, `INSERT INTO outbox_events (event_type, payload) SELECT 'user.gone', '1' FROM generate_series(1, 7)`)
			seen.await(t, "9 fresh")
			if _, err := outside.WriteString(key); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, seen.text())
			}
			seen.await(t, inspect.ScreenLeave)
			after, err := unix.IoctlGetTermios(int(inside.Fd()), unix.TCGETS)
			if err != nil || !reflect.DeepEqual(before, after) {
				t.Errorf("the terminal was %+v and is %+v, %v", before, after, err)
			}
			pictures := strings.Split(seen.text(), inspect.ScreenHome)[1:]
			for _, picture := range pictures {
				if n := strings.Count(picture, inspect.LineEnd) + 1; n > 24 {
					t.Errorf("a picture of %d lines scrolls: %q", n, picture)
				}
			}
			if first, _, _ := strings.Cut(pictures[0], inspect.LineEnd); !strings.Contains(first, "action required:") {
				t.Errorf("the screen shows %q", pictures[0])
			}
			for line := range strings.SplitSeq(seen.text(), inspect.LineEnd) {
				if _, picture, ok := strings.Cut(line, inspect.ScreenHome); ok {
					line = picture
				}
				if len([]rune(line)) > 80 && !strings.Contains(line, "\x1b") {
					t.Errorf("wider than the terminal: %q", line)
				}
			}
			if err := errors.Join(inside.Close(), outside.Close()); err != nil && !errors.Is(err, os.ErrClosed) {
				t.Error(err)
			}
			<-read
		})
	}
}
