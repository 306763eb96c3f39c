package integration

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// step executes one step.
func (y *planRun) step(s step) error {
	switch s.kind {
	case stepAwait:
		return y.await()
	case stepHush:
		return y.hush()
	case stepRouse:
		return y.rouse()
	case stepClose:
		y.gates[s.event].shut()
		return nil
	case stepOpen:
		y.gates[s.event].open()
		return nil
	case stepCrowd:
		return y.crowd(s.key, s.trips)
	case stepDeafen:
		return y.deafen(s.key, s.trips)
	case stepReserve:
		var id int64
		err := y.pool.QueryRow(y.ctx, `SELECT nextval(pg_get_serial_sequence('outbox_events', 'id'))`).Scan(&id)
		y.reserved = append(y.reserved, id)
		return err
	case stepBlocked:
		return y.blocked()
	default:
		return y.write(y.sessions[s.slot], s)
	}
}

// write executes a step of one session.
func (y *planRun) write(w *session, s step) error {
	switch s.kind {
	case stepBegin:
		if w.open {
			return nil
		}
		if _, err := w.Exec(y.ctx, `BEGIN ISOLATION LEVEL `+string(s.level)); err != nil {
			return err
		}
		w.open = true
		return y.insert(w, s)
	case stepCommit, stepRollback:
		if !w.open {
			return nil
		}
		return y.endTx(w, string(s.kind))
	case stepSave:
		if !w.open {
			return nil
		}
		w.saves++
		if _, err := w.Exec(y.ctx, `SAVEPOINT s`); err != nil {
			return err
		}
		return y.insert(w, s)
	case stepUnsave, stepRelease:
		if w.saves == 0 {
			return nil
		}
		_, err := w.Exec(y.ctx, string(s.kind)+` s`)
		if s.kind == stepRelease {
			w.saves--
		}
		return err
	default:
		return y.insert(w, s)
	}
}

// insert writes rows with one statement, in the open transaction if there is one.
func (y *planRun) insert(w *session, s step) error {
	var err error
	switch s.kind {
	case stepCopy:
		_, err = w.CopyFrom(y.ctx, pgx.Identifier{"outbox_events"}, []string{"event_type", "payload"},
			pgx.CopyFromSlice(s.rows, func(int) ([]any, error) { return []any{s.event, "1"}, nil }))
	case stepKeyed:
		// The key is the session's own: no writer waits for another.
		_, err = w.Exec(y.ctx, `INSERT INTO outbox_events (event_type, payload, idempotency_key)
			SELECT $1, '1', CASE WHEN n = 1 THEN $2 END FROM generate_series(1, $3) n ON CONFLICT DO NOTHING`,
			s.event, fmt.Sprintf("%d-%d", s.slot, s.key), s.rows)
	case stepReserved:
		if len(y.reserved) == 0 {
			return nil
		}
		_, err = w.Exec(y.ctx, `INSERT INTO outbox_events (id, event_type, payload) VALUES ($1, $2, '1')`, y.reserved[0], s.event)
		y.reserved = y.reserved[1:]
	case stepOutside:
		err = y.outside(w, s)
	default:
		_, err = w.Exec(y.ctx, `INSERT INTO outbox_events (event_type, payload) SELECT $1, '1' FROM generate_series(1, $2)`, s.event, s.rows)
	}
	if isSerialization(err) {
		if w.open {
			return y.endTx(w, "ROLLBACK")
		}
		return nil
	}
	return err
}

// outside writes an id of the plan's choice, which may be taken. It uses no open
// transaction, so that no writer has to wait for one that holds such an id. The
// timeout would show that a writer does; NOTIFY and the growth of a table take
// locks too, and their holders may be kept off the processor for a while.
func (y *planRun) outside(w *session, s step) error {
	if w.open {
		return nil
	}
	if _, err := w.Exec(y.ctx, `SET lock_timeout = '1min'`); err != nil {
		return err
	}
	_, err := w.Exec(y.ctx, `INSERT INTO outbox_events (id, event_type, payload) VALUES ($1, $2, '1') ON CONFLICT DO NOTHING`, s.id, s.event)
	if err != nil {
		return err
	}
	_, err = w.Exec(y.ctx, `RESET lock_timeout`)
	return err
}

// crowd lets n writers insert over and over until the trigger is released. The last
// insert of each, right before or right after that, is committed some
// statements later, when the relay may be listening already.
func (y *planRun) crowd(n, trips int) error {
	if err := y.hush(); err != nil {
		return err
	}
	return y.writeUntil(n, trips, y.unhush, `SELECT NOT (`+suppressed+`)`)
}

// deafen ends the sessions by which relays listen. Meanwhile n writers insert over and over until a relay listens again, and
// find no relay at first. The last insert of each is committed some statements later, when the relay may have settled.
func (y *planRun) deafen(n, trips int) error {
	var old []int32
	err := y.pool.QueryRow(y.ctx, `SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'notifyd/listen'`).Scan(&old)
	if err != nil {
		return err
	}
	again := strings.TrimSuffix(listenedTo, ")") + ` AND pid <> ALL ($1))`
	return y.writeUntil(n, trips, func() error {
		_, err := y.pool.Exec(y.ctx, `SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid`, old)
		return err
	}, again, old)
}

// writeUntil lets n writers insert over and over during an action, until a condition holds. The last insert of each, right
// before or right after that, is committed some statements later.
func (y *planRun) writeUntil(n, trips int, action func() error, condition string, args ...any) error {
	for len(y.sessions) < slots+n {
		if err := y.connect(); err != nil {
			return err
		}
	}
	errs := make([]error, n)
	var writers sync.WaitGroup
	for i, w := range y.sessions[slots : slots+n] {
		writers.Go(func() { errs[i] = y.insertUntil(w, trips, condition, args...) })
	}
	err := action()
	writers.Wait()
	return errors.Join(err, errors.Join(errs...))
}

func (y *planRun) insertUntil(w *session, trips int, condition string, args ...any) error {
	for holds := false; !holds; {
		if _, err := w.Exec(y.ctx, `BEGIN`); err != nil {
			return err
		}
		if _, err := w.Exec(y.ctx, `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '1')`); err != nil {
			return err
		}
		if err := w.QueryRow(y.ctx, condition, args...).Scan(&holds); err != nil {
			return err
		}
		if !holds {
			if _, err := w.Exec(y.ctx, `ROLLBACK`); err != nil {
				return err
			}
		}
	}
	for range trips {
		if _, err := w.Exec(y.ctx, `SELECT`); err != nil {
			return err
		}
	}
	_, err := w.Exec(y.ctx, `COMMIT`)
	return err
}

// blocked lets a statement draw an id and then wait for a transaction that has
// written the same key, others write in the meantime, and the transaction is
// rolled back: the id is older than all actions of its writer.
func (y *planRun) blocked() error {
	for len(y.sessions) < slots+2 {
		if err := y.connect(); err != nil {
			return err
		}
	}
	first, second := y.sessions[slots], y.sessions[slots+1]
	const keyed = `INSERT INTO outbox_events (event_type, payload, idempotency_key) VALUES ('a', '1', 'wanted by two') ON CONFLICT DO NOTHING`
	if _, err := first.Exec(y.ctx, `BEGIN`); err != nil {
		return err
	}
	if _, err := first.Exec(y.ctx, keyed); err != nil {
		return err
	}
	done := make(chan error, 1)
	pid := second.PgConn().PID()
	go func() {
		_, err := second.Exec(y.ctx, keyed)
		done <- err
	}()
	err := y.until("the wait of the second writer", `SELECT EXISTS (SELECT FROM outbox_events WHERE idempotency_key = 'wanted by two')
		OR EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock')`, pid)
	if err == nil {
		_, err = y.pool.Exec(y.ctx, `INSERT INTO outbox_events (event_type, payload) SELECT 'b', '1' FROM generate_series(1, 100)`)
	}
	if err == nil {
		err = y.await()
	}
	_, rollback := first.Exec(y.ctx, `ROLLBACK`)
	return errors.Join(err, rollback, <-done)
}
