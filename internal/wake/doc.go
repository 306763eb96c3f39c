// Package wake decides how a relay learns of new events: from notifications, or by reading without
// waiting for one. Both engines use it; it knows neither tables nor destinations.
//
// # States
//
//	Listening  the trigger notifies of each event. Polls find what no notification announced.
//	Polling    the relay reads without a pause, and the trigger is silent: at thousands of events per
//	           second a notification costs writers more than it saves, because those that notify commit
//	           one after the other.
//	Settling   the trigger notifies again, but transactions may be open in which it was silent.
//
// The transitions:
//
//	Listening -> Polling   much is found at once, a rate of [idleRate] per reader is reached, writers queue
//	                       up to notify, or another relay says that it polls
//	Polling   -> Settling  the rate has fallen, and no reader is behind; or one is, and finds nothing
//	Settling  -> Listening every writer has ended that was silent
//	Settling  -> Polling   as from Listening
//
// A relay begins in Settling: the writers may have been silent because of one that has died.
//
// # Proof that no event waits for a poll because of this relay
//
// Say an event was written in silence. The trigger was silent because a relay held the lock, so the
// transaction had written before that relay released it. A relay that leaves Polling releases the lock first
// ([Bell.Ring]); after that it asks whether writers of before are open ([Options.Settle]). What they have
// written is visible once they have ended, and all readers read once more after the answer, before the relay
// counts on notifications. What is written after the release is announced. While the relay settles, its
// readers read once a second at least, so that what silent writers commit waits no longer.
//
// What each engine asks is its own. A stream asks who holds the lock of the sequence of the ids, and waits
// for other relays that keep the trigger silent. A queue asks whether all transactions below an id have
// ended that was drawn after the release. It does not ask for other relays, because any of them takes its
// events: what only this one can deliver meanwhile waits for its poll, which is fast once it finds such an
// event. Where a relay of a queue is gone, the others poll and settle anew, for the writers that it left.
package wake
