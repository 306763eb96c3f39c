package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// eventTypes have a destination each, with a gate each.
var eventTypes = []string{"a", "b"}

// session is a writer with at most one transaction open.
type session struct {
	*pgx.Conn
	open  bool
	saves int // savepoints
}

// planRun executes a plan. Its methods return errors instead of failing the test,
// because rapid needs the failure as an error.
type planRun struct {
	*env
	ctx      context.Context //nolint:containedctx // of one plan
	patience time.Duration
	gates    map[string]*gate
	sessions []*session
	reserved []int64
	relays   []chan error
	stop     context.CancelFunc
	logs     []*logBuffer
	pumping  *pump // nil: no pump runs

	mu    sync.Mutex
	calls map[int64]int // by event
}

func newPlanRun(e *env, patience time.Duration) *planRun {
	ctx, stop := context.WithCancel(e.ctx)
	y := &planRun{env: e, ctx: ctx, patience: patience, stop: stop, gates: map[string]*gate{}, calls: map[int64]int{}}
	for _, event := range eventTypes {
		y.gates[event] = newGate()
	}
	return y
}

// execute executes a plan on an empty table and returns the failure.
func execute(e *env, p plan, patience, poll time.Duration) (err error) {
	y := newPlanRun(e, patience)
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, y.dump())
		}
		err = errors.Join(err, y.end())
		for i, log := range y.logs {
			if text := log.text(); err != nil {
				err = fmt.Errorf("%w\nlog of relay %d:\n%s", err, i, text[max(0, len(text)-2000):])
			}
		}
	}()
	if err := y.empty(); err != nil {
		return err
	}
	for range p.relays {
		if err := y.startRelay(poll); err != nil {
			return err
		}
	}
	for range slots {
		if err := y.connect(); err != nil {
			return err
		}
	}
	for i, s := range p.steps {
		if err := y.step(s); err != nil {
			return fmt.Errorf("step %d, %v: %w", i, s, err)
		}
	}
	return y.finish()
}

// empty resets the table.
func (y *planRun) empty() error {
	sql := `TRUNCATE outbox_events, outbox_deliveries RESTART IDENTITY`
	if y.mode == outboxsql.ModeStream {
		sql += `; TRUNCATE outbox_routes, outbox_positions; UPDATE outbox_mode SET origin_head = 0, origin_open = '{}'`
	}
	_, err := y.pool.Exec(y.ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// finish waits until the relays are listening before the last transactions commit, and
// compares the committed events with the delivered ones.
func (y *planRun) finish() error {
	if err := y.rouse(); err != nil {
		return err
	}
	for _, s := range y.sessions {
		if s.open {
			if err := y.endTx(s, "COMMIT"); err != nil {
				return err
			}
		}
	}
	if err := y.await(); err != nil {
		return err
	}
	rows, err := y.pool.Query(y.ctx, `SELECT id FROM outbox_events`)
	if err != nil {
		return err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	lost := slices.ContainsFunc(y.logs, (*logBuffer).lostClaim)
	for _, id := range ids {
		if n := y.calls[id]; n < 1 || n > 1 && !lost {
			return fmt.Errorf("event %d was delivered %d times", id, n)
		}
	}
	if len(ids) != len(y.calls) {
		return fmt.Errorf("%d events were delivered, %d are committed", len(y.calls), len(ids))
	}
	return nil
}

// startRelay starts a relay whose limits are small, so that a few hundred
// events are a backlog.
func (y *planRun) startRelay(poll time.Duration) error {
	log := &logBuffer{}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r, err := notifyd.New(y.pool, notifyd.Config{Logger: logger, PollInterval: poll, Connections: 2, Batch: 20, LockBudget: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	for event, g := range y.gates {
		if err := r.Handle(event, notifyd.Destination{Name: event, Handler: y.handler(g), Lane: delivery.Lane{Concurrency: 2, Timeout: patience}}); err != nil {
			return err
		}
	}
	done := make(chan error, 1)
	y.relays, y.logs = append(y.relays, done), append(y.logs, log)
	go func() { done <- r.Run(y.ctx) }()
	select {
	case <-r.Ready():
		return nil
	case <-time.After(y.patience):
		return errors.New("relay is not ready")
	}
}

func (y *planRun) handler(g *gate) delivery.Handler {
	return delivery.HandlerFunc(func(ctx context.Context, e *delivery.Event) error {
		y.mu.Lock()
		y.calls[e.ID]++
		y.mu.Unlock()
		select {
		case <-g.pass():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

func (y *planRun) connect() error {
	conn, err := pgx.ConnectConfig(y.ctx, y.pool.Config().ConnConfig)
	if err == nil {
		y.sessions = append(y.sessions, &session{Conn: conn})
	}
	return err
}

// end stops everything that belongs to the plan.
func (y *planRun) end() error {
	for _, s := range y.sessions {
		_ = s.Close(context.WithoutCancel(y.ctx)) // the socket is closed either way
	}
	y.openGates()
	errs := []error{y.endPump()}
	y.stop()
	for _, done := range y.relays {
		select {
		case err := <-done:
			errs = append(errs, err)
		case <-time.After(patience):
			errs = append(errs, errors.New("relay does not stop"))
		}
	}
	return errors.Join(errs...)
}

// until waits for a query to return true.
func (y *planRun) until(what, sql string, args ...any) error {
	ctx, cancel := context.WithTimeoutCause(y.ctx, y.patience, errors.New(what+" did not happen"))
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		var ok bool
		if err := y.pool.QueryRow(ctx, sql, args...).Scan(&ok); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		if ok {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// await waits for the committed events whose handlers answer.
func (y *planRun) await() error {
	var answering []string
	for event, g := range y.gates {
		if g.isOpen() {
			answering = append(answering, event)
		}
	}
	// Up to now, because a pump may be running.
	var last int64
	if err := y.pool.QueryRow(y.ctx, `SELECT coalesce(max(id), 0) FROM outbox_events`).Scan(&last); err != nil {
		return err
	}
	if y.mode != outboxsql.ModeStream {
		return y.until("delivery of all that is committed",
			`SELECT NOT EXISTS (SELECT FROM outbox_events WHERE state <> 'done' AND event_type = ANY ($1) AND id <= $2)`, answering, last)
	}
	return y.until("delivery of all that is committed",
		doneWhere(y.mode, everyPlace, `e.event_type = p.destination AND e.event_type = ANY ($1) AND e.id <= $2`), answering, last)
}

func (y *planRun) openGates() {
	for _, g := range y.gates {
		g.open()
	}
}

// hush makes some relay poll until rouse: a steady flow of new events does, a standing backlog does not.
func (y *planRun) hush() error {
	y.openGates()
	if y.pumping == nil {
		// First the events that exist: new ones would lead the relay to them.
		if err := y.await(); err != nil {
			return err
		}
		y.pumping = startPump(y.ctx, y.pool, y.mode)
	}
	return y.until("suppression", suppressed)
}

// unhush stops the flow that makes a relay poll.
func (y *planRun) unhush() error {
	y.openGates()
	return y.endPump()
}

func (y *planRun) endPump() error {
	if y.pumping == nil {
		return nil
	}
	err := y.pumping.end()
	y.pumping = nil
	return err
}

// rouse lets the relays work off all events and listen.
func (y *planRun) rouse() error {
	if err := y.unhush(); err != nil {
		return err
	}
	if err := y.await(); err != nil {
		return err
	}
	return y.until("notifications released", `SELECT NOT (`+suppressed+`)`)
}

// endTx ends the transaction of a session. Serialization failures concern only the writer.
func (y *planRun) endTx(s *session, how string) error {
	s.open, s.saves = false, 0
	_, err := s.Exec(y.ctx, how)
	if isSerialization(err) {
		return nil
	}
	return err
}

func isSerialization(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "40001"
}
