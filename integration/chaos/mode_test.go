package chaos

import (
	outboxsql "github.com/notifyd/notifyd/sql"
)

// kind is the condition of a fault: the mode of the table, and the load.
type kind struct {
	mode outboxsql.Mode
	load string
}

func (k kind) String() string { return string(k.mode) + "/" + k.load }

// allKinds are the kinds of faults, in the order of the table.
func (f *fault) allKinds() (all []kind) {
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		if f.only == "" || f.only == mode {
			all = append(all, kind{mode, steadyLoad}, kind{mode, backlogLoad})
		}
	}
	return all
}

// kinds are the conditions that are tried. The short form tries a fault in a
// queue under one load, steady and backlog in turn, and in a stream under the
// other; some faults in one mode only, also in turn; and the most obvious ones
// under all conditions.
func (f *fault) kinds(i int, s form) (chosen []kind) {
	if s.long {
		return f.allKinds()
	}
	for _, k := range f.allKinds() {
		inTurn := (k.load == steadyLoad) == ((i%2 == 0) == (k.mode == outboxsql.ModeQueue))
		if f.both || inTurn && (!f.turns || f.only != "" || (i%4 < 2) == (k.mode == outboxsql.ModeQueue)) {
			chosen = append(chosen, k)
		}
	}
	return chosen
}

// sqlDone holds if the destination of a stream has received all events up to the
// id $1: none lies behind its position, is open in it, or is stored.
const sqlDone = `SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = 'all')
	AND NOT EXISTS (SELECT FROM outbox_deliveries WHERE event_id <= $1)
	AND NOT EXISTS (SELECT FROM outbox_positions AS p, outbox_events AS e WHERE p.destination = 'all' AND e.id > p.head AND e.id <= $1)
	AND NOT EXISTS (SELECT FROM outbox_positions AS p, unnest(p.open) AS r, outbox_events AS e
		WHERE p.destination = 'all' AND e.id >= lower(r) AND e.id < upper(r) AND e.id <= $1)`

// done reports whether all events up to an id are delivered and recorded.
func (c *cell) done(last int64) bool {
	if c.mode == outboxsql.ModeStream {
		return c.holds(sqlDone, last)
	}
	return c.holds(`SELECT NOT EXISTS (SELECT FROM outbox_events WHERE id <= $1 AND state <> 'done')`, last)
}

// last is the highest id of an event.
func (c *cell) last() (id int64) {
	c.t.Helper()
	if err := c.pool.QueryRow(c.ctx, `SELECT max(id) FROM outbox_events`).Scan(&id); err != nil {
		c.t.Fatal(err)
	}
	return id
}

// undone is the condition that an event e is not done everywhere.
func (c *cell) undone() string {
	if c.mode == outboxsql.ModeStream {
		return `EXISTS (SELECT FROM outbox_positions AS p WHERE e.id > p.head OR e.id <@ p.open)
			OR EXISTS (SELECT FROM outbox_deliveries AS d WHERE d.event_id = e.id)`
	}
	return `state <> 'done'`
}

// marked is the table in which relays record progress.
func (c *cell) marked() string {
	if c.mode == outboxsql.ModeStream {
		return "outbox_positions"
	}
	return "outbox_events"
}

// taken reports whether every event up to an id has been begun.
func (c *cell) taken(last int64) bool {
	if c.mode == outboxsql.ModeStream {
		return c.holds(`SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = 'all' AND head >= $1)`, last)
	}
	return c.holds(`SELECT NOT EXISTS (SELECT FROM outbox_events WHERE id <= $1 AND state = 'fresh')`, last)
}

// durable returns the number of events that are settled for good, whatever
// happens to the server.
func (c *cell) durable() (n int) {
	c.t.Helper()
	sql := `SELECT count(*) FROM outbox_events WHERE state = 'done'`
	if c.mode == outboxsql.ModeStream {
		sql = `SELECT count(*) FROM outbox_events AS e, outbox_positions AS p WHERE p.destination = 'all' AND e.id <= p.head AND NOT e.id <@ p.open`
	}
	if err := c.pool.QueryRow(c.ctx, sql).Scan(&n); err != nil {
		c.t.Fatal(err)
	}
	// A commit of our own flushes all earlier commits to disk.
	c.exec(`SELECT pg_logical_emit_message(true, 'chaos', 'flush')`)
	return n
}

// inFlight is the number of events that the relays may have delivered and not recorded.
func (c *cell) inFlight() (n int) {
	if c.mode == outboxsql.ModeStream {
		arrivals := c.place.all()
		for _, t := range c.takeovers() {
			n += len(t.exposed(arrivals))
		}
		return n
	}
	if c.broken == 0 { // but the machine may have kept a relay from its claims for too long
		c.broken = c.saying("claim lost")
	}
	return c.broken*claimed + c.unleased*leasedMost + c.volatile
}

// saying returns the number of relays that have logged a message.
func (c *cell) saying(text string) (n int) {
	for _, r := range c.relays {
		if r.log.has(text) {
			n++
		}
	}
	return n
}

// deliverer is the relay that delivered last, which the fault hits: in a queue it
// is at work, and in a stream it owns the destination.
func (c *cell) deliverer() *child {
	c.t.Helper()
	arrivals := c.place.all()
	for _, r := range c.relays {
		if len(arrivals) > 0 && r.cmd.Process.Pid == arrivals[len(arrivals)-1].By {
			return r
		}
	}
	c.t.Fatal("no relay has delivered anything")
	return nil
}
