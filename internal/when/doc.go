// Package when compiles and evaluates the expressions of `when:` of a route: conditions in CEL, the
// Common Expression Language (https://cel.dev), over an event.
//
//	event.id, event.type, event.aggregate_type, event.aggregate_id, event.created_at
//	payload     the JSON of the event; read only where an expression asks for it
//	headers     the headers of the event, by name
//
// An expression is checked when it is compiled, as far as types are known then: those of a payload are
// not. It reads nothing else, changes nothing, and ends: there are no loops but those over the
// lists of the payload, whose steps are counted. An expression that meets a missing member, or a
// value of another type than it needs, fails with an error that repeats no value of the event.
package when
