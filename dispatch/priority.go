package dispatch

const (
	// MinPriority is the lowest priority of a destination.
	MinPriority = -100
	// MaxPriority is the highest one.
	MaxPriority = 100
)
