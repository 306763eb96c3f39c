package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"golang.org/x/term"

	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/status"
)

// Control sequences of the terminal. The alternate screen keeps the former content;
// each picture overwrites the previous one at once, which does not flicker.
const (
	ScreenEnter = "\x1b[?1049h\x1b[?25l\x1b[2J"
	ScreenLeave = "\x1b[?25h\x1b[?1049l"
	ScreenHome  = "\x1b[H"
	LineEnd     = "\x1b[K\r\n"
	screenEnd   = "\x1b[J"
)

const (
	defaultWidth, defaultHeight = 80, 24
	keyCtrlC                    = 3
)

// watchStatus prints the status every second until ctx ends.
func watchStatus(ctx context.Context, a *command.App, w io.Writer, look *looker, form string) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()

	if form == "table" && cli.IsTerminal(w) {
		if tty, err := openTerminal(w); err == nil {
			return watchScreen(ctx, look, tty, colored(a))
		}
	}

	return everySecond(ctx, func() error {
		s, err := look.read(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the user has ended it
		}
		if err != nil {
			_, err = io.WriteString(w, command.Printable(err.Error())+"\n\n")
			return err
		}

		if err := printStatus(w, form, cli.IsTerminal(w) && colored(a), &s); err != nil {
			return err
		}

		if form == "table" {
			_, err = io.WriteString(w, "\n")
		}
		return err
	})
}

// everySecond calls f at once and then every second, until ctx ends or f fails.
func everySecond(ctx context.Context, f func() error) error {
	tick := time.NewTicker(statusRefresh)
	defer tick.Stop()

	for {
		if err := f(); err != nil {
			return err
		}

		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// terminal is the terminal of this process, in raw mode.
type terminal struct {
	tty    *os.File // for keys; its deadline ends reading
	out    *os.File
	before *term.State
}

// openTerminal opens the terminal by its name: reads from standard input cannot be
// ended.
func openTerminal(w io.Writer) (*terminal, error) {
	out, ok := w.(*os.File)
	if !ok {
		return nil, errors.New("not a terminal")
	}

	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}

	// Not tty.Fd(), which would make reading from it block for good.
	before, err := term.MakeRaw(int(out.Fd()))
	if err != nil {
		return nil, errors.Join(err, tty.Close())
	}
	return &terminal{tty: tty, out: out, before: before}, nil
}

// close leaves the terminal as it was.
func (t *terminal) close() error {
	_, err := t.out.WriteString(ScreenLeave)
	return errors.Join(err, term.Restore(int(t.out.Fd()), t.before), t.tty.Close())
}

// keys calls quit when q or ctrl-c is pressed, and returns when the terminal is
// closed or its deadline is over.
func (t *terminal) keys(quit func()) {
	key := make([]byte, 1)
	for {
		if _, err := t.tty.Read(key); err != nil {
			quit()
			return
		}
		if key[0] == 'q' || key[0] == 'Q' || key[0] == keyCtrlC {
			quit()
			return
		}
	}
}

// watchScreen shows the status on an alternate screen.
func watchScreen(ctx context.Context, look *looker, t *terminal, colored bool) (err error) {
	ctx, quit := context.WithCancel(ctx)
	defer quit()

	var keys sync.WaitGroup
	keys.Go(func() { t.keys(quit) })
	defer func() {
		_ = t.tty.SetReadDeadline(time.Now()) // ends keys
		keys.Wait()
		err = errors.Join(err, t.close())
	}()

	if _, err := t.out.WriteString(ScreenEnter); err != nil {
		return err
	}

	return everySecond(ctx, func() error {
		s, err := look.read(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the user has ended it
		}

		width, height, sizeErr := term.GetSize(int(t.out.Fd()))
		if sizeErr != nil || width <= 0 || height <= 0 {
			width = defaultWidth
			height = defaultHeight
		}

		view := status.View{Width: width, Color: colored, Clean: command.Printable}
		_, err = t.out.WriteString(picture(&s, err, view, height))
		return err
	})
}

// picture returns one screen: the status, or the error.
func picture(s *status.Status, err error, v status.View, height int) string {
	const quit = "q: quit"
	text := command.Printable(fmt.Sprint(err)) + "\n" + quit
	if err == nil {
		text = s.Screen(v, height, quit)
	}
	return ScreenHome + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", LineEnd) + screenEnd
}
