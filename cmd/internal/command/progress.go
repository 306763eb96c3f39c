package command

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/notifyd/notifyd/internal/cli"
)

const (
	// progressAfter is how long a command may run before a terminal shows its progress, and how often
	// the line is rewritten.
	progressAfter = time.Second
	// progressEvery is the interval between lines of progress without a terminal.
	progressEvery = 10 * time.Second
	// Connecting is the text of the progress until there is a connection.
	Connecting = "connecting to the database"
	// eraseLine returns to the beginning of a terminal's line and clears it.
	eraseLine = "\r\x1b[K"
)

// Progress shows on standard error what a command is doing, and for how long: on a terminal in one
// line that is rewritten every second, otherwise as a line every 10 s. A quick command shows nothing.
type Progress struct {
	out   io.Writer
	width func() int // of the terminal; nil for another file
	begin time.Time
	stop  chan struct{}
	ended sync.WaitGroup
	once  sync.Once

	mu    sync.Mutex
	text  string
	shown bool // the terminal's last line is the progress
}

// StartProgress begins to show a text. Until Stop, all output of cmd must be printed by its writers,
// which erase the line first. Call it after asking whether the output is a terminal.
func StartProgress(cmd *cobra.Command, text string) *Progress {
	errOut := cmd.ErrOrStderr()
	p := newProgress(errOut, terminalWidth(errOut), text)

	cmd.SetOut(erasing{cmd.OutOrStdout(), p})
	cmd.SetErr(erasing{errOut, p})
	return p
}

// terminalWidth returns a function for the width of a terminal, nil for another file.
func terminalWidth(w io.Writer) func() int {
	f, ok := w.(*os.File)
	if !ok || !cli.IsTerminal(f) || os.Getenv("TERM") == "dumb" {
		return nil
	}

	return func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil || width < 1 {
			return 80
		}
		return width
	}
}

func newProgress(out io.Writer, width func() int, text string) *Progress {
	p := &Progress{out: out, width: width, text: text, begin: time.Now(), stop: make(chan struct{})}
	p.ended.Go(p.run)
	return p
}

func (p *Progress) run() {
	every := progressEvery
	if p.width != nil {
		every = progressAfter
	}

	tick := time.NewTicker(every)
	defer tick.Stop()

	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
			p.show()
		}
	}
}

// Say replaces the text. Without a text nothing is shown, as while a person is asked.
func (p *Progress) Say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.text = Printable(fmt.Sprintf(format, args...))
	if p.text == "" {
		p.erase()
	}
}

func (p *Progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.text == "" {
		return
	}

	line := fmt.Sprintf("%s, %s", p.text, cli.Age(time.Since(p.begin).Round(time.Second)))
	if p.width == nil {
		fmt.Fprintln(p.out, line) //nolint:errcheck // nothing depends on it
		return
	}

	if runes, most := []rune(line), p.width()-1; len(runes) > most {
		line = string(runes[:max(0, most)])
	}

	fmt.Fprint(p.out, eraseLine+line) //nolint:errcheck // nothing depends on it
	p.shown = true
}

// erase removes the line. p.mu is held.
func (p *Progress) erase() {
	if p.shown {
		fmt.Fprint(p.out, eraseLine) //nolint:errcheck // nothing depends on it
		p.shown = false
	}
}

// Stop ends the progress and erases its line. It may be called again.
func (p *Progress) Stop() {
	p.once.Do(func() {
		close(p.stop)
		p.ended.Wait()

		p.mu.Lock()
		defer p.mu.Unlock()

		p.erase()
	})
}

// erasing is a writer that erases the line of progress before it writes.
type erasing struct {
	io.Writer

	progress *Progress
}

// Write implements io.Writer.
func (e erasing) Write(b []byte) (int, error) {
	e.progress.mu.Lock()
	defer e.progress.mu.Unlock()

	e.progress.erase()
	return e.Writer.Write(b)
}
