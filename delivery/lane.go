package delivery

import "time"

// Lane is how a relay hands the events of a destination to its handler. The package of a handler suggests one with
// DefaultLane. A field that is zero has its default. The tags declare the name of each setting in notifyd.yaml, its default
// and its bounds, with durations in Go's syntax. The comments are the descriptions in docs/configuration.md: words in
// backticks are keys and values of notifyd.yaml.
type Lane struct {
	// Calls of the destination that run at the same time, for each shard.
	Concurrency int `yaml:"concurrency" default:"8" jsonschema:"minimum=1,maximum=10000"`

	// Most events passed to the destination in one call, if its type supports
	// batches. Nothing waits for a batch to fill.
	Batch int `yaml:"batch" default:"100" jsonschema:"minimum=1,maximum=100000"`

	// Longest time that one call may take. A call that the relay ends counts as an
	// attempt.
	Timeout time.Duration `yaml:"timeout" default:"30s" jsonschema:"minimum=1ms"`

	// Failed attempts after which an event becomes a dead letter. An outage of the
	// destination costs none.
	MaxAttempts int `yaml:"max_attempts" default:"20" jsonschema:"minimum=1,maximum=1000000"`

	// How urgent the destination is: while a queue has a backlog, the relay looks
	// for events of destinations of higher priority first. No effect in a stream,
	// where no destination waits for another.
	Priority int `yaml:"priority" jsonschema:"minimum=-100,maximum=100"`

	// `aggregate` delivers the events of an aggregate one after the other in the
	// order of their ids; only a stream can. `total` does the same for all events
	// of the destination, one call at a time, and waits for open transactions that
	// have drawn lower ids. With `none`, an event that fails holds up no other.
	// `auto` is `aggregate` in a stream and `none` in a queue.
	Order Order `yaml:"order" default:"auto" enum:"auto,none,aggregate,total" former:"true=aggregate,false=none"`

	// What happens when an event becomes a dead letter. A word decides only about
	// later events, as `on_dead.then`; a mapping also sends the dead letter to a
	// destination.
	OnDead OnDead `yaml:"on_dead" short:"then"`

	// Where the destination begins in a stream that does not know it yet. With
	// `auto`, the first destinations of a table begin at the beginning, or where
	// its queue has ended, and later ones now. It counts once: `positions seek`
	// moves a destination that has a position.
	StartFrom string `yaml:"start_from" default:"auto" kind:"'beginning', 'now', 'auto', an id in quotes, or a time"`

	// How many relays of a stream may deliver to the destination at once. Each
	// shard receives the events whose aggregate hashes to it, and has its own
	// concurrency and batch. All relays need the same number. More than 1 is
	// refused with `order: total`, and in a queue.
	Shards int `yaml:"shards" default:"1" jsonschema:"minimum=1,maximum=64"`

	// Most deliveries that begin in a time, over all relays together. Events that
	// exceed the rate wait, and no attempt counts.
	RateLimit Rate `yaml:"rate_limit" print:"set" kind:"rate: '100/s', '500/m', '10000/h' or '50000/d'" unset:"none"`

	// Most deliveries at once after a quiet time; `0` is as many as the rate allows
	// in a second, and at least 1.
	RateBurst int `yaml:"rate_burst" jsonschema:"minimum=0,maximum=1000000000"`

	// Age from which an event is neither delivered nor made a dead letter. The age
	// counts from the time when the event was written or became available; `0` is
	// never. Replays do not expire.
	ExpiresAfter time.Duration `yaml:"expires_after" zero:"never" jsonschema:"minimum=1ms"`

	// Longest time between two probes of a destination that is down.
	LongestPause time.Duration `yaml:"longest_pause" default:"30s" jsonschema:"minimum=1ms"`

	// Pause between the attempts for one event.
	Backoff Backoff `yaml:"backoff"`

	// Pauses after the first failure, the second one and so on, instead of
	// `backoff`: `[10s, 1m, 10m, 1h]`. The last one repeats.
	Retry []time.Duration `yaml:"retry" print:"set" jsonschema:"minimum=1ms" unset:"none"`
}

// Order is which events of a destination wait for earlier ones.
type Order string

const (
	// OrderAuto is OrderAggregate in a stream and OrderNone in a queue.
	OrderAuto Order = "auto"
	// OrderNone delivers events as they come: none waits for an earlier one that has failed.
	OrderNone Order = "none"
	// OrderAggregate delivers the events of an aggregate in the order of their ids: each waits until those before it
	// are delivered, or dead letters. Only a stream can.
	OrderAggregate Order = "aggregate"
	// OrderTotal delivers all events of the destination one after the other, in the order of their ids. An event waits
	// until each transaction that has drawn a lower id has ended. A [BatchHandler] gets several events in one call if it
	// is an [OrderedBatchHandler]. Ids are in the order of inserts; with outboxsql.SerializeWriters they are also in the order
	// of commits. Only a stream can.
	OrderTotal Order = "total"
)

// OnDead is what happens when an event becomes a dead letter.
type OnDead struct {
	// Destination that receives each dead letter of this one: the event, with the
	// error and its origin in headers. It has no routes, and one shard. Its own
	// dead letters go where its own `on_dead` sends them.
	To string `yaml:"to" jsonschema:"required" kind:"name of a destination"`

	// Handling of an aggregate's later events behind a dead letter, of all later
	// events with `order: total`. `continue` delivers them. `block`, which only a
	// stream can do, holds them back until the dead letter is replayed and
	// delivered, or discarded.
	Then LaterEvents `yaml:"then" default:"continue" enum:"continue,block"`
}

// LaterEvents is what happens to the later events of an aggregate behind a dead letter.
type LaterEvents string

const (
	// OnDeadContinue delivers them.
	OnDeadContinue LaterEvents = "continue"
	// OnDeadBlock holds them back until the dead letter is replayed and delivered, or discarded. Only a stream can.
	OnDeadBlock LaterEvents = "block"
)

// Backoff is the wait before an event is retried, unless Lane.Retry lists the waits: Initial after the first failure, Multiplier times
// as long after each further one, at most Max. Each wait is drawn from zero to twice its length, so
// that events that failed together do not come back together. A field that is zero has its default, so
// that Backoff{Initial: time.Minute} changes one of them; a default that would contradict the other field gives way.
type Backoff struct {
	// Pause after the first failure. A shorter `max` lowers the default.
	Initial time.Duration `yaml:"initial" default:"1s" jsonschema:"minimum=1ms"`

	// The pause does not grow beyond this. A longer `initial` raises the default.
	Max time.Duration `yaml:"max" default:"1h" jsonschema:"minimum=1ms"`

	// Factor by which the pause grows with each failure.
	Multiplier float64 `yaml:"multiplier" default:"2" jsonschema:"minimum=1,maximum=100"`
}
