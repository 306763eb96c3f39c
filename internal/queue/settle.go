package queue

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/wire"
)

// The conditions on state make every statement harmless to repeat: after a COMMIT without a reply,
// any relay may write the settlement again.
const (
	sqlDone   = `UPDATE outbox_events SET state = 'done', processed_at = clock_timestamp() WHERE id = ANY($1::bigint[]) AND state = 'fresh'`
	sqlDelete = `DELETE FROM outbox_events WHERE id = ANY($1::bigint[]) AND state = 'fresh'`
	sqlDefer  = `UPDATE outbox_events SET state = 'deferred' WHERE id = ANY($1::bigint[]) AND state = 'fresh'`
)

// sqlPut writes the remaining deliveries. Times are those of the database, so that the clocks of
// relays do not matter.
const sqlPut = `INSERT INTO outbox_deliveries AS d
	(event_id, destination, event_type, state, attempts, available_at, error_class, last_error, lease_token, lease_owner, lease_until)
SELECT p.event_id, p.destination, p.event_type, p.state, p.attempts,
	clock_timestamp() + p.delay * interval '1 microsecond',
	nullif(p.error_class, ''), nullif(p.last_error, ''),
	CASE p.state WHEN 'running' THEN p.token END,
	CASE p.state WHEN 'running' THEN $10::bigint END,
	CASE p.state WHEN 'running' THEN clock_timestamp() + $11::bigint * interval '1 microsecond' END
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::bigint[])
	AS p(event_id, destination, event_type, state, attempts, delay, error_class, last_error, token)
ON CONFLICT (event_id, destination) DO UPDATE SET
	state = excluded.state, attempts = excluded.attempts, available_at = excluded.available_at,
	error_class = coalesce(excluded.error_class, d.error_class), last_error = coalesce(excluded.last_error, d.last_error),
	lease_token = excluded.lease_token, lease_owner = excluded.lease_owner, lease_until = excluded.lease_until,
	updated_at = clock_timestamp()`

// visible is the condition of everything that ends a delivery: its event is in the table. Were the
// delivery of an event ended while its partition is detached, the event would come back as deferred,
// and without a delivery, for ever. A delivery that is not ended loses its lease, waits as missing,
// and is made again. It is a subquery that PostgreSQL cannot make a join over all events of.
const visible = `(SELECT true FROM outbox_events AS v WHERE v.id = d.event_id)`

const sqlRemove = `DELETE FROM outbox_deliveries AS d USING unnest($1::bigint[], $2::text[]) AS p(event_id, destination)
WHERE d.event_id = p.event_id AND d.destination = p.destination AND ` + visible

// Two relays may settle the last two destinations of one event at the same moment, and neither sees
// the other's row go. So each relay that has settled a delivery locks the event, in the order of
// ids against deadlocks, and checks for remaining deliveries with a statement, and so a snapshot,
// of its own. Delivery rows are always locked before event rows.
const (
	sqlLock   = `SELECT FROM outbox_events WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE`
	sqlFinish = `UPDATE outbox_events AS e SET state = 'done', processed_at = clock_timestamp()
WHERE e.id = ANY($1::bigint[]) AND e.state = 'deferred'
AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = e.id AND d.state <> 'dead')`
	sqlForget = `DELETE FROM outbox_events AS e WHERE e.id = ANY($1::bigint[]) AND e.state = 'deferred'
AND NOT EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = e.id)`
)

func settleStatements() map[string]string {
	return map[string]string{
		stmtDone: sqlDone, stmtDelete: sqlDelete, stmtBury: sqlDone, stmtDefer: sqlDefer, stmtPut: sqlPut,
		stmtAcknowledged: deliveries.SQLAcknowledged, stmtRemove: sqlRemove, stmtLock: sqlLock, stmtFinish: sqlFinish, stmtForget: sqlForget,
	}
}

// Settle implements [Claimer]: all statements and the COMMIT leave in one flight.
func (s *Session) Settle(ctx context.Context, settlement *Settlement) error {
	if s.conn == nil || s.conn.IsClosed() {
		// The claim is gone with its connection. The deliveries are still recorded, in a
		// transaction of their own.
		return s.salvage(ctx, settlement)
	}
	err := s.settle(ctx, settlement)
	if s.refused = err != nil && !store.IsDown(err); err != nil {
		return s.abandon(ctx, "settle", err)
	}
	return nil
}

// salvage records acknowledged deliveries after the claim was lost. Failures are not recorded:
// their rows are free and will be claimed again. So after a settlement that was refused, salvage
// fails as long as the whole of it would be refused: until then each attempt would be in vain.
func (s *Session) salvage(ctx context.Context, settlement *Settlement) error {
	rest := &Settlement{Done: settlement.Done, Remove: settlement.Remove, Acknowledged: settlement.Acknowledged}
	if len(settlement.Put) > 0 {
		// An entry of Remove may belong to a delivery that Put has split up: both or neither.
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
			s.queueSettlement(send, rest)
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

// rehearse finds out whether the database would accept a settlement, and changes nothing.
func (s *Session) rehearse(ctx context.Context, settlement *Settlement) error {
	return s.send(ctx, func(send func(name string, args ...[]byte)) {
		send(stmtBegin)
		s.queueSettlement(send, settlement)
		send(stmtImmediate)
		send(stmtRollback)
	})
}

// settle writes the settlement and commits.
func (s *Session) settle(ctx context.Context, settlement *Settlement) error {
	return s.send(ctx, func(send func(name string, args ...[]byte)) {
		s.queueSettlement(send, settlement)
		send(stmtCommit)
	})
}

// send sends statements in one flight, and returns when all are answered.
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

func (s *Session) queueSettlement(send func(name string, args ...[]byte), settlement *Settlement) {
	if ids := settlement.Done; len(ids) > 0 {
		s.params = wire.AppendInt8Array(s.params[:0], ids)
		if s.options.Delete {
			send(stmtDelete, s.byID(s.params, ids)...)
		} else {
			send(stmtDone, s.byID(s.params, ids)...)
		}
	}
	if ids := settlement.Buried; len(ids) > 0 {
		send(stmtBury, s.byID(wire.AppendInt8Array(nil, ids), ids)...)
	}
	if ids := settlement.Deferred; len(ids) > 0 {
		send(stmtDefer, s.byID(wire.AppendInt8Array(nil, ids), ids)...)
	}
	if len(settlement.Acknowledged) > 0 {
		ids, names := splitRefs(settlement.Acknowledged)
		send(stmtAcknowledged, wire.AppendInt8Array(nil, ids), wire.TextArray(names))
	}
	if len(settlement.Remove) > 0 {
		ids, names := splitRefs(settlement.Remove)
		send(stmtRemove, wire.AppendInt8Array(nil, ids), wire.TextArray(names))
	}
	if len(settlement.Put) > 0 {
		send(stmtPut, append(entryParams(settlement.Put, s.conn.PgConn().ParameterStatus("server_encoding")), wire.Int8(s.options.Owner), wire.Int8(s.options.Lease.Microseconds()))...)
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

func splitRefs(refs []Ref) (ids []int64, names []string) {
	for _, r := range refs {
		ids, names = append(ids, r.EventID), append(names, r.Destination)
	}
	return ids, names
}

// entryParams encodes the first nine parameters of sqlPut. encoding is that of the database.
func entryParams(entries []Entry, encoding string) [][]byte {
	n := len(entries)
	ids, attempts, delays, tokens := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	names, types, states, classes, texts := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	for i, e := range entries {
		ids[i], attempts[i], delays[i], tokens[i] = e.EventID, int64(e.Failures), delayMicroseconds(e.Delay), e.Token
		names[i], types[i], states[i], classes[i], texts[i] = e.Destination, e.EventType, string(e.State), e.Class, wire.ErrorText(e.Err, encoding)
	}
	return [][]byte{
		wire.AppendInt8Array(nil, ids), wire.TextArray(names), wire.TextArray(types), wire.TextArray(states),
		wire.AppendInt8Array(nil, attempts), wire.AppendInt8Array(nil, delays), wire.TextArray(classes), wire.TextArray(texts),
		wire.AppendInt8Array(nil, tokens),
	}
}

// maxDelay keeps now plus a delay within PostgreSQL's range, and any event within a person's
// lifetime.
const maxDelay = 100 * 365 * 24 * time.Hour

func delayMicroseconds(d time.Duration) int64 { return min(d, maxDelay).Microseconds() }
