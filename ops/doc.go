// Package ops has the operators' actions in Go. The commands `notifyd dlq`, `events`, `positions`, `replay` and `pause`
// and the web console use it. A [Client] needs a database and no relay. Several people may act at once, while relays
// run. Every change is recorded in outbox_audit in the same transaction.
//
// # Events
//
// [Client.Event] and [Client.Events] show the state of events for each destination: delivered, dead, waiting and why,
// or not for that destination. These states are not stored. They are derived, in one snapshot, from outbox_events,
// outbox_deliveries and outbox_audit, and in a stream also from outbox_positions and outbox_routes. A state claims only
// facts that follow from these tables: [Delivered] means that the destination has acknowledged the event, and nothing
// else. A queue stores neither the destinations that an event was routed to, nor whether each has received or skipped
// the event. An event of a queue that is done therefore shows only that nothing is left to do.
//
// # Dead letters
//
// A dead letter is a delivery that has ended without success, because its event can never be delivered or because its
// attempts are used up. [Client.DeadLetters] lists them, [Client.DeadLetterGroups] groups them by their errors,
// [Client.Case] shows everything about one event. [Client.ReplayDeadLetters] has them delivered again, under a new id,
// and a [Watch] shows the results. [Client.DiscardDeadLetters] discards them. [Client.EditEvent] replaces the payload
// of an event that no destination accepts unchanged. A dead letter that someone else has replayed or discarded
// meanwhile does not count.
//
// # Waiting deliveries
//
// A failed delivery waits for its next try. [Client.RetryWaiting] makes waiting deliveries due, and
// [Client.BuryWaiting] makes them dead letters before their attempts are used up.
//
// # Positions and replays
//
// In a stream each destination has a position. [Client.Positions] lists them. [Client.Seek] moves one to an id or a
// time: its destination receives later events again, or skips events. [Client.Forget] removes the position of a
// destination that is gone. [Client.StartReplay] sends a range again next to live events. The delivering relay follows
// within about a second.
//
// # Pauses
//
// [Client.Pause] and [Client.Resume] stop and continue the deliveries to a destination.
package ops
