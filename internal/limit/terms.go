package limit

import (
	"context"
	"math"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

const (
	// aheadTime and aheadPart bound the events reserved ahead: those of that time, and that part of the burst.
	aheadTime = 250 * time.Millisecond
	aheadPart = 4
	// batchTime groups the events of an exhausted limit: one read or claim per event would cost more than it brings.
	batchTime = 50 * time.Millisecond
)

// Waits is the error text of a stored delivery that a rate limit delays. It is not a failure.
const Waits = "waits for its rate limit"

// Terms are the parameters of one limit's reservations.
type Terms struct {
	// Gap is the time from one event to the next.
	Gap time.Duration
	// Burst bounds the events reserved at once after a quiet time, at least 1.
	Burst int
}

// span is the time in which the whole burst accrues.
func (t Terms) accrual() time.Duration { return time.Duration(t.Burst) * t.Gap }

// Reserve reserves events of a destination from its limit, for all requests at once. The results are in no order;
// keys without a result got nothing.
type Reserve func(ctx context.Context, destination string, t Terms, requests []Request) ([]Reservation, error)

// Request asks for events of a key.
type Request struct {
	Key string
	// N is the number of events, at least 1.
	N int
}

// Reservation is the answer to a [Request].
type Reservation struct {
	Key string
	// N is the number of reserved events, from 0 to Request.N.
	N int
	// Lead is how far the theoretical arrival time is ahead of the clock; negative if past.
	Lead time.Duration
}

// plan has the parameters computed from a rate.
type plan struct {
	Terms

	ahead int           // how many may be reserved ahead
	hold  time.Duration // how long they are valid
	batch int           // size of a batch once the limit is exhausted
}

// Rate is a limit with its burst.
type Rate struct {
	delivery.Rate
	// Burst bounds the events that begin at once after a quiet time. 0 means the events of a second, at least 1.
	Burst int
}

func planOf(r Rate) plan {
	gap := time.Duration(math.Ceil(float64(r.Per) / float64(r.Events)))
	burst := r.Burst
	if burst == 0 {
		burst = max(1, int(math.Ceil(float64(time.Second)/float64(gap))))
	}

	ahead := min(burst/aheadPart, int(aheadTime/gap))
	p := plan{Terms: Terms{Gap: gap, Burst: burst - ahead}, ahead: ahead, hold: time.Duration(ahead) * gap}
	p.batch = max(1, min(p.Burst/2, int(batchTime/gap)))
	return p
}
