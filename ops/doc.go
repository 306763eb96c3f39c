// Package ops is what operators do, from Go: `notifyd dlq`, `events`, `positions`, `replay` and `pause` are this package as
// commands, and the web console uses it. A [Client] needs a database and no relay. Several people may act at once, while relays run.
// Every change is recorded in outbox_audit in the same transaction.
//
// # Events
//
// [Client.Event] and [Client.Events] show what became of events: for each destination whether the event is delivered, dead, waits
// and for what, or is not for that destination. Nothing of this is stored as such. It is derived, in one snapshot, from
// outbox_events, outbox_deliveries and outbox_audit, and in a stream from outbox_positions and outbox_routes. It claims only what
// follows from these tables: [Delivered] means that the destination has acknowledged the event, and nothing else. A queue
// does not store which destinations an event was routed to, nor whether each has received it or passed it over, so of an event
// that is done it shows only that nothing is left to do.
//
// # Dead letters
//
// A dead letter is a delivery that was given up, because its event can never be delivered or because its attempts are used up.
// [Client.DeadLetters] lists them, [Client.DeadLetterGroups] groups them by their errors, [Client.Case] shows everything about one
// event. [Client.ReplayDeadLetters] has them delivered again, under a new id, and a [Watch] shows what became of them.
// [Client.DiscardDeadLetters] gives them up. [Client.EditEvent] replaces the payload of an event that no destination accepts as it
// is. A letter that somebody else has dealt with meanwhile does not count.
//
// # Positions and replays
//
// In a stream each destination has a position. [Client.Positions] lists them, [Client.Seek] moves one to an id or a time, so that its
// destination receives what came since again, or skips it, and [Client.Forget] removes that of a destination that is gone.
// [Client.StartReplay] sends a range again beside what is live. The relay that delivers continues from there within about a second.
//
// # Pauses
//
// [Client.Pause] and [Client.Resume] stop and continue the deliveries to a destination.
package ops
