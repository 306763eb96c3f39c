package dispatch

import (
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	// shownRepeats is how many equal failures of a destination have a log line of their own. The others of the same
	// minute are counted, and logged at level debug.
	shownRepeats = 10
	// repeatsEvery is how often the count of a kind is logged.
	repeatsEvery = time.Minute
	// maxKinds bounds the kinds that are told apart. All others are one kind.
	maxKinds = 64
)

// repeats keeps equal failures from flooding the log.
type repeats struct {
	every time.Duration

	mu    sync.Mutex
	kinds map[string]*repeat
	timer *time.Timer // logs the counts; nil while nothing was counted
}

// repeat is one kind of failure: a message and an error, without its digits, because these number events and ports.
type repeat struct {
	level   slog.Level
	message string
	err     error // the newest one
	shown   int
	more    int // since the last line of this kind
}

// log logs a failure, and counts it from the eleventh of its kind. of is the logger of the event, and lane that of the counts.
func (r *repeats) log(lane, of *slog.Logger, level slog.Level, message string, err error, args ...any) {
	if !r.shows(lane, level, message, err) {
		level = slog.LevelDebug
	}
	logAt(of, level, message, append(args, "err", err)...)
}

// logAt logs at one of the four levels.
func logAt(log *slog.Logger, level slog.Level, message string, args ...any) {
	switch level {
	case slog.LevelError:
		log.Error(message, args...) //nolint:sloglint // the callers have constants
	case slog.LevelWarn:
		log.Warn(message, args...) //nolint:sloglint // the callers have constants
	case slog.LevelInfo:
		log.Info(message, args...) //nolint:sloglint // the callers have constants
	default:
		log.Debug(message, args...) //nolint:sloglint // the callers have constants
	}
}

// shows reports whether to log the failure on a separate line.
func (r *repeats) shows(lane *slog.Logger, level slog.Level, message string, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	name := message + "\x00" + withoutDigits(err.Error())
	kind := r.kinds[name]
	if kind == nil && len(r.kinds) >= maxKinds {
		name = message
		kind = r.kinds[name]
	}

	if kind == nil {
		kind = &repeat{level: level, message: message}
		if r.kinds == nil {
			r.kinds = make(map[string]*repeat)
		}
		r.kinds[name] = kind
	}

	kind.err = err

	if r.timer == nil {
		r.timer = time.AfterFunc(r.every, func() { r.count(lane) })
	}

	if kind.shown < shownRepeats {
		kind.shown++

		return true
	}

	kind.more++

	return false
}

// count logs how many more failures of each kind there were, and forgets the kinds without any. A kind that continues has one
// line per interval.
func (r *repeats) count(lane *slog.Logger) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for name, kind := range r.kinds {
		if kind.more == 0 {
			delete(r.kinds, name)
			continue
		}
		logAt(lane, kind.level, kind.message, "more_like_it", kind.more, "err", kind.err)
		kind.more = 0
	}

	r.timer = nil
	if len(r.kinds) > 0 {
		r.timer = time.AfterFunc(r.every, func() { r.count(lane) })
	}
}

// end logs the counts of the last interval.
func (r *repeats) end(lane *slog.Logger) {
	r.count(lane)
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// withoutDigits returns the text without its numbers.
func withoutDigits(text string) string {
	return strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' {
			return -1
		}

		return c
	}, text)
}
