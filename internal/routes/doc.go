// Package routes has the history of the routes of a stream: by which routes each destination reads which ids, in the table
// outbox_routes. It keeps three promises whenever a configuration changes:
//
//   - An event whose type has no route is found, and kept.
//   - When its type gets a route, it is delivered before newer events of its aggregate.
//   - No event is dropped because a route changed while it waited.
//
// Routes never change for an id that the destination has seen: added routes apply to ids that it has not seen yet, and removed
// routes still apply to ids that it, or the search for events without a route, has seen. So an event has the routes of the
// moment when it was first read, by its destination or by the search, and whether it has none can be decided at any later time.
//
// A [Span] is a piece of that history. The owner of a destination ends the last span and begins another ([Change]), in the
// transaction in which it holds its position. A span that brings event types is not handed at first: the destination reads nothing
// until the search has seen all ids that the destination had passed, and has turned those of the new types into stored
// deliveries of the destination. Then it is handed, and they go first.
//
// A relay that has other routes for a destination, which another relay still has, writes them as expected ones: what is passed
// until then is kept, too. The search judges by a [Table] of all spans. Each change of the history fences it first, so that
// it judges nothing by routes that have just changed.
//
// The package knows no relay, lane or reader. Its files:
//
//	routes.go  routes, and the spans in which they hold
//	change.go  the statements that change the history
//	table.go   which destinations get, or are owed, an event
package routes
