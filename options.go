package notifyd

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Option is a setting of a [Relay].
type Option func(*settings)

type settings struct {
	schema     string
	log        *slog.Logger
	limits     engine.Limits
	patience   time.Duration // for deliveries that run when the relay stops
	observer   delivery.Observer
	listen     *pgx.ConnConfig
	pollOnly   bool
	canary     time.Duration
	keep       time.Duration
	purgeBatch int
	partitions bool
	tick       time.Duration // a second of the audit, except in tests
	untilIdle  bool
	program    store.Program
	outbox     string
}

// defaultSettings returns the settings of a relay that sets none. The figures are in
// package engine, those of a destination in dispatch.DefaultLaneConfig.
func defaultSettings() settings {
	return settings{
		schema:     outboxsql.DefaultSchema,
		log:        slog.New(slog.DiscardHandler),
		limits:     engine.DefaultLimits(),
		patience:   dispatch.DefaultShutdownTimeout,
		canary:     engine.DefaultCanary,
		program:    store.Program{Process: os.Getpid(), Host: store.ThisHost(), StartedAt: time.Now(), LoadedAt: time.Now()},
		keep:       engine.DefaultRetention,
		purgeBatch: engine.DefaultPurgeBatch,
		tick:       time.Second,
	}
}

func (s *settings) validate() error {
	errs := []error{outboxsql.ValidateSchema(s.schema), s.limits.Validate()}
	if s.log == nil {
		errs = append(errs, errors.New("the logger is nil"))
	}
	if s.canary != 0 && s.canary < engine.MinCanary {
		errs = append(errs, fmt.Errorf("canary every %v is below %v: use 0 for none", s.canary, engine.MinCanary))
	}
	if s.keep < 0 {
		errs = append(errs, fmt.Errorf("retention of %v is negative: use 0 to delete delivered events at once", s.keep))
	}
	if s.patience < 0 {
		errs = append(errs, fmt.Errorf("shutdown timeout of %v is negative", s.patience))
	}
	if s.purgeBatch < 1 {
		errs = append(errs, fmt.Errorf("purge batch of %d is below 1", s.purgeBatch))
	}
	return errors.Join(errs...)
}

// WithSchema names the schema that holds the tables; "public" by default.
func WithSchema(name string) Option { return func(s *settings) { s.schema = name } }

// WithLogger sets the log of the relay; by default there is none. Payloads are never logged.
func WithLogger(log *slog.Logger) Option { return func(s *settings) { s.log = log } }

// WithObserver sets the observer of dead letters, of destinations that become unavailable and
// available, and of the loss of the database and the listening connection; none by default. Package
// alert has one that sends messages.
func WithObserver(o delivery.Observer) Option { return func(s *settings) { s.observer = o } }

// WithListenConfig makes the listening connection go elsewhere than the others: past a transaction
// pooler, where LISTEN is accepted and never heard. If the pool given to [New] turns out to lead
// through such a pooler, all connections of the relay go there, because none of them would work.
func WithListenConfig(c *pgx.ConnConfig) Option { return func(s *settings) { s.listen = c } }

// WithPollingOnly uses neither LISTEN nor the bell: events are found by polling alone. It is for
// tables without a bell.
func WithPollingOnly() Option { return func(s *settings) { s.pollOnly = true } }

// WithCanary sets how often the relay sends itself a notification from another connection, to prove
// that it would hear one; 5 s by default, at least 100 ms, 0 for never. A canary that is not heard
// costs the listening connection, and until one is heard again the table is polled every 20 ms.
func WithCanary(every time.Duration) Option { return func(s *settings) { s.canary = every } }

// WithProgram sets what the relay says of its process, for people who look at outbox_relays or
// `notifyd status`: the version of the program, its configuration file with its whole path, and when
// it was started. Empty words are not known; by default none is, and the process was started when the
// relay was made.
func WithProgram(version, config string, started time.Time) Option {
	return func(s *settings) {
		s.program.Version, s.program.Config, s.program.StartedAt = version, config, started
	}
}

// WithOutboxName gives the outbox a name, for a program that relays several of them to the same
// destinations: it is the Outbox of each event, and part of its DedupeID, because ids are unique in one
// outbox only. By default it has none. A name that changes makes other ids: events that are delivered
// again after the change are new to those who drop duplicates.
func WithOutboxName(name string) Option { return func(s *settings) { s.outbox = name } }

// WithPollInterval sets how often the table is polled without a notification; 1 s by default, at
// least 1 ms. While polls find unannounced events, the relay polls more often by itself.
func WithPollInterval(d time.Duration) Option {
	return func(s *settings) { s.limits.PollInterval = d }
}

// WithUntilIdle makes [Relay.Run] return nil once the relay is idle, for programs that a scheduler starts. A relay is idle
// if it has applied the retention once, and twice in a row, a second apart, finds neither an event to
// deliver, nor a delivery that runs, nor a stored delivery that is due within 5 s, nor a replay. Dead letters, paused
// destinations, events without a route and ids of open transactions do not keep it running. A destination that is down does,
// as events wait for it; so does a database that is down.
func WithUntilIdle() Option { return func(s *settings) { s.untilIdle = true } }

// WithClaims sets how many claims may be in flight, each with a connection; 4
// by default, at least 1.
func WithClaims(n int) Option { return func(s *settings) { s.limits.Claims = n } }

// WithClaimBatch sets the largest number of events in one claim; 1000 by
// default, at least 1.
func WithClaimBatch(n int) Option { return func(s *settings) { s.limits.Batch = n } }

// WithClaimBytes bounds the events of one claim, with headers and aggregate ids; 8 MiB by default,
// at least 1. This times the number of claims bounds the events in memory. A larger event is taken
// alone.
func WithClaimBytes(n int) Option { return func(s *settings) { s.limits.Bytes = n } }

// WithMaxEventBytes bounds the payload and headers of one event; 64 MiB by default, from 1 KiB to
// 1 GiB. A larger event is not read: it becomes a dead letter.
func WithMaxEventBytes(n int) Option { return func(s *settings) { s.limits.EventBytes = n } }

// WithLockBudget sets how long a claim's transaction may stay open while handlers run; 100 ms by
// default, between 1 ms and 2 s. Deliveries that take longer continue under a lease.
func WithLockBudget(d time.Duration) Option { return func(s *settings) { s.limits.LockBudget = d } }

// WithLease sets how long the lease of a slow delivery lasts without renewal; 30 s by default, at
// least 1 s. Leases of a dead relay are taken over earlier, as soon as its connection is gone.
func WithLease(d time.Duration) Option { return func(s *settings) { s.limits.Lease = d } }

// WithShutdownTimeout sets how long running deliveries may finish once Run's
// context has ended; 20 s by default, 0 cancels them at once.
func WithShutdownTimeout(d time.Duration) Option {
	return func(s *settings) { s.patience = d }
}

// WithRetention sets how long delivered events are kept, 7 days by default, and how many are
// deleted in one statement. With keep 0 they are deleted when they are delivered; in a stream
// within a minute after the last destination has received them. Events with dead letters are always
// kept.
func WithRetention(keep time.Duration, batch int) Option {
	return func(s *settings) { s.keep, s.purgeBatch = keep, batch }
}

// WithDailyPartitions makes the relay maintain the partitions of a table that `notifyd migrate
// --partitions daily`, or outboxsql.Partition, has partitioned by day: it creates those of the days
// ahead, and drops each in which every event has been done for as long as [WithRetention] keeps it.
// Several relays may do so. On a plain table it warns once, and deletes events one by one.
func WithDailyPartitions() Option { return func(s *settings) { s.partitions = true } }

// HandleOption is a setting of one destination.
type HandleOption func(*handleSettings)

type handleSettings struct {
	lane       dispatch.LaneConfig
	middleware []delivery.Middleware
	ordered    bool   // Ordered was given
	start      string // of WithStart
}

// WithLane sets concurrency, batch size and timeout as the package of a handler suggests
// with DefaultLane; what is zero there stays as it is.
func WithLane(l delivery.Lane) HandleOption {
	return func(h *handleSettings) {
		h.lane.Concurrency = cmp.Or(l.Concurrency, h.lane.Concurrency)
		h.lane.Batch = cmp.Or(l.Batch, h.lane.Batch)
		h.lane.Timeout = cmp.Or(l.Timeout, h.lane.Timeout)
	}
}

// WithConcurrency sets how many calls of the handler run at once; 8 by default, at
// least 1.
func WithConcurrency(n int) HandleOption { return func(h *handleSettings) { h.lane.Concurrency = n } }

// WithBatchSize sets the largest number of events given to a [delivery.BatchHandler] in one
// call; 100 by default, at least 1.
func WithBatchSize(n int) HandleOption { return func(h *handleSettings) { h.lane.Batch = n } }

// WithTimeout ends the context of one call of the handler after d; 30 s by default.
func WithTimeout(d time.Duration) HandleOption { return func(h *handleSettings) { h.lane.Timeout = d } }

// WithMaxAttempts sets how many failures make an event a dead letter; 20 by
// default, at least 1. Faults of the destination or the relay do not count.
func WithMaxAttempts(n int) HandleOption { return func(h *handleSettings) { h.lane.MaxAttempts = n } }

// WithRateLimit bounds the deliveries that begin, over all relays of the tables: see [delivery.Rate]; no limit by default.
// Events that may not go yet wait, and no attempt counts.
func WithRateLimit(r delivery.Rate) HandleOption { return func(h *handleSettings) { h.lane.Rate = r } }

// WithRateKey gives each key the rate of [WithRateLimit] for itself, such as each customer; nil, the default,
// counts all events together. An event whose key has to wait is stored until its turn, and so are those behind
// it in its aggregate; other keys go on.
func WithRateKey(key delivery.RateKey) HandleOption {
	return func(h *handleSettings) { h.lane.RateKey = key }
}

// WithExpiry makes events expire that are older than after by the database's clock, from when they were
// written, or became available: they are not delivered any more, and are no dead letters. Replays do
// not expire. 0, the default, is never; at least 1 ms otherwise.
func WithExpiry(after time.Duration) HandleOption {
	return func(h *handleSettings) { h.lane.ExpiresAfter = after }
}

// WithBackoff sets how long to wait between attempts. Fields of b that are zero have the defaults of
// [delivery.DefaultBackoff], as all have by default.
func WithBackoff(b delivery.Backoff) HandleOption {
	return func(h *handleSettings) { h.lane.Backoff = b }
}

// WithOrder says whether the events of one aggregate are delivered in the order of their
// ids. On is the default where the table is a stream: each event waits until those before
// it are delivered, or dead. With on set, Run refuses a table that is a queue, which keeps
// no order: the error wraps [ErrNeedsStream]. With on unset, no event waits for an earlier
// one that has failed, as in a queue.
func WithOrder(on bool) HandleOption {
	return func(h *handleSettings) { h.ordered, h.lane.Unordered, h.lane.Total = on, !on, false }
}

// WithTotalOrder delivers all events of the destination one after the other, in the order of
// their ids, whatever their aggregates: one that fails holds back all others until it is
// delivered, or dead. A [delivery.BatchHandler] gets several of them in one call if it is a
// [delivery.OrderKeeper]. Ids are in the order of commits if outboxsql.SerializeWriters has
// made writers stand in line. Run refuses a table that is a queue: the error wraps
// [ErrNeedsStream].
func WithTotalOrder() HandleOption {
	return func(h *handleSettings) { h.ordered, h.lane.Unordered, h.lane.Total = true, false, true }
}

// WithLongestPause bounds how long a destination that is down is left alone between two
// probes; 30 s by default, at least 1 ms.
func WithLongestPause(d time.Duration) HandleOption {
	return func(h *handleSettings) { h.lane.LongestPause = d }
}

// WithBlockOnDead holds the later events of an aggregate back behind a dead letter,
// until that is replayed and delivered, or discarded; by default they go on
// without it. Run refuses a table that is a queue: the error wraps [ErrNeedsStream].
func WithBlockOnDead() HandleOption { return func(h *handleSettings) { h.lane.BlockOnDead = true } }

// WithStart says where a destination begins that a stream does not know yet: "beginning", with the first
// event that is kept, also one that the table has delivered as a queue; "now", with what is written from then on; the id of
// an event; or a time of RFC 3339, with the first event written then or later. By default, "auto", the first
// destinations of a table begin at the beginning, or where its queue has ended, and later ones now. It counts once: from then on the
// destination has a position, which `notifyd positions seek` moves. Run refuses a table that is a queue:
// the error wraps [ErrNeedsStream].
func WithStart(from string) HandleOption { return func(h *handleSettings) { h.start = from } }

// WithShards sets how many relays of a stream may deliver to the destination at once, from 1 to
// 64; 1 by default. Each shard gets the events whose aggregate hashes to it, and an event without
// an aggregate by its id, so the order of each aggregate is kept. Concurrency and batch size count
// per shard. A relay whose number differs from the number in force waits until no relay has that
// number; then the number changes. [Relay.Destination] returns an error that wraps [ErrDestination]
// for another number, and for more than 1 with [WithTotalOrder] or a [delivery.PositionKeeper].
// With more than 1, Run refuses a table that is a queue, where relays share all events without it:
// the error wraps [ErrNeedsStream].
func WithShards(n int) HandleOption { return func(h *handleSettings) { h.lane.Shards = n } }

// WithPriority sets how urgent the destination is, from -100 to 100; 0 by default. While
// there is a backlog, the events of a destination of higher priority are looked for
// first, whatever is written before them for others. It has no meaning where all
// destinations are alike, and changes nothing in the order of an aggregate's events.
func WithPriority(n int) HandleOption { return func(h *handleSettings) { h.lane.Priority = n } }

// WithMiddleware wraps the handler in middleware, inside of what [Relay.Use] added.
// Middleware that would take something away from the handler is refused: see
// [delivery.Chain].
func WithMiddleware(mw ...delivery.Middleware) HandleOption {
	return func(h *handleSettings) { h.middleware = append(h.middleware, mw...) }
}

// WithFilter delivers to the destination only those events for which f returns true, or all if f is
// nil, the default. See [delivery.Filter] for what f may do, and [Relay.RouteWhen] for a filter of one
// route.
func WithFilter(f delivery.Filter) HandleOption { return func(h *handleSettings) { h.lane.Filter = f } }
