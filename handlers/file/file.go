// Package file delivers events as lines of JSON: [New] appends them to files, an archive, and [NewLog] writes them to standard
// output or another writer.
//
// An event is delivered once its line is on the disk: the file, and the folders of a file that was empty, are synchronized
// (fsync) before a batch is acknowledged. A batch whose lines are not all written is taken back, and half a line that a crash has left
// is removed before the next one is written, so that a line is never half of another.
//
// A file is locked (flock) while a batch is written, and its end is looked at if another has written to it. So several relays,
// and several destinations, may write to the same file.
package file

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/jsonline"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/internal/tmpl"
)

// maxOpen is how many files are open at once.
const maxOpen = 64

// Handler appends lines. It implements [delivery.BatchHandler] and io.Closer, and is safe for concurrent use; one batch
// is written at a time.
type Handler struct {
	path  *tmpl.Template
	fixed string // the path, "" if it is made of the event
	base  string // what relative paths are below
	out   *outcome.Destination

	turn   chan struct{} // holds a value while no batch is written
	closed atomic.Bool
	files  files // of the batch that has the turn
}

// New returns a handler for cfg. It opens no file: a relay starts also while the disk is not there. The error is a
// [*handlers.FieldError]. The caller closes the handler.
func New(cfg Config, options ...handlers.Option) (*Handler, error) {
	o := handlers.Apply(options)
	t, err := cfg.parse()
	if err != nil {
		return nil, err
	}

	h := &Handler{
		path: t,
		base: o.BaseDir,
		out:  outcome.New("file", ""),
		turn: make(chan struct{}, 1),
		files: files{
			root: inside(o.BaseDir, cfg.stem()),
			open: make(map[string]*appender),
			sync: syncFolder,
		},
	}
	h.out.Safe = []error{errForeign, errKind, errLocked, errTurn, errBehind}

	if path, ok := t.Constant(); ok {
		h.fixed = inside(o.BaseDir, path)
	}

	h.turn <- struct{}{}
	return h, nil
}

// Deliver appends the line for e. See [Handler.DeliverBatch].
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	return outcome.First(h.DeliverBatch(ctx, []*delivery.Event{e}))
}

// KeepsOrder implements delivery.OrderedBatchHandler: lines are written in the order of the events, and none is acknowledged behind an
// event that failed.
func (*Handler) KeepsOrder() bool { return true }

// DeliverBatch appends the lines for events, all of a file in one write. The errors mean:
//
//   - [delivery.Permanent]: the payload is called JSON and is not, or no path can be made of this event.
//   - [delivery.Unclear]: the path made of this event cannot be written as a file: a folder has this path, for example.
//   - [delivery.Unavailable]: a file cannot be written or synchronized, or the handler is closed. All events from the
//     first of that file on fail with it; a line of another file may be written all the same. The error is the same if
//     another program holds the lock of a file for 20 s, or until ctx's deadline.
//   - [delivery.Throttled]: other batches were written until ctx's deadline, or an earlier event of the aggregate, in a
//     [delivery.Call].TotalOrder of the batch, has failed and will be written later; not in a call that is [delivery.Call].Unordered.
//   - ctx's cause, if ctx was done before the call, or canceled before the lines were written. A write itself cannot be
//     interrupted.
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	if err := h.take(ctx); err != nil {
		return slices.Repeat([]error{err}, len(events))
	}
	defer h.release()

	b := batch{
		h:        h,
		events:   events,
		errs:     make([]error, len(events)),
		lines:    make([]line, len(events)),
		patience: lockWithin,
	}
	for i, e := range events {
		b.lines[i], b.errs[i] = h.line(e)
	}

	b.run(ctx)
	if !slices.ContainsFunc(b.errs, func(err error) bool { return err != nil }) {
		return nil
	}

	return b.errs
}

// take waits for the turn to write. release gives it back.
func (h *Handler) take(ctx context.Context) error {
	if ctx.Err() != nil {
		return h.out.Ended(ctx, "")
	}

	select {
	case <-h.turn:
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return delivery.Throttled(0, h.out.Line(outcome.Failure{Err: errTurn, Cure: "lower concurrency, or raise timeout"}))
		}
		return h.out.Ended(ctx, "waiting for another batch")
	}

	if h.closed.Load() {
		h.release()
		return h.out.Closed()
	}

	return nil
}

func (h *Handler) release() {
	if h.closed.Load() {
		h.files.close()
	}
	h.turn <- struct{}{}
	if h.closed.Load() {
		_ = h.Close() // which came in between, and found no turn
	}
}

// Close closes the files. It waits for nothing: a batch that is under way closes them at its end. Closing again does
// nothing; a later delivery fails.
func (h *Handler) Close() error {
	h.closed.Store(true)
	select {
	case <-h.turn:
		h.files.close()
		h.turn <- struct{}{}
	default:
	}
	return nil
}

// line is an event as it is written.
type line struct {
	path string
	text []byte
}

// line returns the line for e. Its error is marked.
func (h *Handler) line(e *delivery.Event) (line, error) {
	path, err := h.pathOf(e)
	if err != nil {
		return line{}, h.out.Refuse(err)
	}
	var buf bytes.Buffer
	if err := jsonline.AppendEvent(&buf, e); err != nil {
		return line{}, h.out.Refuse(err)
	}
	return line{path, buf.Bytes()}, nil
}

// pathOf returns the file of an event.
func (h *Handler) pathOf(e *delivery.Event) (string, error) {
	if h.fixed != "" {
		return h.fixed, nil
	}
	data, err := tmpl.NewData(e)
	if err != nil {
		return "", err
	}
	path, err := h.path.Render(data)
	if err != nil {
		return "", err
	}
	return inside(h.base, path), nil
}

var (
	_ delivery.BatchHandler        = (*Handler)(nil)
	_ delivery.OrderedBatchHandler = (*Handler)(nil)
)
