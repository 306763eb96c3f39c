// Package wake decides how a relay learns of new events: from notifications, or by reading without waiting for one.
// Both engines use it. It knows neither tables nor destinations.
//
// # States
//
//	Listening  the trigger notifies of each event, because a session holds the listening lock. Polls find events without a notification.
//	Polling    the relay reads without a pause, and the trigger is silent. At thousands of events per second a notification
//	           costs writers more than it saves, because notifying transactions commit one after the other.
//	Settling   the trigger notifies again, but silent transactions may still be open.
//
// The transitions:
//
//	Listening -> Polling   a read finds many events, the rate reaches [idleRate] per reader, writers queue up to notify, or
//	                       another relay announces that it polls
//	Polling   -> Settling  the rate has fallen, and either no reader is behind, or one is behind and finds nothing
//	Settling  -> Listening every silent writer has ended
//	Settling  -> Polling   as from Listening
//
// A relay begins in Settling: a relay that has died may have silenced the writers.
//
// # Proof that this relay makes no event wait for a poll
//
// Assume that an event was written in silence. The trigger was silent because a relay held the lock, so the transaction
// had written before that relay released it. A relay that leaves Polling first releases the lock ([Trigger.Release]), and
// then asks whether earlier writers are open ([Options.Settle]). Their events are visible once they have ended, and all
// readers read once more after the answer, before the relay relies on notifications. Events written after the release
// are announced. While the relay settles, its readers read at least once a second, so the events of silent writers wait
// no longer.
//
// The trigger is also silent where no relay listens. A relay that begins to listen takes the listening lock, and then
// calls [Machine.Poke]. So it leaves Polling, and settles, after that moment, and the writer had written before. Every
// listening session holds that lock shared: the death of a relay silences no writer of another.
//
// Each engine asks its own question. A stream asks for the holders of the sequence's lock, and waits for other relays
// that suppress the trigger. A queue asks whether all transactions have ended below an id that was drawn after the
// release. It does not wait for other relays, because any of them takes its events. An event that only this relay can
// deliver waits for its poll, which is fast once it finds such an event. When a relay of a queue has died, the others
// poll and settle again, for the writers that it had silenced.
package wake
