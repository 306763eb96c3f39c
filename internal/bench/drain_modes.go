package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/tail"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// contrast describes a drain that is measured with two loads, in turns.
type contrast struct {
	names [2]string
	loads [2]load
	about string // the difference, printed before "medians of"
	// verdict adds the figures of the comparison to the result, and returns the last lines for people.
	verdict func(r *DrainResult, c contrasted) string
}

// contrasted has the medians of both loads and a line with all rounds. rate is the second load's. ratio is rate divided
// by the first load's rate.
type contrasted struct {
	one, other  drained
	rate, ratio float64
	rounds      string
}

// contrast returns a contrast whose two loads are equal.
func (d *drain) contrast(one, other string) contrast {
	return contrast{names: [2]string{one, other}, loads: [2]load{d.load(0), d.load(0)}}
}

// inTurns drains both loads by the relay, in turns.
func (d *drain) inTurns(ctx context.Context, c contrast) (took [][]drained, found contrasted, err error) {
	took, err = inTurns(ctx, leastRounds, []int{0, 1}, func(ctx context.Context, i int) (drained, error) {
		one, err := d.measure(ctx, c.names[i], c.loads[i], d.relay)
		if err != nil {
			err = fmt.Errorf("drain by the relay, %s: %w", c.names[i], err)
		}
		return one, err
	})
	if err != nil {
		return nil, found, err
	}
	found.one, found.other = middle(took[0]), middle(took[1])
	rate := func(one drained) float64 { return round(float64(d.want.Events)/one.took.Seconds(), 0) }
	found.rate, found.ratio = rate(found.other), round(ratio(rate(found.other), rate(found.one)), 3)
	found.rounds = fmt.Sprintf("rounds, to the first delivery and from there: %s %s; %s %s\n", c.names[0], seconds(took[0]), c.names[1], seconds(took[1]))
	return took, found, nil
}

// compare measures a contrast and prints it.
func (d *drain) compare(ctx context.Context, bare drained, c contrast) (DrainResult, error) {
	took, found, err := d.inTurns(ctx, c)
	if err != nil {
		return DrainResult{}, err
	}
	r := d.result(found.one, bare)
	r.sum(took)
	last := c.verdict(&r, found)
	d.explain()
	d.printf("%smedians of %d rounds, in turns\n\n", c.about, leastRounds)
	d.besideFloor(c.names[:], bare, found.one, found.other)
	d.printf("\n%s\n", last)
	return r, nil
}

// besideQueue drains a queue and a stream in turns.
func (d *drain) besideQueue(ctx context.Context) (DrainResult, error) {
	d.mode = outboxsql.ModeQueue
	bare, err := d.floor(ctx)
	if err != nil {
		return DrainResult{}, err
	}
	if err := d.openSink(ctx); err != nil {
		return DrainResult{}, err
	}
	c := d.contrast("queue", "stream")
	c.loads[1].mode = outboxsql.ModeStream
	_, found, err := d.inTurns(ctx, c)
	if err != nil {
		return DrainResult{}, err
	}
	queue, streamed := found.one, found.other
	r := d.result(queue, bare)
	d.mode = outboxsql.ModeStream
	r = withStream(r, d.result(streamed, drained{}))
	d.explain()
	d.printf("medians of %d rounds, in turns\n\n", leastRounds)
	d.columns([]string{"queue", "SQL alone", "stream", "read alone"}, queue, bare, streamed, *streamed.read)
	d.printf("\n%sstream_ratio=%.3f queue: %s\nstream: %s\nmemory is %s\n", found.rounds, r.StreamRatio, r.verdict(), r.Stream.verdict(), queue.rssHow)
	return r, nil
}

// withStream adds the result of a stream to that of a queue.
func withStream(queue, streamed DrainResult) DrainResult {
	queue.Stream, queue.StreamRatio = &streamed, round(ratio(streamed.EventsPerSecond, queue.EventsPerSecond), 3)
	return queue
}

// besideOne compares the drain to one destination and to several.
func (d *drain) besideOne() contrast {
	c, n := d.contrast("one", strconv.Itoa(d.want.Destinations)), d.want.Destinations
	c.loads[1].copies = n
	c.about = fmt.Sprintf("%d destinations that get each event, beside one; ", n)
	c.verdict = func(r *DrainResult, c contrasted) string {
		r.FannedPerSecond = round(float64(n*d.want.Events)/c.other.took.Seconds(), 0)
		r.FannedCPURatio = round(ratio(c.other.cpu.own().Seconds()/float64(n), c.one.cpu.own().Seconds()), 3)
		return fmt.Sprintf("%s deliveries per second to %d destinations; fanned_cpu_ratio=%.3f (CPU per delivery) %s", number(r.FannedPerSecond), n, r.FannedCPURatio, r.verdict())
	}
	return c
}

// besideShards compares the drain by one relay to a destination with one shard and with several.
func (d *drain) besideShards() contrast {
	c := d.contrast("1 shard", strconv.Itoa(d.want.Shards)+" shards")
	c.loads[1].shards = d.want.Shards
	c.about = fmt.Sprintf("one relay has all %d shards of the destination, beside one shard; ", d.want.Shards)
	c.verdict = func(r *DrainResult, c contrasted) string {
		r.ShardedPerSecond, r.ShardedRatio = c.rate, c.ratio
		r.ShardedCPURatio = round(ratio(c.other.cpu.own().Seconds(), c.one.cpu.own().Seconds()), 3)
		return c.rounds + fmt.Sprintf("sharded_ratio=%.3f sharded_cpu_ratio=%.3f %s", r.ShardedRatio, r.ShardedCPURatio, r.verdict())
	}
	return c
}

// besideExact compares the drain at least once and exactly once.
func (d *drain) besideExact() contrast {
	c := d.contrast("at least", "exactly")
	c.loads[1].exact = true
	c.about = "exactly once, beside at least once; "
	c.verdict = func(r *DrainResult, c contrasted) string {
		r.ExactPerSecond, r.ExactRatio = c.rate, c.ratio
		return c.rounds + fmt.Sprintf("%s events per second exactly once; exact_ratio=%.3f %s", number(r.ExactPerSecond), r.ExactRatio, r.verdict())
	}
	return c
}

// hold opens the transactions that stay open during the whole drain.
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
	// heldSnapshot sees the present state of the tables: the first statement takes the snapshot.
	heldSnapshot = `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_snapshot()`
	// foreignWrite is a transaction with a transaction id, as if it had written.
	foreignWrite = `BEGIN; SELECT pg_current_xact_id()`
)

// transaction begins a transaction on a new connection. Closing the connection ends the transaction.
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
	if d.ahead == nil { // they end before the schema is dropped: the DROP would wait for them
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

// deadRows returns the number of dead rows of a schema. PostgreSQL counts all of them only after the relay's sessions
// have ended.
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
	reader := tail.NewReader(int64(l.stored()), nil, tail.NewWriterScanner())
	q := tail.Query{Limit: d.want.Batch, Bytes: notifyd.Config{}.WithDefaults().BatchBytes}
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
