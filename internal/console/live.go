package console

import (
	"bytes"
	"fmt"
	"net/http"
	"time"
)

// streamTimeout bounds writing one update. A browser that does not read is disconnected.
const streamTimeout = 10 * time.Second

// live sends a page's figures whenever there are new ones, as server-sent events,
// until the browser leaves, or the session or the console ends.
func (o *outbox) live(w http.ResponseWriter, r *http.Request, v viewer) error {
	view := o.view(r, v)
	if view == nil {
		return notFound("There is no such stream.")
	}
	control := http.NewResponseController(w)
	// The server's own limits are for answers that end.
	if err := control.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy that buffers would break the stream
	defer o.sampler.addViewer()()
	for {
		if _, open := o.door.sessions.find(v.session, time.Now()); !open && o.cfg.Token != nil {
			_, _ = fmt.Fprint(w, "event: end\ndata: \n\n")
			return nil
		}
		snap, changed := o.sampler.next()
		var text bytes.Buffer
		if err := view(&text, snap); err != nil {
			o.cfg.Log.WarnContext(r.Context(), "console request failed", "path", r.URL.Path, "err", err)
			return nil
		}
		if err := control.SetWriteDeadline(time.Now().Add(streamTimeout)); err != nil {
			return nil // the connection is gone
		}
		if err := send(w, text.Bytes()); err != nil || control.Flush() != nil {
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

// view returns the function that writes the live part of a page, or nil for an unknown page.
func (o *outbox) view(r *http.Request, v viewer) func(*bytes.Buffer, snapshot) error {
	page, q, readOnly := r.PathValue("page"), r.URL.Query(), o.readOnly(v)
	body := map[string]func(snapshot) any{
		"overview":     func(snap snapshot) any { return o.overviewOf(snap, readOnly) },
		"destinations": func(snap snapshot) any { return o.cards(snap, readOnly) },
		"destination":  func(snap snapshot) any { return o.card(snap, q.Get("name"), readOnly) },
	}[page]
	if found := o.replays.find(q.Get("id")); page == "replay" && found != nil {
		body = func(snapshot) any { return o.replayBody(found, readOnly) }
	}
	if body == nil {
		return nil
	}
	return func(text *bytes.Buffer, snap snapshot) error {
		return o.pages[page].ExecuteTemplate(text, "live", body(snap))
	}
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
