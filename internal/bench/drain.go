package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/dispatch"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// DrainOptions of [Drain].
type DrainOptions struct {
	Options
	// Events is the size of the backlog, Payload that of an event in bytes.
	Events  int
	Payload int
	// Delete deletes delivered events instead of keeping them.
	Delete bool
	// Batch is the largest claim and Workers the number of claims in flight,
	// each with a connection; 0 is the relay's default.
	Batch   int
	Workers int
	// To is one of [Sinks]; "" is "noop".
	To string
	// Brokers are those of Kafka; a private one is started if there are none.
	// Topics is how many topics the events are spread over, at least 1.
	Brokers []string
	Topics  int
	// AMQPURL is that of RabbitMQ; a private one is started if there is none.
	// QueueType is classic or quorum; "" is classic.
	AMQPURL   string
	QueueType string
	// HeldSnapshot keeps a transaction open that could still see all of the
	// backlog, so that nothing of it can be cleaned up.
	HeldSnapshot bool
	// Partitions has the relay drain a table with so many partitions, and beside
	// it, in place of SQL alone, a plain one; 0 is a plain table and SQL alone. The
	// events are in the oldest partition, where looking for more finds it hardest.
	Partitions int
}

// DrainResult is what came of it.
type DrainResult struct {
	EventsPerSecond  float64 `json:"events_per_second"`
	SQLPerSecond     float64 `json:"sql_per_second"`
	PlainPerSecond   float64 `json:"plain_per_second,omitempty"` // with Partitions, in place of SQLPerSecond
	Ratio            float64 `json:"ratio"`
	Lost             int64   `json:"lost"`
	Duplicates       int64   `json:"duplicates"`
	WALBytesPerEvent float64 `json:"wal_bytes_per_event"`
	PeakRSSMiB       float64 `json:"peak_rss_mib"`
	// CPU seconds per million events, where there is a sink and the servers are
	// private.
	PostgresCPU float64 `json:"postgres_cpu_s_per_million,omitempty"`
	SinkCPU     float64 `json:"sink_cpu_s_per_million,omitempty"`
	RelayCPU    float64 `json:"relay_cpu_s_per_million,omitempty"`
}

// OK reports whether all went as it should. Duplicates are allowed, and there
// should be none without a fault.
func (r DrainResult) OK() bool { return r.Lost == 0 }

type drain struct {
	*env
	want  DrainOptions
	place *place
}

// drained is what one of the two was measured at.
type drained struct {
	took       time.Duration
	wal        float64 // bytes
	rss        int64   // bytes
	rssHow     string
	cpu        split
	lost       int64
	duplicates int64
}

// Drain measures how fast a relay works off a backlog, with a handler that does
// nothing or into a sink, and in the same run how fast the same statements are
// without it.
func Drain(ctx context.Context, o DrainOptions) (DrainResult, error) {
	if o.Events < 1 {
		return DrainResult{}, fmt.Errorf("events must be at least 1, not %d", o.Events)
	}
	if o.Batch == 0 {
		o.Batch = dispatch.DefaultConfig().Batch
	}
	if o.Workers == 0 {
		o.Workers = dispatch.DefaultConfig().Claims
	}
	if o.To == "" {
		o.To = "noop"
	}
	if o.Partitions < 0 || o.Partitions > 0 && o.To != "noop" {
		return DrainResult{}, fmt.Errorf("%d partitions into %s: partitions are compared with a plain table into noop only", o.Partitions, o.To)
	}
	o.Topics = max(o.Topics, 1)
	var result DrainResult
	err := within(ctx, o.Options, func(ctx context.Context, e *env) (err error) {
		result, err = (&drain{env: e, want: o}).run(ctx)
		return err
	})
	return result, err
}

func (d *drain) run(ctx context.Context) (DrainResult, error) {
	if d.want.HeldSnapshot {
		release, err := d.holdSnapshot(ctx)
		if err != nil {
			return DrainResult{}, err
		}
		defer release()
	}
	other, with := "sql", d.bare
	if d.want.Partitions > 0 {
		other, with = "plain", d.relay
		if err := d.openSink(ctx); err != nil {
			return DrainResult{}, err
		}
	}
	bare, err := d.measure(ctx, other, with)
	if err != nil {
		return DrainResult{}, fmt.Errorf("drain for comparison: %w", err)
	}
	if d.want.Partitions == 0 {
		if err := d.openSink(ctx); err != nil {
			return DrainResult{}, err
		}
	}
	relay, err := d.measure(ctx, "relay", d.relay)
	if err != nil {
		return DrainResult{}, fmt.Errorf("drain by the relay: %w", err)
	}
	if err := d.recount(ctx, &relay); err != nil {
		return DrainResult{}, err
	}
	return d.report(relay, bare), nil
}

// holdSnapshot opens a transaction that sees the tables as they are now.
func (d *drain) holdSnapshot(ctx context.Context) (release func(), err error) {
	conn, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	// The first statement takes the snapshot.
	if _, err = conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_snapshot()"); err != nil {
		closeAll(ctx, []*pgx.Conn{conn})
		return nil, fmt.Errorf("hold a snapshot: %w", err)
	}
	return func() { closeAll(ctx, []*pgx.Conn{conn}) }, nil
}

// measure makes a backlog in a schema of its own and times its drain. Profiles
// tell the two drains apart by the label "drain".
func (d *drain) measure(ctx context.Context, name string, work func(context.Context, string) (drained, error)) (result drained, err error) {
	schema, err := d.backlog(ctx, name)
	if err != nil {
		return drained{}, err
	}
	debug.FreeOSMemory()
	how, err := resetPeak()
	if err != nil {
		return drained{}, err
	}
	var from, to string
	if err := d.pool.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&from); err != nil {
		return drained{}, err
	}
	cpu, err := d.used(ctx)
	if err != nil {
		return drained{}, err
	}
	pprof.Do(ctx, pprof.Labels("drain", name), func(ctx context.Context) { result, err = work(ctx, schema) })
	if err != nil {
		return drained{}, err
	}
	now, err := d.used(ctx)
	if err != nil {
		return drained{}, err
	}
	result.cpu = now.since(cpu)
	if result.rss, err = peak(); err != nil {
		return drained{}, err
	}
	result.rssHow = how
	if err := d.pool.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&to); err != nil {
		return drained{}, err
	}
	if err := d.pool.QueryRow(ctx, "SELECT ($1::pg_lsn - $2::pg_lsn)::float8", to, from).Scan(&result.wal); err != nil {
		return drained{}, err
	}
	var left int64
	err = d.pool.QueryRow(ctx, "SELECT count(*) FROM "+table(schema)+" WHERE state <> 'done'").Scan(&left)
	result.lost = max(result.lost, left)
	return result, err
}

// backlog makes a table and fills it. It is never vacuumed nor analysed: no
// autovacuum shall fall into one drain and not into the other.
func (d *drain) backlog(ctx context.Context, name string) (schema string, err error) {
	if schema, err = d.migrate(ctx, name, outboxsql.BellAuto); err != nil {
		return "", err
	}
	routes := 1
	if d.place != nil {
		routes = len(d.place.handlers)
	}
	defer d.progress("inserting "+number(float64(d.want.Events))+" events", 0, nil)()
	quiet := "ALTER TABLE " + table(schema) + " SET (autovacuum_enabled = off)"
	if d.want.Partitions > 0 && name == "relay" {
		if quiet, err = d.partition(ctx, schema); err != nil {
			return "", err
		}
	}
	for _, sql := range []string{
		quiet,
		"INSERT INTO " + table(schema) + " (event_type, payload) SELECT '" + eventType + ".' || i % " + strconv.Itoa(routes) + ", '" + payload(d.want.Payload) +
			"' FROM generate_series(1, " + strconv.Itoa(d.want.Events) + ") i",
		"CHECKPOINT",
	} {
		if _, err := d.pool.Exec(ctx, sql); err != nil {
			return "", fmt.Errorf("make the backlog: %w", err)
		}
	}
	return schema, nil
}

// partition makes the partitions, and returns what keeps autovacuum from them.
func (d *drain) partition(ctx context.Context, schema string) (quiet string, err error) {
	err = d.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		return outboxsql.Partition(ctx, c.Conn(), schema, outboxsql.PartitionOptions{})
	})
	if err != nil {
		return "", err
	}
	if _, err := d.pool.Exec(ctx, "SELECT "+pgx.Identifier{schema}.Sanitize()+".outbox_partitions_extend(now(), $1)", d.want.Partitions-1); err != nil {
		return "", fmt.Errorf("make partitions: %w", err)
	}
	err = d.pool.QueryRow(ctx, `SELECT string_agg(format('ALTER TABLE %s SET (autovacuum_enabled = off)', inhrelid::regclass), '; ')
		FROM pg_inherits WHERE inhparent = to_regclass($1)`, table(schema)).Scan(&quiet)
	return quiet, err
}

// relay drains by a relay, from its start until it has stopped: everything is
// settled then.
func (d *drain) relay(ctx context.Context, schema string) (result drained, err error) {
	keep := 7 * 24 * time.Hour
	if d.want.Delete {
		keep = 0
	}
	seen := newSightings(d.want.Events)
	relay, err := notifyd.New(d.pool, notifyd.WithSchema(schema), notifyd.WithLogger(d.Log), notifyd.WithRetention(keep, 1000),
		notifyd.WithClaims(d.want.Workers), notifyd.WithClaimBatch(d.want.Batch))
	if err != nil {
		return result, err
	}
	if err := d.register(relay, seen); err != nil {
		return result, err
	}
	defer d.progress("the relay drains", int64(d.want.Events), seen.distinct.Load)()
	began := time.Now()
	r := start(ctx, relay.Run)
	err = errors.Join(seen.wait(ctx, r), r.stop())
	result.took = time.Since(began)
	result.lost, result.duplicates = seen.missing(), seen.duplicates.Load()+seen.unknown.Load()
	return result, err
}

// wait waits until every event was handled, or for as long as some are.
func (s *sightings) wait(ctx context.Context, r *running) error {
	tick := time.NewTicker(settleWithin)
	defer tick.Stop()
	for last := int64(-1); ; {
		select {
		case <-s.all:
			return nil
		case err := <-r.ended:
			r.ended <- nil // for stop
			return errors.Join(errEndedEarly, err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			now := s.distinct.Load()
			if now == last {
				return nil // what is missing is counted
			}
			last = now
		}
	}
}

func (d *drain) report(relay, bare drained) DrainResult {
	n := float64(d.want.Events)
	r := DrainResult{
		EventsPerSecond: round(n/relay.took.Seconds(), 0), SQLPerSecond: round(n/bare.took.Seconds(), 0),
		Lost: relay.lost, Duplicates: relay.duplicates,
		WALBytesPerEvent: round(relay.wal/n, 1), PeakRSSMiB: round(float64(relay.rss)/(1<<20), 1),
	}
	r.Ratio = round(ratio(r.EventsPerSecond, r.SQLPerSecond), 3)
	fate, held := "kept", ""
	if d.want.Delete {
		fate = "deleted"
	}
	if d.want.HeldSnapshot {
		held = ", while an older snapshot is held"
	}
	d.printf("%s events of %d B, then %s%s; %d claims of up to %d events in flight\n", number(n), d.want.Payload, fate, held, d.want.Workers, d.want.Batch)
	d.printf("delivered to %s\n", d.place.note)
	d.printf("inserted in one go and followed by a checkpoint, neither vacuumed nor analysed, autovacuum off for these tables\n\n")
	columns := []string{"", "relay", "SQL alone"}
	if d.want.Partitions > 0 {
		columns = []string{"", strconv.Itoa(d.want.Partitions) + " partitions", "plain table"}
		r.PlainPerSecond, r.SQLPerSecond = r.SQLPerSecond, 0
	}
	g := newTable(d.Out, columns...)
	g.row("events per second", number(r.EventsPerSecond), number(max(r.SQLPerSecond, r.PlainPerSecond)))
	g.row("seconds", fmt.Sprintf("%.2f", relay.took.Seconds()), fmt.Sprintf("%.2f", bare.took.Seconds()))
	g.row("WAL bytes per event", fmt.Sprintf("%.0f", relay.wal/n), fmt.Sprintf("%.0f", bare.wal/n))
	g.row("CPU of this process, us/event", fmt.Sprintf("%.2f", perEvent(relay.cpu.relay, n)), fmt.Sprintf("%.2f", perEvent(bare.cpu.relay, n)))
	if d.DatabaseURL == "" {
		g.row("CPU of PostgreSQL, us/event", fmt.Sprintf("%.2f", perEvent(relay.cpu.postgres, n)), fmt.Sprintf("%.2f", perEvent(bare.cpu.postgres, n)))
	}
	if d.place.pid != 0 {
		g.row("CPU of "+d.want.To+", us/event", fmt.Sprintf("%.2f", perEvent(relay.cpu.sink, n)), "-")
		r.PostgresCPU, r.SinkCPU, r.RelayCPU = round(perEvent(relay.cpu.postgres, n), 2), round(perEvent(relay.cpu.sink, n), 2), round(perEvent(relay.cpu.relay, n), 2)
	}
	g.row("peak memory, MiB", fmt.Sprintf("%.1f", r.PeakRSSMiB), fmt.Sprintf("%.1f", float64(bare.rss)/(1<<20)))
	d.printf("\nratio=%.3f lost=%d duplicates=%d; memory is %s\n", r.Ratio, r.Lost, r.Duplicates, relay.rssHow)
	return r
}

func perEvent(d time.Duration, n float64) float64 { return float64(d) / float64(time.Microsecond) / n }
