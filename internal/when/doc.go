// Package when compiles and evaluates the expressions of `when:` of a route: conditions in CEL, the Common Expression
// Language (https://cel.dev), over an event.
//
//	event.id, event.type, event.aggregate_type, event.aggregate_id, event.created_at
//	payload     the JSON of the event; read only where an expression asks for it
//	headers     the headers of the event, by name
//
// Compile checks an expression, and its types as far as they are known then: the types within a payload are unknown. An
// expression reads nothing else and changes nothing. It always ends, and its cost is linear in the size of the event: the
// only loops iterate over lists and objects of the payload, and steps and bytes are counted. If a member is missing, or a
// value has the wrong type, the evaluation fails with an error that repeats no value of the event.
package when
