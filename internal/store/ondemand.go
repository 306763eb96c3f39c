package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/session"
)

// onDemand is a session that connects on first use, and again after an error. It is safe for concurrent use; its creator
// closes it.
type onDemand struct {
	connector *Connector
	role      string
	// report receives the result of each use; nil is good.
	report func(error)

	mu   sync.Mutex // guards conn, and serializes the session
	conn *session.Conn
}

// Close ends the session, even if ctx has ended.
func (o *onDemand) Close(ctx context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conn != nil {
		Close(ctx, o.conn.Conn)
		o.conn = nil
	}
}

// do runs f with the session, also if ctx has ended, and returns its error with a description. It waits for within at most.
func (o *onDemand) do(ctx context.Context, within time.Duration, what string, f func(context.Context, *session.Conn) error) error {
	late := fmt.Errorf("the database did not answer within %v", within)
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), within, late)
	defer cancel()

	err := o.use(ctx, f)
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}

	o.report(err)
	return err
}

func (o *onDemand) use(ctx context.Context, f func(context.Context, *session.Conn) error) (err error) {
	o.mu.Lock()
	defer o.mu.Unlock()

	if o.conn == nil || o.conn.IsClosed() {
		o.conn, err = o.connector.Open(ctx, o.role)
		if err != nil {
			o.conn = nil
			return err
		}
	}

	err = f(ctx, o.conn)
	if err != nil {
		Close(ctx, o.conn.Conn) // the server may have become a standby
		o.conn = nil
	}

	return err
}
