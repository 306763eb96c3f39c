package console

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// maxStreams bounds the open streams of all logins with the same rights: viewers take none from operators. maxStreamsEach
	// bounds those of one login. A browser has one per page.
	maxStreams     = 64
	maxStreamsEach = 16
)

// streams counts open streams by login.
type streams struct {
	mu  sync.Mutex
	sum map[bool]int // by readOnly
	all map[session]int
}

// open counts one more stream of a viewer until done is called. ok is false if there are too many.
func (s *streams) open(v viewer) (done func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.sum[v.readOnly] >= maxStreams || s.all[v.session] >= maxStreamsEach {
		return nil, false
	}
	if s.all == nil {
		s.sum = make(map[bool]int)
		s.all = make(map[session]int)
	}

	s.sum[v.readOnly]++
	s.all[v.session]++

	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()

		s.sum[v.readOnly]--
		s.all[v.session]--
		if s.all[v.session] == 0 {
			delete(s.all, v.session)
		}
	}, true
}

// drawings are the live parts of pages, each drawn once per snapshot, however many streams send it.
type drawings struct {
	mu   sync.Mutex
	of   <-chan struct{} // the snapshot: it is closed when there is a newer one
	made map[string][]byte
}

// get returns the part with this key, drawn from the given snapshot.
func (d *drawings) get(of <-chan struct{}, key string, draw func() ([]byte, error)) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.of != of {
		d.of = of
		d.made = make(map[string][]byte)
	}

	if text, ok := d.made[key]; ok {
		return text, nil
	}

	text, err := draw()
	if err != nil {
		return nil, err
	}

	d.made[key] = text
	return text, nil
}

// streamTimeout bounds writing one update. A browser that does not read is disconnected.
const streamTimeout = 10 * time.Second

// live sends a page's figures whenever there are new ones, as server-sent events,
// until the browser leaves, or the session or the console ends.
func (o *outbox) live(w http.ResponseWriter, r *http.Request, v viewer) error {
	page := r.PathValue("page")
	readOnly := o.readOnly(v)
	body, subject := o.figures(page, r.URL.Query(), readOnly)
	if body == nil {
		return notFound("There is no such stream.")
	}

	done, ok := o.streams.open(v)
	if !ok {
		return failure{http.StatusServiceUnavailable, "Too many pages are open. Close some, or reload this page to see its figures."}
	}
	defer done()

	control := http.NewResponseController(w)
	// The server's own limits are for answers that end. Middleware of a program may hide them.
	if err := control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("stream: %w", err)
	}

	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy that buffers would break the stream
	defer o.sampler.addViewer()()

	key := strings.Join([]string{page, strconv.FormatBool(readOnly), subject}, "\x00")
	for {
		if _, open := o.door.sessions.find(v.session, time.Now()); !open && o.cfg.Token != nil {
			_, _ = fmt.Fprint(w, "event: end\ndata: \n\n")
			return nil
		}

		snap, changed := o.sampler.next()
		text, err := o.drawn.get(changed, key, func() ([]byte, error) { return o.draw(page, "live", body(snap)) })
		if err != nil {
			o.cfg.Log.WarnContext(r.Context(), "console request failed", "path", r.URL.Path, "err", err)
			return nil
		}

		if err := control.SetWriteDeadline(time.Now().Add(streamTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return nil // the connection is gone
		}
		if err := send(w, text); err != nil || control.Flush() != nil {
			return nil // the browser is gone
		}

		select {
		case <-changed:
		case <-r.Context().Done():
			return nil
		case <-o.ended:
			return nil
		}
	}
}

// figures returns the function for the live part of a page, and its subject: a destination or a replay. It returns nil for an unknown
// page or subject. Only page, subject and rights choose a drawing. Otherwise a viewer could request any number of drawings of one page.
func (o *outbox) figures(page string, q url.Values, readOnly bool) (body func(snapshot) any, subject string) {
	switch page {
	case "overview":
		return func(snap snapshot) any { return o.overviewOf(snap, readOnly) }, ""
	case "destinations":
		return func(snap snapshot) any { return o.cards(snap, readOnly) }, ""
	case "destination":
		name := q.Get("name")
		if snap, _ := o.sampler.next(); slices.Contains(snap.names(), name) {
			return func(snap snapshot) any { return o.card(snap, name, readOnly) }, name
		}
	case "replay":
		if found := o.replays.find(q.Get("id")); found != nil {
			return func(snapshot) any { return o.replayBody(found, readOnly) }, found.ID
		}
	}

	return nil, ""
}

// send writes one event. A line of the text is a line of data.
func send(w http.ResponseWriter, text []byte) error {
	var out bytes.Buffer
	out.WriteString("event: page\n")

	for line := range bytes.Lines(text) {
		out.WriteString("data: ")
		out.Write(bytes.TrimRight(line, "\r\n"))
		out.WriteByte('\n')
	}

	out.WriteByte('\n')
	_, err := w.Write(out.Bytes())
	return err
}
