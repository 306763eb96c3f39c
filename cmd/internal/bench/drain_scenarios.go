package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/tail"
)

// scenario is a backlog that the relay drains, in turns with the others.
type scenario struct {
	name string
	load load
}

// scenarios returns the backlogs to drain: of each mode one, or two that the options compare.
func (d *drain) scenarios() (all []scenario) {
	modes := d.want.Mode.tables()
	for _, mode := range modes {
		of := d.compared(d.load(mode, 0))
		for _, s := range of {
			switch {
			case len(modes) > 1 && len(of) > 1:
				s.name = string(mode) + ", " + s.name
			case len(modes) > 1:
				s.name = string(mode)
			}
			all = append(all, s)
		}
	}
	return all
}

// compared returns the plain backlog, and the one that the options compare with it.
func (d *drain) compared(plain load) []scenario {
	with := plain
	switch {
	case d.want.ExactlyOnce:
		with.exact = true
		return []scenario{{"at least once", plain}, {"exactly once", with}}
	case d.want.BlockedKeys > 0:
		return []scenario{{"none blocked", plain}, {"blocked", d.load(plain.mode, d.want.BlockedKeys)}}
	case d.want.Urgent > 0:
		plain.urgent = d.want.Urgent
		with.urgent = d.want.Urgent
		with.priority = 100
		return []scenario{{"same priority", plain}, {"urgent first", with}}
	case d.want.Partitions > 0:
		with.partitions = d.want.Partitions
		return []scenario{{"plain table", plain}, {strconv.Itoa(with.partitions) + " partitions", with}}
	case d.want.Destinations > 1:
		with.copies = d.want.Destinations
		return []scenario{{"1 destination", plain}, {strconv.Itoa(with.copies) + " destinations", with}}
	case d.want.Shards > 1:
		with.shards = d.want.Shards
		return []scenario{{"1 shard", plain}, {strconv.Itoa(with.shards) + " shards", with}}
	default:
		return []scenario{{"relay", plain}}
	}
}

// writeAhead writes an event in a transaction that stays open, if the load has one.
func (d *drain) writeAhead(ctx context.Context, schema string, l load) (err error) {
	if l.ahead == 0 {
		return nil
	}
	if d.ahead == nil { // it ends before the schema is dropped: the DROP would wait for it
		d.Cleanup(func(ctx context.Context) error { d.release(ctx); return nil })
	}
	d.ahead, err = d.transactions(ctx, "BEGIN; INSERT INTO "+table(schema)+" (event_type, payload) VALUES ('"+routeType(0)+"', '1')")
	return err
}

// release ends the transaction of writeAhead.
func (d *drain) release(ctx context.Context) {
	d.ahead.close(ctx)
	d.ahead = writers{}
}

// readAlone reads a backlog as the relay does, on one connection, and discards the rows.
func (d *drain) readAlone(ctx context.Context, schema string, l load) (result drained, err error) {
	began := time.Now()
	connector := &store.Connector{Config: d.Pool.Config().ConnConfig, Schema: schema}
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
		n += b.Seen
		more = b.Full
		if !more && n != l.total()-l.held() {
			return result, fmt.Errorf("%d events were read, want %d", n, l.total()-l.held())
		}
	}
	result.took = time.Since(began)
	return result, nil
}

// errUnblocked is returned when an event of a blocked aggregate was touched.
var errUnblocked = errors.New("events of blocked aggregates are not as they were")

// left counts the unsettled events that should be settled. It returns an error unless the events of blocked aggregates
// are as expected: failed ones unchanged, all others waiting for them, and nothing else stored.
func (d *drain) left(ctx context.Context, schema string, l load) (int64, error) {
	left, err := d.unsettled(ctx, schema, l.mode)
	if err != nil {
		return 0, err
	}
	var deferred, waiting, parked, stored int
	err = d.Pool.QueryRow(ctx, l.fill(schema, `SELECT
		(SELECT count(*) FROM $table WHERE state = 'deferred'),
		count(*) FILTER (WHERE e.id <= $blocked AND d.state = 'retry' AND d.attempts = 1 AND d.available_at > now()),
		count(*) FILTER (WHERE e.id > $blocked AND d.state = 'parked' AND d.attempts = 0),
		(SELECT count(*) FROM $deliveries)
		FROM $table AS e JOIN $deliveries AS d ON d.event_id = e.id AND d.ordering_key = e.aggregate_type || '/' || e.aggregate_id
		WHERE e.aggregate_id LIKE 'blocked-%'`)).Scan(&deferred, &waiting, &parked, &stored)
	if err != nil {
		return 0, err
	}

	left += int64(deferred) // only a queue marks events
	behind := l.stored() - l.blocked
	if waiting != l.blocked || parked != behind || stored != l.stored() {
		return left, fmt.Errorf("%w: %d wait for another attempt, %d behind them, and %d rows are stored, where there should be %d, %d and %d",
			errUnblocked, waiting, parked, stored, l.blocked, behind, l.stored())
	}
	return left, nil
}
