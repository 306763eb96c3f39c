package stream

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
)

// admitted is what the rate limit of a destination makes of deliveries that are about to be handed over.
type admitted struct {
	all     []dispatch.Delivery // these may go
	unblock []dispatch.Key
	held    []dispatch.Key // aggregates of which a delivery has become a row, to be blocked behind those that go
}

// admit keeps what may not go yet. Where all events count together it is given back, and goes first when there is room.
// Where each key has its own limit it becomes a row that is due when its turn may have come, and what comes behind it in its
// aggregate waits for it, so that other keys go on.
func (g *gate) admit(all []dispatch.Delivery, unblock []dispatch.Key) admitted {
	if len(all) == 0 || !g.lane.Limits().HasRate() {
		return admitted{all: all, unblock: unblock}
	}
	waits := g.lane.Limits().Admit(all)
	if waits == nil {
		return admitted{all: all, unblock: unblock}
	}
	to := admitted{all: all[:0]}
	stays := make(map[dispatch.Key]bool)
	for i := range all {
		d := all[i]
		behind := g.lane.Limits().ByKey() && d.Key != dispatch.Key{} && stays[d.Key]
		if waits[i] == 0 && !behind {
			to.all = append(to.all, d)
			continue
		}
		if !stays[d.Key] && d.Key != (dispatch.Key{}) {
			stays[d.Key] = true
			if g.lane.Limits().ByKey() {
				to.held = append(to.held, d.Key)
			}
		}
		g.holdBack(d, behind, waits[i])
	}
	for _, key := range unblock {
		if !stays[key] {
			to.unblock = append(to.unblock, key)
		}
	}
	return to
}

// holdBack makes a delivery wait for its rate limit, or behind one that does.
func (g *gate) holdBack(d dispatch.Delivery, behind bool, wait time.Duration) { //nolint:revive // which of two it is
	if !g.lane.Limits().ByKey() {
		g.flight.giveBack(d)
		return
	}
	a := dispatch.Answer{Delivery: d, Verdict: dispatch.VerdictParked}
	if !behind {
		a.Verdict, a.Delay, a.Class, a.Err = dispatch.VerdictAside, wait, delivery.ClassDestination, dispatch.ErrLimited
	}
	g.keep(&a)
}

// admit does so for a replay, and returns how many may go. One that has to wait holds up those behind it, and
// nothing that is live. Where each key has its own limit they are asked for one by one: what other keys gave to those behind
// would be lost.
func (s *aside) admit(all []dispatch.Delivery) int {
	if !s.lane.Limits().HasRate() {
		return len(all)
	}
	n := len(all)
	if s.lane.Limits().ByKey() {
		n = 1
	}
	for at := 0; at < len(all); at += n {
		for i, wait := range s.lane.Limits().Admit(all[at : at+n]) {
			if wait > 0 {
				all[at+i].Waited = true // its turn comes, and not always that of the one behind
				s.replay.waitsUntil = time.Now().Add(min(wait, maxPace))
				return at + i
			}
		}
	}
	return len(all)
}

// sqlLatest reads the last row of each line. It has the state and the time of the first one: the line goes on when that
// may.
func sqlLatest(limit int) string {
	return `SELECT ` + rowColumns(limit) + `, true
FROM unnest($2::text[]) WITH ORDINALITY AS w(key, n)
CROSS JOIN LATERAL (SELECT event_id, attempts, replays, ordering_key FROM outbox_deliveries
	WHERE destination = $1 AND ordering_key = w.key AND state IN ('retry', 'parked') ORDER BY event_id DESC LIMIT 1) AS z
CROSS JOIN LATERAL (SELECT z.event_id, z.attempts, z.replays, z.ordering_key, state, available_at FROM outbox_deliveries
	WHERE destination = $1 AND ordering_key = w.key AND state IN ('retry', 'parked') ORDER BY event_id LIMIT 1) AS d
` + rowEvent(limit) + `
ORDER BY w.n`
}

// sqlSupersede deletes the rows of lines before their last ones, which stay.
const sqlSupersede = `DELETE FROM outbox_deliveries AS d USING unnest($2::text[], $3::bigint[]) AS w(key, id)
WHERE d.destination = $1 AND d.ordering_key = w.key AND d.state IN ('retry', 'parked') AND d.event_id < w.id`

// supersede deletes what the last rows of lines supersede, if the lines may go on, before those are handed over. It returns
// the lines of which nothing else is left. A row that the destination does not get any more, or that will be a dead letter,
// supersedes nothing.
func (s *shelf) supersede(ctx context.Context, conn *pgx.Conn, last []stored, write owned) (alone map[string]bool, err error) {
	var names []string
	var ids []int64
	alone = make(map[string]bool)
	for i := range last {
		r := &last[i]
		if _, is := s.held[r.id]; is || r.state == stateRetry && !r.due {
			continue
		}
		if s.filter(r); r.orphan || r.refused != nil {
			continue
		}
		names, ids = append(names, r.key), append(ids, r.id)
		alone[r.key] = true
	}
	if len(names) == 0 {
		return alone, nil
	}
	return alone, write(ctx, conn, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sqlSupersede, s.name, names, ids)
		if err != nil {
			return fmt.Errorf("drop superseded deliveries of %q: %w", s.name, err)
		}
		s.lane.Limits().Superseded(int(tag.RowsAffected()))
		return nil
	})
}
