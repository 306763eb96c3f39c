package notifyd

import (
	"context"
	"fmt"

	"github.com/notifyd/notifyd/listener"
	outboxsql "github.com/notifyd/notifyd/sql"
	"github.com/notifyd/notifyd/store"
	"github.com/notifyd/notifyd/stream"
)

// readStream makes the engine for a table that is a stream. What claims and marks
// events stays unused.
func (r *Relay) readStream() {
	r.keeper = store.NewKeeper(r.connector, store.Options{Owner: r.owner, Mode: outboxsql.ModeStream, Refused: r.refuse})
	o := stream.Options{
		Config: r.settings.dispatch, Dispatcher: r.dispatcher, Connector: r.connector, Owner: r.owner, Log: r.log,
	}
	if r.bell != nil {
		o.Bell = r.bell
		r.bell.Announce(outboxsql.Channel(r.settings.schema))
	}
	r.engine.Store(stream.New(o))
}

// refuse ends Run, because the table is of another mode.
func (r *Relay) refuse(err error) {
	select {
	case r.refused <- err:
	default: // another session has said so
	}
}

// deliver runs the engine that the table is for.
func (r *Relay) deliver(ctx context.Context) error {
	e := r.engine.Load()
	if e == nil {
		return r.dispatcher.Run(ctx)
	}
	if err := e.Run(ctx); err != nil {
		return fmt.Errorf("read the stream: %w", err)
	}
	return nil
}

// hints passes on what the listener hears to whatever reads the table.
type hints struct{ r *Relay }

// Wake implements listener.Hints.
func (h hints) Wake(id int64) {
	if e := h.r.engine.Load(); e != nil {
		e.Wake(id)
		return
	}
	h.r.dispatcher.Wake(id)
}

// Look implements listener.Hints.
func (h hints) Look() {
	if e := h.r.engine.Load(); e != nil {
		e.Look()
		return
	}
	h.r.dispatcher.Look()
}

// Heard implements listener.Words. What this relay's own bell says is no news.
func (h hints) Heard(word string, from uint32) bool {
	e := h.r.engine.Load()
	switch {
	case e == nil:
		return false
	case word == listener.WordAwake && h.r.bell != nil && h.r.bell.Sent(from):
		return true
	default:
		return e.Heard(word)
	}
}

// Blind takes word that notifications are not heard, and that they are again.
func (h hints) Blind(is bool) {
	if e := h.r.engine.Load(); e != nil {
		e.Blind(is)
		return
	}
	h.r.dispatcher.Blind(is)
}

// Awake reports whether nothing depends on notifications.
func (h hints) Awake() bool {
	if e := h.r.engine.Load(); e != nil {
		return e.Awake()
	}
	return h.r.dispatcher.Awake()
}
