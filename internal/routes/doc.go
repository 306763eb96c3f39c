// Package routes stores the route history of a stream: which event types each destination reads, and for which ids. The
// table is outbox_routes. The history keeps three promises when a configuration changes:
//
//   - The unrouted scanner finds an event whose type has no route, and stores it.
//   - When its type gets a route, the event is delivered before newer events of its aggregate.
//   - A change of routes never drops a waiting event.
//
// Routes never change for an id that the destination has read. New routes apply to ids that it has not read yet.
// Removed routes still apply to ids that the destination or the scanner has read. So an event has the routes of the
// moment when its destination or the scanner first read it. Whether it had a route then can be answered later.
//
// A [Range] is one row of the history. The owner of a destination ends the last range and begins another one with a
// [Change], in the transaction that holds its position. A range with new event types is not handed at first. The
// destination waits until the scanner has read all events that the destination had passed, and waits for no id that is
// not visible. The scanner stores the events of the new types as deliveries of the destination. Then the range is handed,
// and the stored deliveries go first. An event that PostgreSQL refuses to store comes later. The scanner keeps such an
// event open in its position, so that the next owner finds it.
//
// A relay may know other routes for a destination than the relay that holds it. It stores them as expected routes:
// events that the holder passes until then stay stored. Every change fences the scanner first, so that it decides
// nothing by routes that have just changed. The scanner asks a [Table] of all ranges.
//
// The package imports no engine, lane or position. Its files:
//
//	routes.go  routes, ranges, and the statement that reads them
//	change.go  changes the history
//	table.go   decides which destinations get an event, or are owed one
//	types.go   the event types that one reader has met or skips
package routes
