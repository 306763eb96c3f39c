package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/jsonline"
	"github.com/notifyd/notifyd/internal/textview"
)

// LogConfig is the content of a line of a [Log].
type LogConfig struct {
	// Whether the payload is in the line. Switch it off where payloads must not get
	// into logs.
	//
	// The default is true.
	Payload *bool `json:"payload,omitempty" yaml:"payload,omitempty"`
}

// WithDefaults returns a copy with the defaults filled in.
func (c LogConfig) WithDefaults() LogConfig {
	if c.Payload == nil {
		c.Payload = new(true)
	}
	return c
}

// Validate returns nil: every LogConfig is valid.
func (LogConfig) Validate() error { return nil }

// Log delivers events as lines of JSON to a writer, to standard output by default. It is the first destination that a
// newcomer sees, and with a log collector behind it one for production too. It implements [delivery.BatchHandler] and is safe for
// concurrent use; it needs no closing.
type Log struct {
	payload bool
	closed  error // not nil if nothing can be written

	mu   sync.Mutex // one write at a time: a line must not break another
	out  io.Writer
	torn bool // the last write ended amid a line
}

// LogOption changes how [NewLog] makes a handler.
type LogOption func(*Log)

// WithWriter sets where the lines go; the default is os.Stdout. The caller
// closes w. Each batch is one Write. A program whose standard output or error is w
// ends with SIGPIPE when the reader goes away, unless it handles that signal: then
// the write fails.
func WithWriter(w io.Writer) LogOption { return func(h *Log) { h.out = w } }

// NewLog returns a handler for cfg.
func NewLog(cfg LogConfig, opts ...LogOption) (*Log, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}

	h := &Log{out: os.Stdout, payload: cfg.Payload == nil || *cfg.Payload}
	for _, opt := range opts {
		opt(h)
	}

	if h.out == nil {
		return nil, errors.New("log: the writer is nil")
	}

	if f, ok := h.out.(*os.File); ok && isClosed(f) {
		h.closed = fmt.Errorf("log: %s was closed when the program began: open it, or send it to %s to drop the lines",
			f.Name(), os.DevNull)
	}

	return h, nil
}

// Deliver writes the line for e; of a payload that is not JSON, content type and size. The error is [delivery.Permanent] if the
// payload is called JSON and is not, [delivery.Unavailable] if the write failed, and ctx's
// cause if ctx was done before the write. A write itself cannot be interrupted.
func (h *Log) Deliver(ctx context.Context, e *delivery.Event) error {
	if errs := h.DeliverBatch(ctx, []*delivery.Event{e}); len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// DeliverBatch writes the lines for events, in their order and in one Write.
// An event whose payload is called JSON and is not fails alone.
func (h *Log) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	var (
		buf   bytes.Buffer
		errs  = make([]error, len(events))
		fails bool
		ends  = make([]int, len(events)) // where each event's line ends
	)

	for i, e := range events {
		before := buf.Len()
		if err := h.append(&buf, e); err != nil {
			buf.Truncate(before)
			errs[i] = delivery.Permanent(err)
			fails = true
		}

		ends[i] = buf.Len()
	}

	written, err := h.write(ctx, buf.Bytes())
	if err != nil {
		for i := range errs {
			// A line that is written in full is delivered, also if a later one is not.
			if errs[i] == nil && ends[i] > written {
				errs[i] = err
				fails = true
			}
		}
	}

	if !fails {
		return nil
	}

	return errs
}

// Preview returns the line for e.
func (h *Log) Preview(e *delivery.Event) (string, error) {
	var buf bytes.Buffer
	if err := h.append(&buf, e); err != nil {
		return "", delivery.Permanent(err)
	}
	return buf.String(), nil
}

// write writes data at once and returns how much of it is written.
func (h *Log) write(ctx context.Context, data []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	if len(data) == 0 {
		return 0, nil
	}

	if h.closed != nil {
		return 0, delivery.Unavailable(h.closed)
	}

	if h.torn {
		// End a torn line, so that it does not spoil the next one.
		if _, err := h.out.Write([]byte("\n")); err != nil {
			return 0, delivery.Unavailable(fmt.Errorf("log: %w", err))
		}
		h.torn = false
	}

	n, err := h.out.Write(data)
	if err == nil && n < len(data) {
		err = io.ErrShortWrite
	}

	if err != nil {
		h.torn = n > 0 && data[n-1] != '\n'
		return n, delivery.Unavailable(fmt.Errorf("log: %w", err))
	}

	return n, nil
}

// append appends the line for e.
func (h *Log) append(buf *bytes.Buffer, e *delivery.Event) error {
	l := jsonline.Of(e)
	l.Attempt = new(e.Attempt)
	write := func() error { return jsonline.Append(buf, l) }

	if !e.IsJSON() {
		l.PayloadSize = new(len(e.Payload))
	} else if h.payload {
		write = func() error { return jsonline.AppendPayload(buf, l, e.Payload) }
	}

	before := buf.Len()
	if err := write(); err != nil {
		return fmt.Errorf("log: %w", err)
	}

	// A terminal may show the line.
	shown := textview.JSON(buf.Bytes()[before:])
	buf.Truncate(before)
	buf.Write(shown)
	return nil
}
