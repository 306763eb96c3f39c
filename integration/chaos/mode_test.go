package chaos

import (
	outboxsql "github.com/notifyd/notifyd/sql"
)

// kind is what a fault is tried under: how the table is read, and what is written.
type kind struct {
	mode outboxsql.Mode
	load string
}

func (k kind) String() string { return string(k.mode) + "/" + k.load }

// allKinds are those of the fault, in the order of the table.
func (f *fault) allKinds() (all []kind) {
	for _, mode := range []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} {
		if f.only == "" || f.only == mode {
			all = append(all, kind{mode, steadyLoad}, kind{mode, backlogLoad})
		}
	}
	return all
}

// kinds are those that are tried. The short form tries a fault in a queue under one load,
// steady and backlog in turn, and in a stream under the other; some in one mode only, which
// takes turns too; and those that everybody thinks of first in all ways.
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

// sqlDone says that the destination of a stream has everything up to the id $1: nothing
// of it lies behind its position, is open in it, or is stored.
const sqlDone = `SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = 'all')
	AND NOT EXISTS (SELECT FROM outbox_deliveries WHERE event_id <= $1)
	AND NOT EXISTS (SELECT FROM outbox_positions AS p, outbox_events AS e WHERE p.destination = 'all' AND e.id > p.head AND e.id <= $1)
	AND NOT EXISTS (SELECT FROM outbox_positions AS p, unnest(p.open) AS r, outbox_events AS e
		WHERE p.destination = 'all' AND e.id >= lower(r) AND e.id < upper(r) AND e.id <= $1)`

// done reports whether everything up to an id is delivered, and written down.
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

// marked is the table in which relays write what is done.
func (c *cell) marked() string {
	if c.mode == outboxsql.ModeStream {
		return "outbox_positions"
	}
	return "outbox_events"
}

// taken reports whether no event up to an id waits for somebody to begin with it.
func (c *cell) taken(last int64) bool {
	if c.mode == outboxsql.ModeStream {
		return c.holds(`SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = 'all' AND head >= $1)`, last)
	}
	return c.holds(`SELECT NOT EXISTS (SELECT FROM outbox_events WHERE id <= $1 AND state = 'fresh')`, last)
}

// durable returns how many events are settled for good: whatever becomes of the
// server, these are done.
func (c *cell) durable() (n int) {
	c.t.Helper()
	sql := `SELECT count(*) FROM outbox_events WHERE state = 'done'`
	if c.mode == outboxsql.ModeStream {
		sql = `SELECT count(*) FROM outbox_events AS e, outbox_positions AS p WHERE p.destination = 'all' AND e.id <= p.head AND NOT e.id <@ p.open`
	}
	if err := c.pool.QueryRow(c.ctx, sql).Scan(&n); err != nil {
		c.t.Fatal(err)
	}
	// A commit of our own takes to the disk all that was committed before it.
	c.exec(`SELECT pg_logical_emit_message(true, 'chaos', 'flush')`)
	return n
}

// inFlight is how much the relays may have delivered and not written down.
func (c *cell) inFlight() (n int) {
	if c.mode == outboxsql.ModeStream {
		arrivals := c.place.all()
		for _, t := range c.takeovers() {
			n += len(t.exposed(arrivals))
		}
		return n
	}
	if c.broken == 0 { // but the machine may have kept a relay from its claims for too long
		c.broken = c.saying("claim was lost")
	}
	return c.broken*claimed + c.unleased*leasedMost + c.volatile
}

// saying returns how many relays have said something.
func (c *cell) saying(text string) (n int) {
	for _, r := range c.relays {
		if r.log.has(text) {
			n++
		}
	}
	return n
}

// deliverer is the relay that delivered last, and the one to be hurt: in a queue it is
// at work, and in a stream it is the one that has the destination.
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
