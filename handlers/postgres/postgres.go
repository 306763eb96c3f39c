// Package postgres delivers events as rows to a table in another PostgreSQL database.
//
// An event is delivered once its row is committed. The source and the event's id are the key of the table,
// so that an event that is delivered again adds no second row.
package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/internal/idle"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/internal/session"
)

// closeWithin bounds the orderly end of a connection.
const closeWithin = time.Second

// Handler writes rows. It implements [delivery.BatchHandler] and io.Closer, and is safe for concurrent
// use: each batch under way has a separate connection, which the next batch reuses.
type Handler struct {
	cfg            Config
	target         *pgx.ConnConfig
	insert, others string // statements
	out            *outcome.Destination
	idle           idle.Pool[*link]
	age            time.Duration // the longest use of a connection
}

// New returns a handler for cfg. It reads the files that the connection string names, and makes no
// connection: a relay starts also while the database is down. The error joins every mistake, each a
// [*handlers.FieldError]. The caller closes the handler.
func New(cfg Config, _ ...handlers.Option) (*Handler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	to, err := cfg.target()
	if err != nil {
		return nil, err
	}
	out := outcome.New("postgres", "", cfg.URL.Reveal(), to.Password)
	out.TLS.Certificate = "check sslmode and sslrootcert in url"
	return &Handler{cfg: cfg, target: to, age: idle.MaxAge, insert: insertInto(cfg.name()), others: othersIn(cfg.name()), out: out}, nil
}

// Deliver is DeliverBatch for one event.
func (h *Handler) Deliver(ctx context.Context, e *delivery.Event) error {
	return outcome.First(h.DeliverBatch(ctx, []*delivery.Event{e}))
}

// KeepsOrder implements delivery.OrderedBatchHandler: the rows of a batch are committed in its order, and none
// behind one that will be delivered again.
func (*Handler) KeepsOrder() bool { return true }

// DeliverBatch writes the rows for events in one statement, or in a few if they are very large. An event
// whose row is there is delivered. A statement that fails to serialize, or in a deadlock, is tried again at
// once, a few times and in halves, for at most RequestTimeout. What an error means:
//
//   - [delivery.Permanent]: the payload is not what PostgreSQL can store, or the table has another event under
//     the same key.
//   - [delivery.Unclear]: a constraint, a policy, a trigger or a missing partition of the table refuses this row,
//     perhaps as it refuses every one.
//   - [delivery.Unavailable]: the database does not answer in time, or not at all; it refuses the
//     credentials, the statement or the table; or it has no room.
//   - ctx's cause, if ctx was done first. The rows may be written all the same.
func (h *Handler) DeliverBatch(ctx context.Context, events []*delivery.Event) []error {
	if ctx.Err() != nil {
		return slices.Repeat([]error{h.out.Ended(ctx, "")}, len(events))
	}

	l, open := h.idle.Take(func() *link { return &link{h: h} })
	if !open {
		return slices.Repeat([]error{h.out.Closed()}, len(events))
	}

	defer h.release(ctx, l)

	if l.conn != nil && !l.record.Serves(events) {
		l.close(ctx)
	}

	b := batch{h: h, l: l, events: events}
	b.run(ctx)

	if l.conn != nil {
		l.record.Learn(b.errs)
	}

	return b.errs
}

// Close closes the idle connections. It waits for nothing but their end: a batch that is under way closes
// its own, and a later one fails. Closing again does nothing.
func (h *Handler) Close() error {
	for _, l := range h.idle.Close() {
		l.close(context.Background()) //nolint:forbidigo // io.Closer has no context
	}
	return nil
}

func (h *Handler) release(ctx context.Context, l *link) {
	if !h.idle.Put(l) {
		l.close(ctx)
	}
}

// link is a connection that is made when it is needed. It serves one batch at a time.
type link struct {
	h      *Handler
	conn   *pgx.Conn // nil before the first use, and after a fault
	born   time.Time
	record *idle.Record // of conn
}

// ready returns the connection, a new one where the last one is not usable.
func (l *link) ready(ctx context.Context) (*pgx.Conn, error) {
	if l.conn != nil && l.isSpent() {
		l.close(ctx)
	}

	if l.conn == nil {
		conn, err := pgx.ConnectConfig(ctx, l.h.target)
		if err != nil {
			return nil, &connectError{err}
		}
		l.conn = conn
		l.born = time.Now()
		l.record = idle.NewRecord()

		if err := session.SetForeign(ctx, conn); err != nil {
			l.close(ctx)
			return nil, err
		}
	}

	return l.conn, nil
}

// isSpent reports whether another connection must replace the link's.
func (l *link) isSpent() bool {
	if l.conn.IsClosed() || time.Since(l.born) > l.h.age {
		return true
	}
	return l.conn.PgConn().CheckConn() != nil //nolint:staticcheck // a Ping costs each batch a flight
}

// connectError is a connection that was not made. Its text has one attempt for each address.
type connectError struct{ error }

func (e *connectError) Error() string { return session.ConnectText(e.error) }
func (e *connectError) Unwrap() error { return e.error }

func (l *link) close(ctx context.Context) {
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	_ = l.conn.Close(ctx) // the server notices by itself
	l.conn = nil
}

// leave ends the connection after an error that is not about the rows: the next statement begins on a new
// connection, perhaps to another server.
func (l *link) leave(ctx context.Context, err error) {
	server, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || !isAboutRow(server) || server.Severity == "FATAL" {
		l.close(ctx)
	}
}

var (
	_ delivery.BatchHandler        = (*Handler)(nil)
	_ delivery.OrderedBatchHandler = (*Handler)(nil)
)
