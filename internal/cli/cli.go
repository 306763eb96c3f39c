// Package cli holds the common parts of the command lines of the daemon and of the bench.
package cli

import (
	"fmt"
	"io"
	"io/fs"
	stdlog "log"
	"log/slog"
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/term"

	"github.com/notifyd/notifyd/internal/textview"
)

// gcPercent lets the heap grow to three times the live data before a collection.
// notifyd's heap is small, some 10 MiB under load, and fewer collections save a tenth of
// the CPU time of a drain.
const gcPercent = 200

// TuneGC sets how often the daemon collects garbage, and makes it collect more often near the memory limit of its control
// group; $GOGC and $GOMEMLIMIT win. The bench calls it too, to measure the daemon's behaviour.
func TuneGC() {
	if _, set := os.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(gcPercent)
	}
	_, set := os.LookupEnv("GOMEMLIMIT")
	if limit := memoryLimit(os.DirFS("/")); !set && limit > 0 {
		debug.SetMemoryLimit(limit / 10 * 9) // the rest is for memory that Go does not count
	}
}

// memoryLimit returns the lowest memory limit of the control groups of this process, in bytes, or 0 for none.
func memoryLimit(root fs.FS) int64 {
	const dir = "sys/fs/cgroup"
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}

	lowest := int64(math.MaxInt64)
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		at := path.Join(dir, "memory")
		file := "memory.limit_in_bytes"
		switch parts[1] {
		case "":
			at = dir
			file = "memory.max"
		case "memory":
		default:
			continue
		}

		for group := path.Join("/", parts[2]); ; group = path.Dir(group) { // in a container the root is its group
			text, err := fs.ReadFile(root, path.Join(at, group, file))
			n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			isLimit := err == nil && bad == nil && n > 0
			if isLimit {
				lowest = min(lowest, n)
			}
			if group == "/" {
				break
			}
		}
	}

	if lowest >= noLimit {
		return 0
	}
	return lowest
}

// noLimit is a memory limit that stands for none.
const noLimit = 1 << 60

// OneOf is a flag that takes one of a few values. An empty Value means not given.
type OneOf struct {
	Words []string
	Value string
}

// String implements pflag.Value.
func (o *OneOf) String() string { return o.Value }

// Type implements pflag.Value; the help shows it in place of a value.
func (*OneOf) Type() string { return "word" }

// Set implements pflag.Value.
func (o *OneOf) Set(s string) error {
	if !slices.Contains(o.Words, s) {
		return fmt.Errorf("must be one of %s", strings.Join(o.Words, ", "))
	}
	o.Value = s
	return nil
}

// LogLevel returns the flag for the level of a log.
func LogLevel() OneOf { return OneOf{Words: []string{"debug", "info", "warn", "error"}} }

// LogFormat returns the flag for the format of a log.
func LogFormat() OneOf { return OneOf{Words: []string{"auto", "text", "json"}} }

// NewLogger returns a logger with a level of [LogLevel] and a format of
// [LogFormat]; auto is text for a terminal and JSON for everything else.
func NewLogger(w io.Writer, level, format string) *slog.Logger {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		least = slog.LevelInfo // flags and configuration are checked elsewhere
	}

	options := &slog.HandlerOptions{Level: least, ReplaceAttr: readable}
	if format == "text" || format == "auto" && IsTerminal(w) {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(textview.JSONWriter{W: w}, options))
}

// readable writes a duration with its unit, as "1.5s": JSON would have nanoseconds, and no
// word of it. It drops attributes without a value, such as an error that is nil.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindAny && a.Value.Any() == nil {
		return slog.Attr{}
	}
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// StandardLog routes what libraries write to the standard logger, net/http above all, to log at level debug.
// What they repeat of the bytes of a server is left out: it may be a part of an event.
func StandardLog(log *slog.Logger) {
	stdlog.SetFlags(0)
	stdlog.SetOutput(libraries{log})
}

// libraries writes each line of the standard logger as the attribute of a message.
type libraries struct{ log *slog.Logger }

// Write implements io.Writer.
func (l libraries) Write(line []byte) (int, error) {
	text, _, cut := strings.Cut(strings.TrimSpace(string(line)), " starting with ")
	l.log.Debug("library message", "text", text, "cut", cut)
	return len(line), nil
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
