package command

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
)

// buffer is a writer that another goroutine may read.
type buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// take returns what was written since the last call.
func (b *buffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return b.text.String()
}

// TestProgressOnTerminal: one line is rewritten every second, cut at the edge, and erased before output and at the end.
func TestProgressOnTerminal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		out := &buffer{}
		p := newProgress(out, func() int { return 20 }, "connecting")
		step := func(d time.Duration, want string) {
			t.Helper()
			time.Sleep(d) //nolint:forbidigo // the clock of the bubble
			synctest.Wait()
			if got := out.take(); got != want {
				t.Errorf("after %v: %q, want %q", d, got, want)
			}
		}
		step(900*time.Millisecond, "")
		step(200*time.Millisecond, eraseLine+"connecting, 1s")
		p.Say("a text\x1b that is longer than the terminal")
		step(time.Second, eraseLine+"a text  that is lon")
		w := erasing{out, p}
		if _, err := w.Write([]byte("result\n")); err != nil {
			t.Fatal(err)
		}
		step(0, eraseLine+"result\n")
		step(time.Second, eraseLine+"a text  that is lon")
		p.Say("") // a person is asked
		step(5*time.Second, eraseLine)
		p.Say("on")
		step(time.Second, eraseLine+"on, 9s")
		p.Stop()
		p.Stop()
		step(time.Minute, eraseLine)
	})
}

// TestProgressInFile: without a terminal there is a line every 10 s, and no control sequence.
func TestProgressInFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		out, err := &buffer{}, &buffer{}
		cmd := &cobra.Command{}
		cmd.SetOut(out)
		cmd.SetErr(err)
		p := StartProgress(cmd, "replaying")
		time.Sleep(9 * time.Second) //nolint:forbidigo // the clock of the bubble
		synctest.Wait()
		cmd.Println("result")
		if got := out.take() + err.take(); got != "result\n" {
			t.Errorf("%q", got)
		}
		p.Say("replayed %d of %d", 3, 10)
		time.Sleep(12 * time.Second) //nolint:forbidigo // the clock of the bubble
		synctest.Wait()
		p.Stop()
		if got := err.take(); got != "replayed 3 of 10, 10s\nreplayed 3 of 10, 20s\n" {
			t.Errorf("%q", got)
		}
	})
}
