package delivery

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Rate is a limit of Events per Per, evenly spread. In any time t at most t * Events / Per deliveries begin, plus the
// burst of [Lane]. The zero value sets no limit. The text is "100/s", "500/m", "10000/h", "50000/d", or "5/10m" for
// another time.
type Rate struct {
	Events int           // at least 1, and no more than one a microsecond
	Per    time.Duration // from 1 ms to 366 days
}

// RateKey returns the key of an event by which a [Rate] counts, such as the customer whom it is for. It is
// called from several goroutines at once, must be quick, and must not keep the candidate. Events for
// which it fails have the empty key together.
type RateKey func(c *Candidate) (string, error)

const (
	shortestPer = time.Millisecond
	longestPer  = 366 * day
	day         = 24 * time.Hour
)

// ratePattern matches the texts of a [Rate].
const ratePattern = `^([1-9][0-9]{0,8})/([1-9][0-9]{0,5})?(ms|s|m|h|d)$`

var rateRegexp = regexp.MustCompile(ratePattern)

// errRate rejects a text that does not describe a rate.
var errRate = errors.New("not a rate: write 100/s, 500/m, 10000/h or 50000/d")

// rateUnit is a unit of a [Rate].
type rateUnit struct {
	name  string
	shard time.Duration
}

// rateUnits returns the units of a [Rate], the longest first.
func rateUnits() []rateUnit {
	return []rateUnit{{"d", day}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}}
}

// IsZero reports whether r sets no limit.
func (r Rate) IsZero() bool { return r == Rate{} }

// UnmarshalText parses a text such as 100/s; an empty text sets no limit.
func (r *Rate) UnmarshalText(text []byte) error {
	*r = Rate{}
	if len(text) == 0 {
		return nil
	}

	parts := rateRegexp.FindSubmatch(text)
	if parts == nil {
		return errRate
	}

	times := 1
	if len(parts[2]) > 0 {
		times, _ = strconv.Atoi(string(parts[2])) // it has few digits
	}
	r.Events, _ = strconv.Atoi(string(parts[1])) // the same

	for _, u := range rateUnits() {
		if u.name == string(parts[3]) {
			r.Per = time.Duration(times) * u.shard
		}
	}

	return r.Validate()
}

// MarshalText returns the text that UnmarshalText parses. It fails unless the time of the rate is a multiple of a
// millisecond.
func (r Rate) MarshalText() ([]byte, error) {
	if r.IsZero() {
		return nil, nil
	}

	for _, u := range rateUnits() {
		switch times := r.Per / u.shard; {
		case r.Per%u.shard != 0:
		case times == 1:
			return fmt.Appendf(nil, "%d/%s", r.Events, u.name), nil
		default:
			return fmt.Appendf(nil, "%d/%d%s", r.Events, times, u.name), nil
		}
	}

	return nil, fmt.Errorf("%d events per %v have no text: %w", r.Events, r.Per, errRate)
}

// Validate returns every mistake in r, joined.
func (r Rate) Validate() error {
	if r.IsZero() {
		return nil
	}

	var errs []error
	if r.Events < 1 {
		errs = append(errs, fmt.Errorf("rate limit of %d events is below 1", r.Events))
	}
	if r.Per < shortestPer || r.Per > longestPer {
		errs = append(errs, fmt.Errorf("rate limit per %v is not from %v to %v", r.Per, shortestPer, longestPer))
	}
	if r.Events > 0 && r.Per/time.Duration(r.Events) < time.Microsecond {
		errs = append(errs, fmt.Errorf("rate limit of %d events per %v is more than one a microsecond", r.Events, r.Per))
	}

	return errors.Join(errs...)
}
