// Package dispatch delivers: it routes events to destinations, runs a bounded number of
// deliveries at once, and turns each answer into an outcome.
//
// It is the relay's own: programs use package notifyd, authors of destinations package delivery. An
// engine hands deliveries to dispatch, see [QueueLane], [StreamLane] and [Parcel], and records their outcomes. The
// package knows neither PostgreSQL nor an engine nor a destination.
//
// Two parts of a lane are packages without a lock: internal/order keeps the events of an aggregate in order, and internal/health
// tracks a destination that fails, throttles or recovers.
//
// Read views.go and lane.go first. What engines see:
//
//	views.go       the two views of a lane, one for each engine; when an event expires
//	engine.go      the methods of these views, and what engines ask the dispatcher
//	parcel.go      deliveries on their way to a lane, and their answers
//	dispatcher.go  all lanes and routes; the end of a relay
//	route.go       which destinations an event type leads to
//	filter.go      the conditions of routes
//	key.go         the keys of aggregates
//
// One lane, the way to one destination:
//
//	lane.go        its queue, its capacity, and what an answer does to it
//	worker.go      makes calls of the handler; what is too old is dropped there
//	shards.go      the lanes of one destination: shared outage, merged figures
//	withdraw.go    returns what no worker has begun
//	limit.go       the rate limit
//	pause.go       a pause by a person
//	stuck.go       calls that do not return
//
// What an answer means:
//
//	reply.go       what a handler's answer says
//	classify.go    the verdict on a delivery
//	tempo.go       how long an event takes
//
// Figures and reports:
//
//	stats.go       figures for metrics and status
//	measure.go     latencies and counts of a lane
//	refusals.go    what the database refuses the relay
//	database.go    whether the database answers
//	clock.go       the database's clock
package dispatch
