package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/internal/cli"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/observe"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// checkStream looks for the conditions under which events of a stream could be
// missed or repeated, and which a relay refuses.
func checkStream(ctx context.Context, e *exam) (string, []Finding, error) {
	err := pgschema.CheckStream(ctx, e.conn, e.Schema)
	if err == nil {
		return "Ids are assigned one by one, and no position is ahead of them.", nil, nil
	}

	if !errors.Is(err, outboxsql.ErrStream) {
		return "", nil, err
	}

	var findings []Finding
	for text := range strings.SplitSeq(strings.TrimPrefix(err.Error(), outboxsql.ErrStream.Error()+": "), "; ") {
		cure := "fix the cause named in the finding"
		if i := strings.LastIndex(text, ": "); i >= 0 {
			cure = text[i+2:]
			text = text[:i]
		}

		findings = append(findings, found(Error, cure, "No relay reads outbox_events: %s.", oneLine(text)))
	}

	return "", findings, nil
}

// place names a position.
func place(p *observe.Position) string {
	if p.Destination == "" {
		return "the unrouted scanner"
	}
	return "the destination " + p.Name()
}

// checkUnits checks whether each position has a relay that moves it, and a destination.
func checkShards(ctx context.Context, e *exam) (string, []Finding, error) {
	b, err := e.backlog(ctx)
	if err != nil {
		return "", nil, err
	}

	relays, err := e.relays(ctx)
	if err != nil {
		return "", nil, err
	}

	var findings []Finding
	for i := range b.Positions {
		p := &b.Positions[i]
		if p.OtherRelays > 0 && p.Shard == 0 {
			findings = append(findings, found(Warning, "reload or stop the relays whose configuration is the former "+
				"one: notifyd status says since when each has its own",
				"Relays wait for the destination %s: %d. They are configured with another number of shards, or with "+
					"other routes, than those that deliver to it.", p.Destination, p.OtherRelays))
		}

		switch {
		case p.Session != nil:
		case !e.configured(p.Destination):
			findings = append(findings, found(Warning, fmt.Sprintf("put it back, or notifyd positions forget %q", p.Destination),
				"The configuration has no destination %s, no relay has it, and its position keeps the events above %d "+
					"from being purged.", p.Destination, p.Lowest))
		case len(relays) > 0: // otherwise the check of relays reports it
			findings = append(findings, found(Error, "notifyd run, with a configuration that has it, and no other; or restart the relays",
				"Relays run, and none of them owns the shard of %s: nothing is delivered from there.", place(p)))
		}
	}

	return fmt.Sprintf("Positions: %d. Relays: %d.", len(b.Positions), len(relays)), findings, nil
}

// configured reports whether the destination may exist. The search for types
// without a route always exists.
func (e *exam) configured(name string) bool {
	return e.Route == nil || name == "" || slices.ContainsFunc(e.Destinations, func(d Destination) bool { return d.Name == name })
}

// checkPositions looks for a position that stands still while an event waits for it.
func checkPositions(ctx context.Context, e *exam) (string, []Finding, error) {
	b, err := e.backlog(ctx)
	if err != nil {
		return "", nil, err
	}

	var findings []Finding
	var most int64
	for i := range b.Positions {
		p := &b.Positions[i]
		most = max(most, p.Lag)

		if p.Ranges > observe.ManyRanges {
			findings = append(findings, found(Warning, p.RangesCure(), "%s", p.RangesText(place(p))))
		}

		if p.Unhanded {
			findings = append(findings, found(Note, "wait; if it lasts, end what keeps the relay of the search from "+
				"reading, or attach the detached partition",
				"%s waits for the events that had no route before, until the unrouted scanner has read as far.", p.Name()))
		}

		still := b.At.Sub(p.UpdatedAt)
		isFree := p.Session == nil || p.Oldest == nil
		if isFree || p.Oldest.Age <= e.Limits.Frozen.Seconds() || still <= e.Limits.Frozen {
			continue
		}

		cure := fmt.Sprintf("notifyd status shows whether the destination is down or paused; if it is neither, "+
			"restart that relay (session %v)", p.Session)
		isTotal := slices.ContainsFunc(e.Destinations, func(d Destination) bool { return d.Name == p.Destination && d.Total })
		if isTotal {
			cure = "end the open transaction that the check gaps names, because order: total waits for it; without one, " + cure
		}

		findings = append(findings, found(Warning, cure,
			"The position of %s has not moved for %v, with %d ids to go, and the event %d waits.",
			place(p), cli.Age(still), p.Lag, p.Oldest.EventID))
	}

	return fmt.Sprintf("No position stands still. The largest lag, in ids: %d.", most), findings, nil
}

// checkWriters checks whether ids are in commit order if a destination has total order.
func checkWriters(ctx context.Context, e *exam) (string, []Finding, error) {
	state, err := outboxsql.ReadState(ctx, e.conn, e.Schema)
	if err != nil {
		return "", nil, err
	}

	if state.Serialized {
		return "Writers are serialized: ids are in the order of commits, except those that writers chose or inserted " +
			"into a partition by its name.", nil, nil
	}

	var total []string
	for _, d := range e.Destinations {
		if d.Total {
			total = append(total, d.Name)
		}
	}

	if len(total) == 0 {
		return "Writers write side by side.", nil, nil
	}

	return "", []Finding{found(Note, "insert events in the last statement of a transaction; or notifyd migrate "+
		"--serialize-writers on, if events must come in the order of commits: each transaction then holds up other "+
		"writers from its first event to its end",
		"%s: order: total delivers in the order of ids, and writers write side by side: of two transactions that "+
			"overlap, the first to insert comes first, and the events of the other wait until the first has ended.",
		strings.Join(total, ", "))}, nil
}

// sqlHolders finds the open transactions that have drawn an id: they hold the
// lock that nextval takes on the sequence. A prepared transaction has no process;
// the lock on its own number identifies it.
const sqlHolders = `SELECT coalesce(l.pid, 0), coalesce(a.usename, x.owner, '')::text, coalesce(a.application_name, ''),
		coalesce(a.state, ''), coalesce(a.query, ''),
		coalesce(x.gid, ''), extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, x.prepared))::float8
	FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
		LEFT JOIN pg_locks AS t ON l.pid IS NULL AND t.pid IS NULL AND t.virtualtransaction = l.virtualtransaction
			AND t.locktype = 'transactionid' AND t.mode = 'ExclusiveLock'
		LEFT JOIN pg_prepared_xacts AS x ON x.transaction = t.transactionid
	WHERE l.locktype = 'relation' AND l.relation = to_regclass(pg_get_serial_sequence($1, 'id'))
		AND l.mode = 'RowExclusiveLock' AND l.granted
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND coalesce(a.xact_start, x.prepared) < clock_timestamp() - $2::bigint * interval '1 microsecond'
	ORDER BY 7 DESC LIMIT 10`

// checkGaps looks for transactions that have ids and do not end.
func checkGaps(ctx context.Context, e *exam) (string, []Finding, error) {
	type holder struct {
		PID                                      int32
		User, Application, State, Text, Prepared string
		Seconds                                  float64
	}

	all, err := rows[holder](ctx, e.conn, sqlHolders, e.table("outbox_events"), e.Limits.Gap.Microseconds())
	if err != nil {
		return "", nil, err
	}

	var findings []Finding
	for _, h := range all {
		who := fmt.Sprintf("pid %d, user %s, application %q, %s: %s", h.PID, h.User, h.Application, h.State, shorten(h.Text))
		cure := fmt.Sprintf("let it commit, or SELECT pg_terminate_backend(%d)", h.PID)
		if h.Prepared != "" {
			who = fmt.Sprintf("prepared as %q by %s", h.Prepared, h.User)
			cure = fmt.Sprintf("COMMIT PREPARED or ROLLBACK PREPARED '%s'", strings.ReplaceAll(h.Prepared, "'", "''"))
		}

		findings = append(findings, found(Warning, cure,
			"A transaction with ids of events has been open for %v: the ids stay open at every position, and nothing "+
				"above them is purged, or delivered to a destination with order: total. The transaction is %s.",
			seconds(h.Seconds), who))
	}

	return fmt.Sprintf("No transaction has had ids of events for more than %v.", e.Limits.Gap), findings, nil
}
