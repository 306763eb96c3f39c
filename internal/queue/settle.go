package queue

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/wire"
)

// The conditions on state make every statement safe to repeat: after a COMMIT without a reply, any relay may write
// the settlement again.
const (
	sqlDone   = `UPDATE outbox_events SET state = 'done', processed_at = clock_timestamp() WHERE id = ANY($1::bigint[]) AND state = 'fresh'`
	sqlDelete = `DELETE FROM outbox_events WHERE id = ANY($1::bigint[]) AND state = 'fresh'`
	sqlDefer  = `UPDATE outbox_events SET state = 'deferred' WHERE id = ANY($1::bigint[]) AND state = 'fresh'`
)

// Two relays may settle the last two destinations of one event at the same moment, and neither sees the other's row
// disappear. So each relay that settles a delivery locks the event, in id order against deadlocks. It then checks for
// remaining deliveries with a separate statement, and so a new snapshot. Delivery rows are always locked before event
// rows.
const (
	sqlLock   = `SELECT FROM outbox_events WHERE id = ANY($1::bigint[]) ORDER BY id FOR NO KEY UPDATE`
	sqlFinish = `UPDATE outbox_events AS e SET state = 'done', processed_at = clock_timestamp()
WHERE e.id = ANY($1::bigint[]) AND e.state = 'deferred'
AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = e.id AND d.state <> 'dead')`
	// sqlForget leaves the events that an open transaction references to sqlFinish.
	sqlForget = `DELETE FROM outbox_events AS e
USING (SELECT e.id FROM outbox_events AS e WHERE e.id = ANY($1::bigint[]) AND e.state = 'deferred' FOR UPDATE SKIP LOCKED) AS f
WHERE e.id = f.id AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = e.id)`
	// sqlFinished divides by zero if an event is left that sqlFinish should have marked: a trigger or a rule has ignored
	// the write. An error ends the transaction in the flight that would commit it.
	sqlFinished = `SELECT 1 / (count(*) = 0)::int FROM outbox_events AS e
WHERE e.id = ANY($1::bigint[]) AND e.state = 'deferred'
AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = e.id AND d.state <> 'dead')`
)

// ignoredFinish returns an error of sqlFinished as a [session.IgnoredError].
func ignoredFinish(err error) error {
	var answer interface{ SQLState() string }
	if errors.As(err, &answer) && answer.SQLState() == divisionByZero {
		return &session.IgnoredError{Statement: stmtFinish, Rows: 1}
	}
	return err
}

// divisionByZero is the SQLSTATE of sqlFinished.
const divisionByZero = "22012"

// The statements that find the rows of a claim as the claim has found them, deliveries before events. A fresh event has
// no destination, and no row.
const (
	sqlAgainRows = `SELECT d.event_id, d.destination FROM outbox_deliveries AS d
JOIN unnest($1::bigint[], $2::text[]) AS p(event_id, destination) ON d.event_id = p.event_id AND d.destination = p.destination
WHERE d.state = 'retry'`
	sqlAgainEvents = `SELECT e.id, '' FROM outbox_events AS e
JOIN unnest($1::bigint[], $2::text[]) AS p(event_id, destination) ON e.id = p.event_id AND p.destination = ''
WHERE e.state = 'fresh'`
	lockRows = ` FOR UPDATE OF d SKIP LOCKED`
)

// errTaken means that another claimer has locked the row, since a settlement that was not guarded has unlocked it.
var errTaken = errors.New("another claim has the row")

// Settle implements [Claimer]: all statements and the COMMIT leave in one flight, unless rows of outbox_deliveries are
// written. After a refusal that may be of one row, the rest is written without that row.
func (s *Session) Settle(ctx context.Context, settlement *Settlement) (refused []Refused, err error) {
	if s.conn == nil || s.conn.IsClosed() {
		// The claim is lost with its connection. The deliveries are still recorded, in a new transaction.
		return nil, s.settleLost(ctx, settlement)
	}
	guarded := !settlement.Empty() && (s.referenced || time.Now().Before(s.guardUntil))
	err = s.settle(ctx, settlement, guarded)
	if session.IsOfRow(err) && !s.conn.IsClosed() {
		s.guardUntil = time.Now().Add(guardFor)
		refused, err = s.settleInHalves(ctx, settlement, guarded)
	}
	s.refused = err != nil && !store.IsDown(err)
	if err != nil {
		return nil, s.abandon(ctx, "settle", err)
	}
	return refused, nil
}

// settleInHalves writes a settlement that was refused, without the rows that are refused alone.
func (s *Session) settleInHalves(ctx context.Context, settlement *Settlement, guarded bool) ([]Refused, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), halvesWithin)
	defer cancel()

	held, taken, err := s.holdAgain(ctx, settlement.rows(), guarded)
	if err != nil {
		return nil, err
	}

	refused, err := session.InHalves(held, func(some []deliveries.Ref) error {
		err := s.settlePart(ctx, settlement.of(some))
		if s.options.Delete && len(some) == 1 && session.IsConstraint(err) {
			// Something references the event: it stays, and is marked.
			s.options.Delete = false
			err = s.settlePart(ctx, settlement.of(some))
			s.options.Delete = true
		}
		return err
	})
	if err == nil {
		err = s.send(ctx, func(send sendFunc) { send(stmtCommit, anyRows) })
	}

	for _, r := range refused {
		if _, ignored := errors.AsType[*session.IgnoredError](r.Err); ignored {
			s.Close(ctx) // the next session prepares its statements again: see session.ForgetIgnored
			break
		}
	}

	for _, r := range taken {
		refused = append(refused, Refused{Item: r, Err: errTaken})
	}
	return refused, err
}

// holdAgain goes back to where a guarded settlement began, with the locks of the claim. Another one, and one whose COMMIT came
// before an ignored write was seen, has unlocked the rows: they are locked again, and another claimer may have taken some
// meanwhile.
func (s *Session) holdAgain(ctx context.Context, rows []deliveries.Ref, guarded bool) (held, taken []deliveries.Ref, err error) {
	const ended = 'I' // the status of a session without a transaction
	isOpen := s.conn.PgConn().TxStatus() != ended
	if guarded && isOpen {
		return rows, nil, s.send(ctx, func(send sendFunc) { send(stmtBack, anyRows) })
	}

	err = s.send(ctx, func(send sendFunc) {
		if isOpen {
			send(stmtRollback, anyRows)
		}
		send(stmtBegin, anyRows)
	})
	if err != nil {
		return nil, nil, err
	}
	held, taken, err = lockAgain(ctx, s.conn, rows, s.lock())
	if err != nil {
		return nil, nil, err
	}
	return held, taken, s.send(ctx, func(send sendFunc) { send(stmtSavepoint, anyRows) })
}

// settlePart writes a part of a settlement between two savepoints. After an error the transaction is as it was before.
func (s *Session) settlePart(ctx context.Context, part *Settlement) error {
	err := s.send(ctx, func(send sendFunc) {
		s.queueSettlement(send, part, stmtRemove)
		send(stmtImmediate, anyRows)
	})
	if err != nil {
		return errors.Join(err, s.send(ctx, func(send sendFunc) { send(stmtBack, anyRows) }))
	}
	return s.send(ctx, func(send sendFunc) {
		send(stmtRelease, anyRows)
		send(stmtSavepoint, anyRows)
	})
}

// halvesWithin bounds the time to write a settlement without its refused rows.
const halvesWithin = 4 * store.RoundTripTimeout

// lockAgain locks rows of a claim again. It returns the locked ones, and those that another claimer has locked. The
// others were settled.
func lockAgain(ctx context.Context, tx session.Querier, rows []deliveries.Ref, lock string) (held, taken []deliveries.Ref, err error) {
	held, err = again(ctx, tx, rows, sqlAgainRows+lockRows, sqlAgainEvents+lock+` OF e SKIP LOCKED`)
	if err != nil || len(held) == len(rows) {
		return held, nil, err
	}
	all, err := again(ctx, tx, rows, sqlAgainRows, sqlAgainEvents)
	taken = slices.DeleteFunc(all, func(r deliveries.Ref) bool { return slices.Contains(held, r) })
	return held, taken, err
}

// again returns the rows that the statements find.
func again(ctx context.Context, tx session.Querier, rows []deliveries.Ref, statements ...string) (all []deliveries.Ref, err error) {
	args := deliveries.RefArgs(rows)
	for _, sql := range statements {
		some, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return nil, err
		}
		found, err := pgx.CollectRows(some, pgx.RowToStructByPos[deliveries.Ref])
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// settleLost records acknowledged deliveries after the claim was lost. It records no failures: their rows are free
// and will be claimed again. After a refused settlement, settleLost fails until the database would accept the whole
// settlement, because later claims could not be settled either.
func (s *Session) settleLost(ctx context.Context, settlement *Settlement) error {
	rest := settlement.lost()
	if rest.Empty() && !s.refused {
		return nil
	}

	if err := s.connect(ctx); err != nil {
		return err
	}

	if !rest.Empty() {
		err := s.send(ctx, func(send sendFunc) {
			send(stmtBegin, anyRows)
			s.queueSettlement(unlocked(send), rest, stmtUnlocked)
			send(stmtCommit, anyRows)
		})
		if err != nil {
			return s.abandon(ctx, "settle after the claim was lost", err)
		}
	}

	if !s.refused {
		return nil
	}

	if err := s.rehearse(ctx, settlement); err != nil {
		return s.abandon(ctx, "try again to settle", err)
	}
	s.refused = false
	return nil
}

// rehearse checks whether the database would accept a settlement, and changes nothing.
func (s *Session) rehearse(ctx context.Context, settlement *Settlement) error {
	tx, err := s.conn.Begin(ctx)
	if err != nil {
		return err
	}

	held, _, err := lockAgain(ctx, tx, settlement.rows(), s.lock())
	if err == nil {
		err = s.send(ctx, func(send sendFunc) {
			s.queueSettlement(send, settlement.of(held), stmtRemove)
			send(stmtImmediate, anyRows)
		})
	}
	return cmp.Or(err, tx.Rollback(ctx))
}

// guardFor is how long the settlements of a session are guarded after one was refused.
const guardFor = time.Minute

// settle writes the settlement and commits. A row of outbox_deliveries that is not written must not be committed as if it
// were, so the commit of such a settlement waits for the results.
//
// A guarded settlement begins with a savepoint, which keeps the locks of the claim if a statement is refused, and checks
// deferred constraints before the COMMIT, which would unlock the rows. Not every settlement is guarded: the lock of a
// transaction and the change of its savepoint become a multixact in each row, and PostgreSQL does not remove index entries of
// such rows before the next VACUUM.
func (s *Session) settle(ctx context.Context, settlement *Settlement, guarded bool) error {
	commit := func(send sendFunc) {
		if guarded {
			send(stmtImmediate, anyRows)
		}
		send(stmtCommit, anyRows)
	}

	together := len(settlement.Put) == 0
	err := s.send(ctx, func(send sendFunc) {
		if guarded {
			send(stmtSavepoint, anyRows)
		}
		s.queueSettlement(send, settlement, stmtRemove)
		if together {
			commit(send)
		}
	})
	if err != nil || together {
		return err
	}
	return s.send(ctx, commit)
}

// sendFunc sends a statement that changes a number of rows, or anyRows.
type sendFunc func(name string, rows int, args ...[]byte)

const anyRows = -1

// unlocked returns a sendFunc for statements whose rows another relay may have changed.
func unlocked(send sendFunc) sendFunc {
	return func(name string, _ int, args ...[]byte) { send(name, anyRows, args...) }
}

// send sends statements in one flight, and returns when all have results. It returns a [session.IgnoredError] if a
// statement has changed fewer rows than it should.
func (s *Session) send(ctx context.Context, queue func(sendFunc)) error {
	expected := s.changes[:0]
	f, err := s.fly(ctx, func(f *flight) {
		queue(func(name string, rows int, args ...[]byte) {
			var formats []int16
			if len(args) > 0 {
				formats = wire.AllBinary()
			}
			expected = append(expected, rows)
			f.send(name, args, formats, nil)
		})
	})

	s.changes = expected
	if err != nil {
		return err
	}

	var ignored error
	for i, name := range f.names {
		changed, err := f.changed()
		if err != nil {
			_ = f.close() // returns the same error
			if name == stmtFinished {
				err = ignoredFinish(err)
			}
			return err
		}
		if expected[i] != anyRows && changed < int64(expected[i]) && ignored == nil {
			ignored = &session.IgnoredError{Statement: name, Rows: int64(expected[i]), Changed: changed}
		}
	}

	return cmp.Or(f.close(), ignored)
}

// queueSettlement sends the statements of a settlement; remove is the one that deletes rows.
func (s *Session) queueSettlement(send sendFunc, settlement *Settlement, remove string) {
	if ids := settlement.Done; len(ids) > 0 {
		s.params = wire.AppendInt8Array(s.params[:0], ids)
		if s.options.Delete {
			send(stmtDelete, len(ids), s.byID(s.params, ids)...)
		} else {
			send(stmtDone, len(ids), s.byID(s.params, ids)...)
		}
	}

	if ids := settlement.DeadLettered; len(ids) > 0 {
		send(stmtBury, len(ids), s.byID(wire.AppendInt8Array(nil, ids), ids)...)
	}

	if ids := settlement.Deferred; len(ids) > 0 {
		send(stmtDefer, len(ids), s.byID(wire.AppendInt8Array(nil, ids), ids)...)
	}

	if refs := settlement.Acknowledged; len(refs) > 0 {
		send(stmtAcknowledged, anyRows, wire.Params(deliveries.RefArgs(refs))...)
	}

	if refs := settlement.Remove; len(refs) > 0 {
		send(remove, len(refs), wire.Params(deliveries.RefArgs(refs))...)
	}

	if entries := settlement.Put; len(entries) > 0 {
		encoding := s.conn.PgConn().ParameterStatus("server_encoding")
		send(stmtPut, len(entries), wire.Params(deliveries.Args(entries, encoding, s.options.Owner, s.options.Lease))...)
		if args := deliveries.ReportArgs(entries); args != nil {
			send(stmtReport, deliveries.Reports(entries), wire.Params(args)...)
		}
	}

	if ids := settlement.finished(); len(ids) > 0 {
		args := s.byID(wire.AppendInt8Array(nil, ids), ids)
		send(stmtLock, anyRows, args...)
		if s.options.Delete {
			send(stmtForget, anyRows, args...)
		}
		send(stmtFinish, anyRows, args...)
		send(stmtFinished, anyRows, args...)
	}
}
