package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/tail"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// besideQueue drains a queue and a stream in turns, each round beginning with the
// other one.
func (d *drain) besideQueue(ctx context.Context) (DrainResult, error) {
	d.mode = outboxsql.ModeQueue
	bare, err := d.floor(ctx)
	if err != nil {
		return DrainResult{}, err
	}
	if err := d.openSink(ctx); err != nil {
		return DrainResult{}, err
	}
	loads := [2]load{d.load(0), d.load(0)}
	loads[1].mode = outboxsql.ModeStream
	took, err := d.inTurns(ctx, [2]string{"queue", "stream"}, loads)
	if err != nil {
		return DrainResult{}, err
	}
	queue, streamed := middle(took[0]), middle(took[1])
	r := d.result(queue, bare)
	d.mode = outboxsql.ModeStream
	r = beside(r, d.result(streamed, drained{}))
	d.explain()
	d.printf("medians of %d rounds, in turns\n\n", leastRounds)
	d.columns([]string{"queue", "SQL alone", "stream", "read alone"}, queue, bare, streamed, *streamed.read)
	d.printf("\nrounds, to the first delivery and from there: queue %s; stream %s\n", seconds(took[0]), seconds(took[1]))
	d.printf("stream_ratio=%.3f queue: %s\nstream: %s\nmemory is %s\n", r.StreamRatio, r.verdict(), r.Stream.verdict(), queue.rssHow)
	return r, nil
}

// beside puts the result of a stream into that of a queue.
func beside(queue, streamed DrainResult) DrainResult {
	queue.Stream, queue.StreamRatio = &streamed, round(ratio(streamed.EventsPerSecond, queue.EventsPerSecond), 3)
	return queue
}

// besideOne drains to one destination and to several, in turns.
func (d *drain) besideOne(ctx context.Context, bare drained) (DrainResult, error) {
	loads := [2]load{d.load(0), d.load(0)}
	loads[1].copies = d.want.Destinations
	took, err := d.inTurns(ctx, [2]string{"one", "several"}, loads)
	if err != nil {
		return DrainResult{}, err
	}
	one, several := middle(took[0]), middle(took[1])
	r, n := d.result(one, bare), float64(d.want.Destinations)
	r.FannedPerSecond = round(n*float64(d.want.Events)/several.took.Seconds(), 0)
	r.FannedCPURatio = round(ratio(several.cpu.own().Seconds()/n, one.cpu.own().Seconds()), 3)
	r.sum(took)
	d.explain()
	d.printf("%d destinations that get each event, beside one; medians of %d rounds, in turns\n\n", d.want.Destinations, leastRounds)
	d.besideFloor([]string{"one", strconv.Itoa(d.want.Destinations)}, bare, one, several)
	d.printf("\n%s deliveries per second to %d destinations; fanned_cpu_ratio=%.3f (CPU per delivery) %s\n",
		number(r.FannedPerSecond), d.want.Destinations, r.FannedCPURatio, r.verdict())
	return r, nil
}

// besideShards drains by one relay to a destination with one shard and with several, in turns.
func (d *drain) besideShards(ctx context.Context) (DrainResult, error) {
	loads := [2]load{d.load(0), d.load(0)}
	loads[1].shards = d.want.Shards
	took, err := d.inTurns(ctx, [2]string{"one shard", "several shards"}, loads)
	if err != nil {
		return DrainResult{}, err
	}
	one, several := middle(took[0]), middle(took[1])
	r := d.result(one, drained{})
	r.ShardedPerSecond = round(float64(d.want.Events)/several.took.Seconds(), 0)
	r.ShardedRatio = round(ratio(r.ShardedPerSecond, r.EventsPerSecond), 3)
	r.ShardedCPURatio = round(ratio(several.cpu.own().Seconds(), one.cpu.own().Seconds()), 3)
	r.sum(took)
	d.explain()
	d.printf("one relay has all %d shards of the destination, beside one shard; medians of %d rounds, in turns\n\n", d.want.Shards, leastRounds)
	d.besideFloor([]string{"1 shard", strconv.Itoa(d.want.Shards) + " shards"}, drained{}, one, several)
	d.printf("\nrounds, to the first delivery and from there: 1 shard %s; %d shards %s\n", seconds(took[0]), d.want.Shards, seconds(took[1]))
	d.printf("sharded_ratio=%.3f sharded_cpu_ratio=%.3f %s\n", r.ShardedRatio, r.ShardedCPURatio, r.verdict())
	return r, nil
}

// besideExact drains at least once and exactly once, in turns.
func (d *drain) besideExact(ctx context.Context, bare drained) (DrainResult, error) {
	loads := [2]load{d.load(0), d.load(0)}
	loads[1].exact = true
	took, err := d.inTurns(ctx, [2]string{"at least once", "exactly once"}, loads)
	if err != nil {
		return DrainResult{}, err
	}
	least, exact := middle(took[0]), middle(took[1])
	r := d.result(least, bare)
	r.ExactPerSecond = round(float64(d.want.Events)/exact.took.Seconds(), 0)
	r.ExactRatio = round(ratio(r.ExactPerSecond, r.EventsPerSecond), 3)
	r.sum(took)
	d.explain()
	d.printf("exactly once, beside at least once; medians of %d rounds, in turns\n\n", leastRounds)
	d.besideFloor([]string{"at least", "exactly"}, bare, least, exact)
	d.printf("\nrounds, to the first delivery and from there: at least once %s; exactly once %s\n", seconds(took[0]), seconds(took[1]))
	d.printf("%s events per second exactly once; exact_ratio=%.3f %s\n", number(r.ExactPerSecond), r.ExactRatio, r.verdict())
	return r, nil
}

// hold opens the transactions that stay open all the time.
func (d *drain) hold(ctx context.Context) (release func(), err error) {
	var conns []*pgx.Conn
	release = func() { closeAll(ctx, conns) }
	for _, one := range []struct {
		wanted    bool
		statement string
	}{
		{d.want.HeldSnapshot, heldSnapshot},
		{d.want.Foreign == ForeignElsewhere, foreignWrite},
	} {
		if !one.wanted {
			continue
		}
		conn, err := d.transaction(ctx, one.statement)
		if err != nil {
			release()
			return nil, err
		}
		conns = append(conns, conn)
	}
	return release, nil
}

const (
	// heldSnapshot sees the tables as they are now: the first statement takes the snapshot.
	heldSnapshot = `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_snapshot()`
	// foreignWrite is a transaction with a transaction id, as if it had written.
	foreignWrite = `BEGIN; SELECT pg_current_xact_id()`
)

// transaction begins a transaction on a connection of its own; closing that ends it.
func (e *env) transaction(ctx context.Context, statement string) (*pgx.Conn, error) {
	conn, err := e.connect(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, statement); err != nil {
		closeAll(ctx, []*pgx.Conn{conn})
		return nil, fmt.Errorf("hold a transaction: %w", err)
	}
	return conn, nil
}

// writeAhead writes events in transactions that stay open, if the load has any.
func (d *drain) writeAhead(ctx context.Context, schema string, l load) error {
	if l.ahead == 0 {
		return nil
	}
	if d.ahead == nil { // before the schema is dropped: the DROP would wait for these transactions
		d.cleanup = append(d.cleanup, func(ctx context.Context) error { d.release(ctx); return nil })
	}
	for range l.ahead {
		conn, err := d.transaction(ctx, "BEGIN; INSERT INTO "+table(schema)+" (event_type, payload) VALUES ('"+routeType(0)+"', '1')")
		if err != nil {
			return err
		}
		d.ahead = append(d.ahead, conn)
	}
	return nil
}

// release ends the transactions of writeAhead.
func (d *drain) release(ctx context.Context) {
	closeAll(ctx, d.ahead)
	d.ahead = d.ahead[:0]
}

// deadRows returns the number of dead rows of a schema. PostgreSQL has counted all of
// them when the relay's sessions are gone.
func (e *env) deadRows(ctx context.Context, schema string) (n int64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, settleWithin, errors.New("the relay's sessions have not ended"))
	defer cancel()
	for gone := false; !gone; {
		err := e.pool.QueryRow(ctx, `SELECT coalesce(sum(n_dead_tup), 0)::bigint, NOT EXISTS (
				SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%' AND application_name <> $2)
			FROM pg_stat_user_tables, pg_sleep(0.02) WHERE schemaname = $1`, schema, benchName).Scan(&n, &gone)
		if err != nil {
			return 0, errors.Join(fmt.Errorf("count dead rows: %w", err), context.Cause(ctx))
		}
	}
	return n, nil
}

// readAlone reads a backlog as the relay does, on one connection, and discards the rows.
func (d *drain) readAlone(ctx context.Context, schema string, l load) (result drained, err error) {
	began := time.Now()
	connector := &store.Connector{Config: d.pool.Config().ConnConfig, Schema: schema}
	conn, err := connector.Open(ctx, "bench")
	if err != nil {
		return result, err
	}
	defer store.Close(ctx, conn.Conn)
	reader := tail.NewReader(int64(l.stored()), nil, tail.NewWitnesses())
	q := tail.Query{Limit: d.want.Batch, Bytes: engine.DefaultLimits().Bytes}
	for n, more := 0, true; more; {
		b, err := reader.Read(ctx, conn, q)
		if err != nil {
			return result, err
		}
		n, more = n+b.Seen, b.Full
		if !more && n != l.total()-l.before() {
			return result, fmt.Errorf("%d events were read, want %d", n, l.total()-l.before())
		}
	}
	result.took = time.Since(began)
	return result, nil
}
