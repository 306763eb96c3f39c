package chaos

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// fault is a row of the matrix.
type fault struct {
	name string
	// relays is the number of relays.
	relays int
	// server starts a server for this cell alone; nil shares one.
	server func(*cell)
	// place creates the destination; nil is a healthy sink.
	place func(*cell)
	// way puts a pooler or a network between the relays and the database.
	way func(*cell)
	// inject does the damage and returns when it is done. It records in the cell the
	// possible duplicates.
	inject func(*cell)
	// heal repairs the damage after a while; nil if no repair is needed.
	heal func(*cell)
	// lasts is the duration of the fault; nil is the hold of the form.
	lasts func(form) time.Duration
	// only is the mode to which the fault applies; empty is both.
	only outboxsql.Mode
	// both makes the short form try both loads in both modes, and turns one load in
	// one mode: such faults need a server of their own or many seconds, or show
	// little more in the other mode.
	both, turns bool
}

// shortFaults returns the names of the faults with -short: processes are killed, a disk fills up, a network is cut.
func shortFaults() []string {
	return []string{"relay killed (SIGKILL)", "PostgreSQL killed (SIGKILL)", "disk full on PostgreSQL", "half-open connections (packets vanish)"}
}

// faults are the rows of the matrix, by the names that docs/design/guarantees.md uses.
func faults() []fault {
	all := []fault{
		{name: "relay killed (SIGKILL)", both: true, inject: killRelay, heal: (*cell).startRelay, lasts: nothing},
		{name: "relay frozen (SIGSTOP)", turns: true, inject: freezeRelay, heal: thawRelay, lasts: func(s form) time.Duration { return s.freeze }},
		{name: "PostgreSQL killed (SIGKILL)", both: true, server: ownServer, inject: killServer, heal: startServer},
		{name: "PostgreSQL restarted (immediate)", turns: true, server: ownServer, inject: restartServer},
	}
	for _, s := range []struct {
		role string
		only outboxsql.Mode
	}{
		{"claim", outboxsql.ModeQueue},
		{"stream", outboxsql.ModeStream},
		{"listen", ""},
		{"notify", ""},
		{"maintenance", outboxsql.ModeQueue},
		{"leases", outboxsql.ModeStream},
	} {
		all = append(all, fault{
			name: "connection ended: notifyd/" + s.role, only: s.only, both: s.role == "leases", turns: s.role == "listen" || s.role == "notify",
			inject: func(c *cell) { endSessions(c, s.role) },
		})
	}
	all = append(all, []fault{
		{name: "disk full on PostgreSQL", turns: true, server: smallServer, inject: fillDisk, heal: emptyDisk},
		{name: "connection limit reached", inject: limitConnections, heal: liftLimit},
		{name: "table locked past lock_timeout", turns: true, inject: lockTable, heal: (*cell).commit},
		{name: "PgBouncer (session) killed and restarted", turns: true, way: throughPgBouncer, inject: killPooler, heal: startPooler},
		{name: "PgBouncer (transaction) killed and restarted", only: outboxsql.ModeStream, way: throughTransactions, inject: killPooler, heal: startPooler},
		{
			name: "relay behind PgBouncer (transaction) killed (SIGKILL)", only: outboxsql.ModeStream, both: true, way: throughTransactions,
			inject: killRelay, heal: (*cell).startRelay, lasts: nothing,
		},
		{
			name: "PostgreSQL behind PgBouncer (transaction) killed (SIGKILL)", only: outboxsql.ModeStream, server: ownServer, way: throughTransactions,
			inject: killServer, heal: startServer,
		},
		{name: "half-open connections (packets vanish)", turns: true, way: throughNetwork, inject: cutNetwork, heal: restoreNetwork},
		{name: "destination down", inject: func(c *cell) { c.sink().set(c.t, modeDown) }, heal: destinationUp},
		{name: "destination slow", turns: true, inject: func(c *cell) { c.sink().set(c.t, modeSlow) }, heal: destinationUp},
		{name: "destination blocked", inject: blockDestination, heal: destinationUp, lasts: func(s form) time.Duration { return max(s.hold, answerWithin) }},
		{name: "SMTP connection lost after DATA", relays: 1, place: mailServer, inject: dropMails},
		{name: "long foreign write transaction", inject: foreignWrite, heal: (*cell).commit},
		{name: "long foreign read snapshot", turns: true, inject: foreignRead, heal: (*cell).commit},
		{name: "events referenced by an open transaction", inject: referToEvents, heal: (*cell).commit},
		{name: "TRUNCATE of what is done", inject: truncateDone},
		{name: "ALTER TABLE ADD COLUMN", turns: true, inject: addColumns},
		{name: "clock of PostgreSQL jumps forward", turns: true, relays: 1, server: clockServer, inject: func(c *cell) { jump(c, time.Hour) }},
		{name: "clock of PostgreSQL jumps back", turns: true, relays: 1, server: clockServer, inject: func(c *cell) { jump(c, -time.Hour) }},
		{name: "notification queue full", turns: true, server: smallQueueServer, inject: fillQueue, heal: emptyQueue},
		{name: "updates stalled past statement_timeout", turns: true, inject: stallUpdates, heal: endStall},
		{name: "row level security without a policy", turns: true, inject: hideRows, heal: showRows},
		// Ids mean nothing to a queue.
		{name: "ids begin again", only: outboxsql.ModeStream, inject: restartIDs, heal: seekBeginning, lasts: nothing},
		{name: "events that cannot be read", turns: true, inject: damage, heal: repair, lasts: nothing},
		// A stream loses nothing either, but delivers later events of an aggregate before those that are out of sight.
		{name: "partition detached, and attached again", only: outboxsql.ModeQueue, way: partitioned, inject: detach, heal: attach},
	}...)
	for i := range all {
		all[i].relays = cmp.Or(all[i].relays, 2)
	}
	return all
}

// nothing is left to wait for where inject has waited.
func nothing(form) time.Duration { return 0 }

func (c *cell) sink() *sink {
	c.t.Helper()
	s, ok := c.place.(*sink)
	if !ok {
		c.t.Fatal("the destination of this cell is not a sink")
	}
	return s
}

// killRelay waits until the remaining relay has delivered all earlier events:
// without help, and without the relay that is started later. Meanwhile a
// transaction stays open whose end is unknown.
func killRelay(c *cell) {
	missing, looked := c.load.known(), 0
	killed := time.Now()
	c.deliverer().signal(c.t, syscall.SIGKILL)
	c.broken = 1
	c.begin("SELECT pg_current_xact_id()")
	c.await("the remaining relay delivers the earlier events", func() bool {
		arrivals := c.place.all()
		for _, a := range arrivals[looked:] {
			if missing[a.ID] {
				delete(missing, a.ID)
				c.tookOver = a.At.Sub(killed)
			}
		}
		looked = len(arrivals)
		return len(missing) == 0
	})
	c.commit()
}

// freezeRelay freezes a relay that has deliveries under way, or the destination,
// and keeps writing.
func freezeRelay(c *cell) {
	c.load.insist("frozen", freezeKeys, 5*freezeKeys) // some are on their way
	c.stopped = c.deliverer()
	c.stopped.signal(c.t, syscall.SIGSTOP)
	c.frozen = time.Now()
	c.load.insist("frozen", freezeKeys, 5*freezeKeys)
	c.broken = 1 // the server ends its sessions after a while, and another relay takes over their events
}

// freezeKeys is the number of aggregates that are written in addition to the
// load: enough for all concurrent calls of a relay.
const freezeKeys = 200

// thawRelay waits until the other relay has delivered, without the frozen one,
// all events written so far.
func thawRelay(c *cell) {
	last := c.last()
	for _, step := range []struct {
		what string
		done func(last int64) bool
	}{
		{"taken over the free events", c.taken},
		{"delivered them, and those that the frozen relay held back", c.done},
	} {
		c.await("next to a frozen relay, the other one has "+step.what, func() bool { return step.done(last) })
		c.t.Logf("%.1f s after the freeze the other relay has %s", time.Since(c.frozen).Seconds(), step.what)
	}
	c.stopped.signal(c.t, syscall.SIGCONT)
}

// smallQueueServer has a notification queue of 512 KB, and not of 8 GB.
func smallQueueServer(c *cell) {
	c.server = testenv.OwnNewPostgres(c.t, 17, map[string]string{"max_notify_queue_pages": "64"})
}

// fillQueue fills the notification queue from another database, with a session that listens inside a transaction.
func fillQueue(c *cell) {
	c.t.Helper()
	culprit, err := pgx.Connect(c.ctx, c.server.URL("template1"))
	if err != nil {
		c.t.Fatal(err)
	}
	c.foreign = culprit
	c.t.Cleanup(func() { _ = culprit.Close(context.WithoutCancel(c.ctx)) })
	for _, sql := range []string{`LISTEN elsewhere`, `BEGIN`} {
		if _, err := culprit.Exec(c.ctx, sql); err != nil {
			c.t.Fatal(err)
		}
	}
	filler, err := pgx.Connect(c.ctx, c.server.URL("template1"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = filler.Close(c.ctx) }()
	c.await("the queue is full", func() bool {
		_, err := filler.Exec(c.ctx, `SELECT pg_notify('elsewhere', repeat('x', 7000))`)
		return err != nil && strings.Contains(err.Error(), "NOTIFY queue")
	})
	c.refused = c.load.refusals()
}

// emptyQueue ends the session that keeps the queue full. Nothing may have been refused because of it.
func emptyQueue(c *cell) {
	c.t.Helper()
	if n := c.load.refusals() - c.refused; n > 0 {
		c.t.Errorf("%d commits were refused", n)
	}
	c.commit()
}

// restartIDs lets the ids begin again under writers. The relays end, and those that a supervisor would start.
// The ids before are so high that the new ones cannot reach them until then.
func restartIDs(c *cell) {
	c.exec(`SELECT setval('outbox_events_id_seq', 1000000)`)
	c.load.insist("high-", 1, 1)
	c.settle()
	c.exec(`TRUNCATE outbox_events RESTART IDENTITY`)
	c.load.insist("again-", 20, 150)
	for range c.relays {
		c.startRelay()
	}
	c.await("each relay has ended", func() bool {
		return c.each(func(r *child) bool {
			return r.log.has("relay ended") && r.log.has("positions seek DESTINATION beginning")
		})
	})
}

// seekBeginning follows the advice of the error, and starts relays.
func seekBeginning(c *cell) {
	s, err := ops.New(c.pool, ops.Config{Schema: outboxsql.DefaultSchema})
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := s.Seek(c.ctx, "all", "beginning", ops.Action{}); err != nil {
		c.t.Fatal(err)
	}
	c.relays = nil
	c.startRelay()
	c.startRelay()
}

// unreadable is the number of events that damage writes.
const unreadable = 5

// damage writes events whose payload PostgreSQL cannot read, as after a fault of a disk: it has a chunk too many. They
// belong to no aggregate, so they may arrive later than the others.
func damage(c *cell) {
	c.begin(`SET allow_system_table_mods = on`,
		fmt.Sprintf(`CREATE TEMPORARY TABLE bad ON COMMIT DROP AS SELECT nextval('outbox_events_id_seq') AS id FROM generate_series(1, %d)`, unreadable),
		`INSERT INTO outbox_events (id, event_type, payload) SELECT b.id, 'chaos', (SELECT to_json(string_agg(md5(random()::text || g || b.id), '')) FROM generate_series(1, 1000) AS g) FROM bad AS b`,
		`UPDATE pg_class SET relkind = 'r' WHERE oid = (SELECT reltoastrelid FROM pg_class WHERE oid = 'outbox_events'::regclass)`,
		`DO $$ BEGIN EXECUTE format('INSERT INTO %1$s SELECT chunk_id, 1000, chunk_data FROM %1$s WHERE chunk_seq = 0',
			(SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'outbox_events'::regclass)); END $$`,
		`UPDATE pg_class SET relkind = 't' WHERE oid = (SELECT reltoastrelid FROM pg_class WHERE oid = 'outbox_events'::regclass)`)
	c.commit()
	c.await("the events are dead letters", func() bool {
		return c.holds(`SELECT count(*) = $1 FROM outbox_deliveries WHERE state = 'dead' AND last_error LIKE '%event cannot be read%XX001%'`, unreadable)
	})
}

// repair writes the payloads anew, and replays the events.
func repair(c *cell) {
	c.exec(`UPDATE outbox_events SET payload = '{}' WHERE id IN (SELECT event_id FROM outbox_deliveries WHERE state = 'dead')`)
	s, err := ops.New(c.pool, ops.Config{})
	if err != nil {
		c.t.Fatal(err)
	}
	if r, err := s.ReplayDeadLetters(c.ctx, ops.DeadLetterFilter{All: true}, ops.BulkAction{}); err != nil || r.Done != unreadable {
		c.t.Fatalf("replayed %d of %d events: %v", r.Done, unreadable, err)
	}
}

// partitioned converts the table to partitions. New events go into the partition of the day.
func partitioned(c *cell) {
	c.t.Helper()
	conn, err := c.pool.Acquire(c.ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Release()
	if err := outboxsql.Partition(c.ctx, conn.Conn(), outboxsql.DefaultSchema, outboxsql.PartitionOptions{}); err != nil {
		c.t.Fatal(err)
	}
	grants, err := outboxsql.Grants(outboxsql.DefaultSchema, outboxsql.Roles{Relay: c.role})
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := conn.Exec(c.ctx, grants, pgx.QueryExecModeSimpleProtocol); err != nil {
		c.t.Fatal(err)
	}
}

// detach takes the partition of all events so far out of the table. Writers have gone on to the next one before.
func detach(c *cell) {
	c.t.Helper()
	first := c.last()
	for range 3 { // the last call moves the sequence
		c.exec(`SELECT outbox_partitions_extend(now() + interval '1 day', 3)`)
	}
	c.await("writers have gone on", func() bool {
		_ = c.load.insert("next-", 1, 1) // these events are delivered like the rest
		return c.holds(`SELECT max(id) >= (SELECT high FROM outbox_partitions() WHERE low <= $1 AND high > $1) FROM outbox_events`, first)
	})
	if err := c.pool.QueryRow(c.ctx, `SELECT p.oid::regclass::text, pg_get_expr(p.relpartbound, p.oid) FROM outbox_events AS e JOIN pg_class AS p ON p.oid = e.tableoid WHERE e.id = $1`,
		first).Scan(&c.partition, &c.bounds); err != nil {
		c.t.Fatal(err)
	}
	c.broken = len(c.relays) // the results of their deliveries under way cannot be recorded
	c.exec(`ALTER TABLE outbox_events DETACH PARTITION ` + c.partition)
}

func attach(c *cell) {
	c.exec(`ALTER TABLE outbox_events ATTACH PARTITION ` + c.partition + ` ` + c.bounds)
}

func ownServer(c *cell) { c.server = testenv.OwnPostgres(c.t, nil) }

func killServer(c *cell) {
	kept := c.durable()
	if err := c.server.Kill(c.ctx); err != nil {
		c.t.Fatal(err)
	}
	c.crashed(kept)
}

// crashed records the possible duplicates after a crash of PostgreSQL: the
// delivered events, less those that were on disk before.
func (c *cell) crashed(kept int) {
	c.broken += len(c.relays)
	c.volatile += max(0, c.place.distinct()-kept)
	c.pool.Reset()
}

func startServer(c *cell) {
	if err := c.server.Start(c.ctx); err != nil {
		c.t.Fatal(err)
	}
}

func restartServer(c *cell) {
	kept := c.durable()
	if err := c.server.Restart(c.ctx, pgserver.Immediate); err != nil {
		c.t.Fatal(err)
	}
	c.crashed(kept)
}

// endSessions ends the connections of one kind. Connections without claims,
// leases or shards lose nothing.
func endSessions(c *cell, kind string) {
	name := "notifyd/" + kind
	c.await("there are connections named "+name, func() bool { return c.terminate(name) > 0 })
	switch kind {
	case "listen", "notify", "stream": // the reader of a stream continues where it was
	case "maintenance":
		c.unleased = len(c.relays)
	default:
		c.broken = len(c.relays)
	}
}

// smallServer has a small file system, which fill fills up.
func smallServer(c *cell) {
	dir := testenv.SmallDisk(c.t, 400<<20)
	c.server = testenv.OwnPostgresIn(c.t, dir+"/pg", map[string]string{"max_wal_size": "64MB", "wal_recycle": "off", "min_wal_size": "32MB"})
	c.ballast = dir + "/ballast"
}

func fillDisk(c *cell) {
	c.kept = c.durable()
	f, err := os.Create(c.ballast)
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // the file is thrown away
	for chunk := make([]byte, 64<<10); err == nil; {
		_, err = f.Write(chunk)
	}
	c.await("a writer is refused", func() bool {
		_ = c.load.insert("full-", 3, 2000) // these events are delivered like the rest
		return c.load.refusals() > 0
	})
}

// emptyDisk frees space and starts the server. A server without space for its log has crashed, and does not restart while
// the disk is full.
func emptyDisk(c *cell) {
	if err := os.Remove(c.ballast); err != nil {
		c.t.Fatal(err)
	}
	c.await("the server works again", func() bool {
		_ = c.server.Start(c.ctx) // the error if it runs
		return c.holds(`SELECT true`)
	})
	text, err := os.ReadFile(c.server.LogFile())
	if err != nil {
		c.t.Fatal(err)
	}
	crashes := strings.Count(string(text), "PANIC:")
	c.broken = len(c.relays) * (1 + crashes)
	c.volatile = crashes * max(0, c.place.distinct()-c.kept)
	c.t.Logf("the server crashed %d times", crashes)
	c.pool.Reset()
}

func limitConnections(c *cell) {
	c.exec(`ALTER ROLE ` + c.role + ` CONNECTION LIMIT 0`)
	c.await("the relays have no connection", func() bool { return c.terminate("%") == 0 })
	c.broken = len(c.relays)
}

func liftLimit(c *cell) { c.exec(`ALTER ROLE ` + c.role + ` CONNECTION LIMIT -1`) }

// lockTable locks the events until the server has refused a relay for waiting too
// long (55P03), and both relays have noticed; in a stream, the relay that owns
// the destination.
func lockTable(c *cell) {
	c.awaitWell(refused())
	c.begin(`LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE`)
	c.unleased = len(c.relays)
	noticed := func(r *child) bool { return refused().noticed(r) && r.log.has("(SQLSTATE 55P03)") }
	c.await("the relays run into their lock_timeout", func() bool {
		return c.each(noticed) || c.mode == outboxsql.ModeStream && c.some(noticed)
	})
}

// stallUpdates installs a foreign trigger that waits, until the server has ended
// a statement of a relay for it (57014). A wait for a lock would end by
// lock_timeout, which is shorter.
func stallUpdates(c *cell) {
	c.exec(`CREATE TABLE stall AS SELECT 1 AS n;
		CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
			WHILE EXISTS (SELECT FROM stall) LOOP PERFORM pg_sleep(0.02); END LOOP;
			RETURN NULL;
		END $$;
		CREATE TRIGGER stall BEFORE UPDATE ON ` + c.marked() + ` EXECUTE FUNCTION stall()`)
	c.broken = len(c.relays)
	c.load.insist("stalled-", 20, 200) // the backlog may be done
	c.await("the relays run into their statement_timeout", func() bool {
		return c.some(func(r *child) bool { return r.log.has("(SQLSTATE 57014)") })
	})
}

// endStall also releases the statements that wait at the moment.
func endStall(c *cell) { c.exec(`DELETE FROM stall`) }

// hideRows enables row level security, which would hide all events from the role of the relays, until PostgreSQL has
// refused their statements (42501).
func hideRows(c *cell) {
	c.exec(`ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY`)
	c.broken = len(c.relays)
	c.load.insist("hidden-", 20, 200) // the backlog may be done
	c.await("the relays are refused", func() bool {
		return c.some(func(r *child) bool { return r.log.has("(SQLSTATE 42501)") })
	})
}

func showRows(c *cell) { c.exec(`ALTER TABLE outbox_events DISABLE ROW LEVEL SECURITY`) }

func throughPgBouncer(c *cell) {
	c.pooler, c.relayURL = testenv.OwnPgBouncer(c.t, c.relayURL, "session")
}

func throughTransactions(c *cell) {
	c.pooler, c.relayURL = testenv.OwnPgBouncer(c.t, c.relayURL, "transaction")
}

func killPooler(c *cell) {
	if err := c.pooler.Kill(c.ctx); err != nil {
		c.t.Fatal(err)
	}
	c.broken = len(c.relays)
}

func startPooler(c *cell) {
	if err := c.pooler.Start(c.ctx); err != nil {
		c.t.Fatal(err)
	}
}

func throughNetwork(c *cell) {
	u, err := url.Parse(c.relayURL)
	if err != nil {
		c.t.Fatal("the URL of the database is none")
	}
	c.network = testenv.NewNetwork(c.t, u.Host)
	u.Host = c.network.Addr
	c.relayURL = u.String()
}

// cutNetwork waits until the relays have given up their connections: until then
// packets are only late.
func cutNetwork(c *cell) {
	c.awaitWell(noDatabase())
	c.awaitWell(noListener())
	c.network.Cut()
	c.broken = len(c.relays)
	c.await("the relays notice that the database is gone", func() bool { return c.each(noDatabase().noticed) })
	c.await("the relays notice that they do not listen", func() bool { return c.each(noListener().noticed) })
}

func restoreNetwork(c *cell) { c.network.Restore() }

func destinationUp(c *cell) { c.sink().set(c.t, modeUp) }

func blockDestination(c *cell) {
	c.sink().set(c.t, modeBlocked)
	c.await("a batch waits for the destination", func() bool { return c.sink().holding() > 0 })
}

func mailServer(c *cell) {
	server, err := smtpsink.Start(smtpsink.Options{TLS: smtpsink.NoTLS})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = server.Close() })
	c.place = &mailbox{Sink: server}
	c.form.backlog, c.form.before, c.form.every = c.form.mails, c.form.mails/10, 200*time.Millisecond
}

func dropMails(c *cell) {
	box, ok := c.place.(*mailbox)
	if !ok {
		c.t.Fatal("the destination of this cell is not a mail server")
	}
	box.drop(10)
}

// foreignWrite leaves a transaction open that has written an event before all
// later ones, and other rows.
func foreignWrite(c *cell) {
	c.begin(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ('chaos', 'order', 'foreign', '{}')`,
		`CREATE TABLE foreign_things AS SELECT generate_series(1, 1000)`)
}

func foreignRead(c *cell) {
	c.begin(`SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`, `SELECT count(*) FROM outbox_events`)
}

// referToEvents adds a foreign key to the events. Of the newest events half are referenced for good, and half by a transaction
// that stays open.
func referToEvents(c *cell) {
	const newest = ` SELECT id FROM (SELECT id FROM outbox_events ORDER BY id DESC LIMIT 200) AS e WHERE id % 2 = `
	c.exec(`CREATE TABLE references_to_events (event_id bigint REFERENCES outbox_events)`)
	c.exec(`INSERT INTO references_to_events` + newest + `0`)
	c.begin(`INSERT INTO references_to_events` + newest + `1`)
}

// truncateDone removes the events that are done and keeps the rest, as an
// operator does who needs disk space at once.
func truncateDone(c *cell) {
	c.begin(`LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE`,
		`CREATE TEMPORARY TABLE kept ON COMMIT DROP AS SELECT * FROM outbox_events AS e WHERE `+c.undone(),
		`TRUNCATE outbox_events`,
		`INSERT INTO outbox_events OVERRIDING SYSTEM VALUE SELECT * FROM kept`)
	c.commit()
}

func addColumns(c *cell) {
	for n, table := range []string{"outbox_events", "outbox_deliveries", "outbox_positions"} {
		c.exec(fmt.Sprintf(`ALTER TABLE %s ADD COLUMN extra_%d int DEFAULT 7`, table, n))
	}
}

// clockServer has a clock that can be set.
func clockServer(c *cell) { c.server, c.clock = testenv.ClockPostgres(c.t, nil) }

// jump sets the clock. Running timeouts of the server may expire by it, and end
// their sessions.
func jump(c *cell, offset time.Duration) {
	c.clock(offset)
	c.skew = offset
	c.broken = len(c.relays)
}
