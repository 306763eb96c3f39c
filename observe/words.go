package observe

// The words for the state of a destination. The console, "notifyd status" and the documentation use no others, next to
// the labels of [BreakerState].
const (
	// StateUp: the destination accepts deliveries.
	StateUp = "up"
	// StateDown: the destination is unavailable, and the relay probes it.
	StateDown = "down"
	// StateFailing: the destination answers, and deliveries fail.
	StateFailing = "failing"
	// StateStuck: calls of the handler do not return.
	StateStuck = "stuck"
	// StateBlocked: the destination has requested a pause of its connection.
	StateBlocked = "blocked"
	// StateLimited: deliveries wait for the rate limit.
	StateLimited = "limited"
	// StatePaused: an operator or a stored pause holds deliveries back.
	StatePaused = "paused"
	// StatePausing: the tables have a pause that the relay has not read yet.
	StatePausing = "pausing"
	// StateResuming: the tables have the end of a pause, and the relay has not read it yet.
	StateResuming = "resuming"
	// StateNotConfigured: the configuration does not have the destination.
	StateNotConfigured = "not configured"
	// StateNotLoaded: the configuration has the destination, and the relay has not read that configuration yet.
	StateNotLoaded = "not loaded"
	// StateUnknown: no relay answers.
	StateUnknown = "?"
)

// ActionRequired is the heading over problems that do not end by themselves.
const ActionRequired = "action required"
