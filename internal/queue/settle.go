package queue

import (
	"context"

	"github.com/notifyd/notifyd/internal/deliveries"
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
	sqlLock   = `SELECT FROM outbox_events WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE`
	sqlFinish = `UPDATE outbox_events AS e SET state = 'done', processed_at = clock_timestamp()
WHERE e.id = ANY($1::bigint[]) AND e.state = 'deferred'
AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = e.id AND d.state <> 'dead')`
	sqlForget = `DELETE FROM outbox_events AS e WHERE e.id = ANY($1::bigint[]) AND e.state = 'deferred'
AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = e.id)`
)

// Settle implements [Claimer]: all statements and the COMMIT leave in one flight.
func (s *Session) Settle(ctx context.Context, settlement *Settlement) error {
	if s.conn == nil || s.conn.IsClosed() {
		// The claim is lost with its connection. The deliveries are still recorded, in a new transaction.
		return s.settleLost(ctx, settlement)
	}
	err := s.settle(ctx, settlement)
	if s.refused = err != nil && !store.IsDown(err); err != nil {
		return s.abandon(ctx, "settle", err)
	}
	return nil
}

// settleLost records acknowledged deliveries after the claim was lost. It records no failures: their rows are free
// and will be claimed again. After a refused settlement, settleLost fails until the database would accept the whole
// settlement, because later claims could not be settled either.
func (s *Session) settleLost(ctx context.Context, settlement *Settlement) error {
	rest := &Settlement{Done: settlement.Done, Remove: settlement.Remove, Acknowledged: settlement.Acknowledged}
	if len(settlement.Put) > 0 {
		// An entry of Remove may belong to a delivery that Put has split up: write both or neither.
		rest.Remove, rest.Acknowledged = nil, nil
	}
	if rest.Empty() && !s.refused {
		return nil
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	if !rest.Empty() {
		err := s.send(ctx, func(send func(name string, args ...[]byte)) {
			send(stmtBegin)
			s.queueSettlement(send, rest, stmtUnlocked)
			send(stmtCommit)
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
	return s.send(ctx, func(send func(name string, args ...[]byte)) {
		send(stmtBegin)
		s.queueSettlement(send, settlement, stmtRemove)
		send(stmtImmediate)
		send(stmtRollback)
	})
}

// settle writes the settlement and commits.
func (s *Session) settle(ctx context.Context, settlement *Settlement) error {
	return s.send(ctx, func(send func(name string, args ...[]byte)) {
		s.queueSettlement(send, settlement, stmtRemove)
		send(stmtCommit)
	})
}

// send sends statements in one flight, and returns when all have results.
func (s *Session) send(ctx context.Context, queue func(send func(name string, args ...[]byte))) error {
	f, err := s.fly(ctx, func(f *flight) {
		queue(func(name string, args ...[]byte) {
			var formats []int16
			if len(args) > 0 {
				formats = wire.AllBinary()
			}
			f.send(name, args, formats, nil)
		})
	})
	if err != nil {
		return err
	}
	for range f.names {
		if err := f.skip(); err != nil {
			_ = f.close() // returns the same error
			return err
		}
	}
	return f.close()
}

// queueSettlement sends the statements of a settlement; remove is the one that deletes rows.
func (s *Session) queueSettlement(send func(name string, args ...[]byte), settlement *Settlement, remove string) {
	if ids := settlement.Done; len(ids) > 0 {
		s.params = wire.AppendInt8Array(s.params[:0], ids)
		if s.options.Delete {
			send(stmtDelete, s.byID(s.params, ids)...)
		} else {
			send(stmtDone, s.byID(s.params, ids)...)
		}
	}
	if ids := settlement.DeadLettered; len(ids) > 0 {
		send(stmtBury, s.byID(wire.AppendInt8Array(nil, ids), ids)...)
	}
	if ids := settlement.Deferred; len(ids) > 0 {
		send(stmtDefer, s.byID(wire.AppendInt8Array(nil, ids), ids)...)
	}
	if refs := settlement.Acknowledged; len(refs) > 0 {
		send(stmtAcknowledged, wire.Params(deliveries.RefArgs(refs))...)
	}
	if refs := settlement.Remove; len(refs) > 0 {
		send(remove, wire.Params(deliveries.RefArgs(refs))...)
	}
	if entries := settlement.Put; len(entries) > 0 {
		send(stmtPut, wire.Params(deliveries.Args(entries, s.conn.PgConn().ParameterStatus("server_encoding"), s.options.Owner, s.options.Lease))...)
		if args := deliveries.ReportArgs(entries); args != nil {
			send(stmtReport, wire.Params(args)...)
		}
	}
	if ids := settlement.finished(); len(ids) > 0 {
		args := s.byID(wire.AppendInt8Array(nil, ids), ids)
		send(stmtLock, args...)
		if s.options.Delete {
			send(stmtForget, args...)
		}
		send(stmtFinish, args...)
	}
}
