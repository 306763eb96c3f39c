package webhook

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/httpconn"
	"github.com/notifyd/notifyd/handlers/internal/jsonline"
	"github.com/notifyd/notifyd/handlers/internal/message"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/internal/field"
)

// The media types of requests with several events.
const (
	contentBatch  = "application/cloudevents-batch+json"
	contentNDJSON = "application/x-ndjson"
)

// BatchHandler sends requests that hold several events. It implements [delivery.OrderedBatchHandler] and io.Closer, and is
// safe for concurrent use.
type BatchHandler struct {
	*Handler
}

// NewBatch returns a handler for cfg, which needs a BatchFormat. It is [New] in everything else.
func NewBatch(cfg Config, options ...handlers.Option) (*BatchHandler, error) {
	if cfg.BatchFormat == "" {
		return nil, field.Errorf("batch_format", "missing: set %s or %s", BatchCloudEvents, BatchNDJSON)
	}
	h, err := open(cfg, options)
	if err != nil {
		return nil, err
	}
	return &BatchHandler{h}, nil
}

// KeepsOrder implements delivery.OrderedBatchHandler: events of one aggregate stand in one request, in their order, unless
// templates of the event decide the URL or a header.
func (h *BatchHandler) KeepsOrder() bool {
	for _, t := range h.headers {
		if _, constant := t.Constant(); !constant {
			return false
		}
	}
	return h.target.Constant != nil
}

// Deliver is DeliverBatch for one event.
func (h *BatchHandler) Deliver(ctx context.Context, e *delivery.Event) error {
	return outcome.First(h.DeliverBatch(ctx, []*delivery.Event{e}))
}

// DeliverBatch sends the events in one request if it can. Events with other URLs, with other configured headers, or beyond
// BatchBytes need further requests, one after the other. The errors mean:
//
//   - nil: the receiver has answered 2xx, or 207 with a status of 2xx for the event.
//   - the errors of [Handler.Deliver]: the receiver has answered with such a status, to the request or in a 207 for the event.
//   - [delivery.Unavailable]: a 207 has no status for the event, or cannot be read.
//   - [delivery.Throttled], in addition: ctx's deadline leaves no time for another request, or an earlier event of the
//     aggregate, in a [delivery.Call].TotalOrder of the batch, has failed and will be tried again.
//
// A status that one event may have caused, such as 400, 413, or 500 without Retry-After, is not the answer for a batch: the
// handler sends each half again, until the event at fault is alone. It stops when five events in a row were refused alone for
// an unclear reason, and the rest gets [delivery.Throttled]. After a fault of the destination it sends nothing more, and later
// events get the same error.
func (h *BatchHandler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	if len(events) == 0 {
		return nil
	}

	if !h.begin() {
		return slices.Repeat([]error{h.out.Closed()}, len(events))
	}

	defer h.end()

	b := &batch{
		h:       h,
		events:  events,
		entries: make([]entry, len(events)),
		errs:    make([]error, len(events)),
		failed:  make(map[aggregate]bool),
		total:   delivery.CallOf(ctx).TotalOrder,
	}

	for i, e := range events {
		var err error
		b.entries[i], err = h.entry(e)
		if err != nil {
			b.errs[i] = h.failed(h.observe(stageDraft), "", outcome.Failure{Err: err}).mark()
		}
	}

	b.run(httpconn.ForEvents(ctx, events...))
	if !slices.ContainsFunc(b.errs, func(err error) bool { return err != nil }) {
		return nil
	}

	return b.errs
}

// Preview returns the request for e alone, as [Handler.Preview] does.
func (h *BatchHandler) Preview(e *delivery.Event) (string, error) {
	one, err := h.entry(e)
	if err != nil {
		return "", delivery.Permanent(fmt.Errorf("webhook: %w", err))
	}
	return h.preview(h.together([]*delivery.Event{e}, []entry{one})), nil
}

// entry is an event in the body of a request.
type entry struct {
	url     *url.URL
	headers []message.Header // configured
	data    []byte           // a CloudEvent, or a line without its end
}

// place identifies the requests in which the event may stand: they have the same URL and the same headers.
func (e *entry) place() string {
	var key strings.Builder
	key.WriteString(e.url.String())
	for _, h := range e.headers {
		key.WriteString("\n" + h.Name + ":" + h.Value) // none has a line end
	}
	return key.String()
}

// entry makes the part of a request that is about one event. Its errors are about the event and the templates.
func (h *BatchHandler) entry(e *delivery.Event) (made entry, err error) {
	data, err := h.data(e)
	if err != nil {
		return entry{}, err
	}

	made.url, err = h.target.Place(data)
	if err != nil {
		return entry{}, err
	}

	made.headers, err = h.configuredHeaders(data)
	if err != nil {
		return entry{}, err
	}

	var line bytes.Buffer
	if h.cfg.Format == handlers.FormatPayload {
		if err := jsonline.AppendEvent(&line, e); err != nil {
			return entry{}, err
		}
		made.data = bytes.TrimSuffix(line.Bytes(), []byte("\n"))
		return made, nil
	}

	msg := h.encoder.Encode(e)
	if err := h.encoder.Render(&msg, e, data); err != nil {
		return entry{}, err
	}

	made.data = msg.Body
	if h.cfg.BatchFormat == BatchNDJSON {
		if err := jsonline.Compact(&line, msg.Body); err != nil {
			return entry{}, err
		}
		made.data = line.Bytes()
	}

	return made, nil
}

// together makes the request for events that share one.
func (h *BatchHandler) together(events []*delivery.Event, entries []entry) *draft {
	ids := make([]string, len(events))
	parts := make([][]byte, len(events))
	for n, e := range events {
		ids[n] = e.DedupeID()
		parts[n] = entries[n].data
	}

	d := &draft{
		url:    entries[0].url,
		header: make(http.Header),
		batch:  len(events),
		id:     batchID(h.cfg.IDPrefix, events[0].Destination, ids),
	}

	contentType := contentBatch
	if h.cfg.BatchFormat == BatchNDJSON {
		contentType = contentNDJSON
		d.body = append(bytes.Join(parts, []byte("\n")), '\n')
	} else {
		d.body = slices.Concat([]byte("["), bytes.Join(parts, []byte(",")), []byte("]"))
	}

	h.finish(d, contentType, entries[0].headers)
	return d
}

// framing is how many bytes a body has per event beyond its entry.
const framing = 1

// aggregate identifies the events that must keep their order.
type aggregate struct{ kind, id string }

// batch is one call of DeliverBatch. Its slices have an element per event.
type batch struct {
	h       *BatchHandler
	events  []*delivery.Event
	entries []entry
	errs    []error
	// failed holds the aggregates with an event that will be tried again: nothing more of them is sent.
	failed map[aggregate]bool
	total  bool // all events are of one aggregate
	asked  bool // a request was sent
	// refused counts the events that were refused alone, for an unclear reason, since the receiver last took a request.
	refused int
}

// maxRefused is how many events a call tries alone while the receiver takes none and its reason is unclear. The lane then
// takes the receiver for down, and finds out with one event at a time.
const maxRefused = 5

// run sends the events that have no error yet, place by place.
func (b *batch) run(ctx context.Context) {
	constant := b.h.KeepsOrder()
	groups := make(map[string][]int)
	var places []string // in the order of the events
	for i := range b.events {
		if b.errs[i] != nil {
			continue
		}

		place := ""
		if !constant {
			place = b.entries[i].place()
		}

		if groups[place] == nil {
			places = append(places, place)
		}
		groups[place] = append(groups[place], i)
	}

	var stop error
	for _, place := range places {
		for left := groups[place]; len(left) > 0; {
			n := b.fitting(left)
			if stop == nil {
				stop = b.request(ctx, left[:n])
			} else {
				b.fail(left[:n], stop)
			}
			left = left[n:]
		}
	}
}

// fitting returns how many of the events one request holds.
func (b *batch) fitting(all []int) int {
	size := framing
	for n, i := range all {
		size += len(b.entries[i].data) + framing
		if n > 0 && size > b.h.cfg.BatchBytes {
			return n
		}
	}
	return len(all)
}

// fail sets err for those of the events that have no error yet.
func (b *batch) fail(all []int, err error) {
	for _, i := range all {
		if b.errs[i] == nil {
			b.errs[i] = err
		}
	}
}

// aggregate returns the aggregate of an event, and false if its order does not matter.
func (b *batch) aggregate(i int) (aggregate, bool) {
	if b.total {
		return aggregate{}, true
	}
	e := b.events[i]
	return aggregate{e.AggregateType, e.AggregateID}, e.AggregateID != ""
}

// settle records the answer for an event, which must not overtake an earlier one of its aggregate: the receiver may
// have taken it, and it is sent again.
func (b *batch) settle(i int, err error) {
	of, ordered := b.aggregate(i)
	if ordered && err == nil && b.failed[of] {
		err = b.behind(i)
	}
	b.errs[i] = err
	if ordered && err != nil && !delivery.IsPermanent(err) {
		b.failed[of] = true
	}
}

// behind returns the error of an event behind a failed one. No attempt counts.
func (b *batch) behind(i int) error {
	text := b.entries[i].url.Host + ": an earlier event of the aggregate has failed"
	return delivery.Throttled(0, b.h.out.Line(outcome.Failure{Text: text}))
}

// free returns the events that may be sent, and fails the others.
func (b *batch) free(part []int) []int {
	var free []int
	for _, i := range part {
		if of, ordered := b.aggregate(i); ordered && b.failed[of] {
			b.errs[i] = b.behind(i)
			continue
		}
		free = append(free, i)
	}
	return free
}

// request sends events in one request, and in smaller ones if one of the events may be at fault. It returns an error if
// nothing more can be sent now; then each event of part has an error or is delivered.
func (b *batch) request(ctx context.Context, part []int) error {
	part = b.free(part)
	if len(part) == 0 {
		return nil
	}

	events := make([]*delivery.Event, len(part))
	entries := make([]entry, len(part))
	for n, i := range part {
		events[n] = b.events[i]
		entries[n] = b.entries[i]
	}

	d := b.h.together(events, entries)
	leave, err := b.turn(ctx, d)
	if err != nil {
		b.fail(part, err)
		return err
	}

	f := b.h.send(ctx, d)
	leave()
	switch {
	case f == nil:
		b.refused = 0
		for _, i := range part {
			err := b.answer(d, b.events[i])
			b.h.transport.Learn(ctx, err)
			b.settle(i, err)
		}
		return nil
	case ctx.Err() != nil && f.code == 0:
		err := b.h.out.Ended(ctx, d.url.Host+": "+f.at.doing())
		b.fail(part, err)
		return err
	case len(part) > 1 && f.aboutOne():
		mid := (len(part) + 1) / 2
		if err := b.request(ctx, part[:mid]); err != nil {
			b.fail(part[mid:], err)
			return err
		}
		return b.request(ctx, part[mid:])
	}

	err = b.h.verdict(d, f)
	b.h.transport.Learn(ctx, err)
	for _, i := range part {
		b.settle(i, err)
	}

	if delivery.IsUnclear(err) {
		b.refused++
	}

	switch {
	case delivery.IsUnavailable(err), delivery.IsThrottled(err):
		return err
	case b.refused >= maxRefused:
		text := fmt.Sprintf("%s: not sent: the receiver has refused the %d events before, each alone", d.url.Host, b.refused)
		return delivery.Throttled(0, b.h.out.Line(outcome.Failure{Text: text}))
	default:
		return nil
	}
}

// answer returns the error for an event of a request that was answered with 2xx.
func (b *batch) answer(d *draft, e *delivery.Event) error {
	if d.named == nil {
		return nil
	}
	if r, ok := d.named[e.DedupeID()]; ok {
		return b.h.resultError(d.url, r)
	}
	return b.h.unnamed(d.url)
}

// turn waits until the request may be sent. The caller calls leave when the request is done, unless there is an error.
func (b *batch) turn(ctx context.Context, d *draft) (leave func(), err error) {
	latest := b.h.latest(ctx)
	if b.asked && !latest.IsZero() && time.Now().After(latest) {
		return nil, b.h.noTurn(d, &busyError{text: "timeout leaves no time for another request: raise timeout, or lower batch"})
	}
	b.asked = true
	leave, err = b.h.places.enter(ctx, d.url.Host, latest)
	if err != nil {
		return nil, b.h.noTurn(d, err)
	}
	return leave, nil
}

var (
	_ delivery.BatchHandler        = (*BatchHandler)(nil)
	_ delivery.OrderedBatchHandler = (*BatchHandler)(nil)
)
