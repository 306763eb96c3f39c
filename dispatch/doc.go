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
//	parcel.go      deliveries on their way to a lane, and their answers
//	dispatcher.go  all lanes and routes, and their figures; the end of a relay
//	config.go      what never changes about a lane
//	route.go       which destinations an event type leads to
//	filter.go      asks the conditions of routes
//	key.go         the keys of aggregates
//
// One lane, the way to one destination:
//
//	lane.go        its queue, its capacity, its limits, and what an answer does to it
//	worker.go      makes calls of the handler; what is too old is dropped there
//	shards.go      the lanes of one destination: shared outage, merged figures
//	stuck.go       calls that do not return
//
// What an answer means:
//
//	reply.go       what a handler's answer says
//	verdict.go     the verdict on a delivery
//	tempo.go       how long an event takes
//
// Figures and reports:
//
//	measure.go     latencies and counts of a lane
//	refusals.go    what the database refuses the relay
//	database.go    whether the database answers
//	clock.go       the database's clock
package dispatch
