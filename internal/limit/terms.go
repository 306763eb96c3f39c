package limit

import (
	"context"
	"math"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

const (
	// aheadTime and aheadPart bound what is taken ahead: what goes in that time, and that part of the burst.
	aheadTime = 250 * time.Millisecond
	aheadPart = 4
	// bunchTime makes events of a limit that is reached go in bunches: one read or claim for each would cost more than
	// it brings.
	bunchTime = 50 * time.Millisecond
)

// Waits is the error of a stored delivery that a rate limit holds back. It is no failure.
const Waits = "waits for its rate limit"

// Terms are those of the reservations of one limit.
type Terms struct {
	// Gap is the time from one event to the next.
	Gap time.Duration
	// Burst is how many may be reserved at once after a quiet time, at least 1.
	Burst int
}

// span is how long the burst takes to come back.
func (t Terms) span() time.Duration { return time.Duration(t.Burst) * t.Gap }

// Reserve is what reservations take from.
type Reserve func(ctx context.Context, destination string, t Terms, asks []Ask) ([]Grant, error)

// Ask is a request for events of a key.
type Ask struct {
	Key string
	// Want is for how many, at least 1.
	Want int
}

// Grant is the answer to an [Ask].
type Grant struct {
	Key string
	// Granted is for how many, from 0 to Ask.Want.
	Granted int
	// Lead is how far the theoretical arrival time is ahead of the clock; negative if it is past.
	Lead time.Duration
}

// plan is a rate, worked out.
type plan struct {
	Terms

	ahead int           // how many may be taken ahead
	hold  time.Duration // for how long they may be used
	bunch int           // of how many a bunch is, once the limit is reached
}

// Rate is a limit with its burst.
type Rate struct {
	delivery.Rate
	// Burst is how many go at once after a quiet time; 0 is what goes in a second, and at least 1.
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
	p.bunch = max(1, min(p.Burst/2, int(bunchTime/gap)))
	return p
}
