package status

// The words for the state of a destination. The console, "notifyd status" and the documentation use no others, next to
// the labels of [observe.BreakerState].
const (
	// StateUp means that the destination accepts deliveries.
	StateUp = "up"
	// StateDown means that the destination does not accept deliveries, and the relay probes it.
	StateDown = "down"
	// StateFailing means that the destination answers, and deliveries fail.
	StateFailing = "failing"
	// StateStuck means that calls of the handler do not return.
	StateStuck = "stuck"
	// StateBlocked means that the destination has requested a pause of its connection.
	StateBlocked = "blocked"
	// StateLimited means that deliveries wait for the rate limit.
	StateLimited = "limited"
	// StatePaused means that an operator or a stored pause holds deliveries back.
	StatePaused = "paused"
	// StatePausing means that the tables have a pause that the relay has not read yet.
	StatePausing = "pausing"
	// StateResuming means that the tables have the end of a pause, and the relay has not read it yet.
	StateResuming = "resuming"
	// StateNotConfigured means that the configuration does not have the destination.
	StateNotConfigured = "not configured"
	// StateNotLoaded means that the configuration has the destination, and the relay has not read that configuration yet.
	StateNotLoaded = "not loaded"
	// StateUnknown means that no relay answers.
	StateUnknown = "?"
)

// ActionRequired is the heading over problems that last until an operator acts.
const ActionRequired = "action required"
