// Package dispatch delivers: it routes events to destinations, runs a bounded number of
// deliveries at once, and turns each answer into an outcome.
//
// Only the relay uses this package: programs use package notifyd, authors of destinations package delivery. An engine
// hands deliveries to dispatch, see [QueueLane], [StreamLane] and [Batch], and records their outcomes. The package
// knows no PostgreSQL, engine or destination.
//
// A lane uses two packages without a lock: internal/order keeps the events of an aggregate in order, and
// internal/health tracks a destination that fails, throttles or recovers.
//
// Read views.go and lane.go first. What engines see:
//
//	views.go       declares the two views of a lane, one per engine, and when an event expires
//	batch.go      holds deliveries on their way to a lane, and their answers
//	dispatcher.go  owns all lanes and routes, merges their figures, and shuts down
//	calls.go       records calls with large events, and takes turns for them
//	config.go      declares the settings of a lane
//	dead_letters.go checks where dead letters lead
//	route.go       finds the destinations of an event type
//	filter.go      calls the conditions of routes
//	key.go         hashes the keys of aggregates
//
// One lane, which delivers to one destination:
//
//	lane.go        queues jobs, reserves capacity, applies limits, and handles outcomes
//	worker.go      calls the handler, and drops expired events
//	shards.go      joins the lanes of one destination: shared outage, merged figures
//	stuck.go       finds calls that do not return
//
// Outcomes:
//
//	result.go      calls the handler and reads its errors
//	verdict.go     declares the verdicts on a delivery
//	throughput.go  measures how long an event takes
//
// Figures and reports:
//
//	measure.go     records latencies and counts of a lane
//	refusals.go    tracks the statements that the database refuses
//	repeats.go     counts equal failures in place of a log line for each
//	database.go    tracks whether the database answers
package dispatch
