package config

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/when"
)

// Rate is a number of events in a time, such as 100/s.
type Rate string

// ratePattern matches a rate.
const ratePattern = `^[1-9][0-9]{0,8}/[smhd]$`

var rateRegexp = regexp.MustCompile(ratePattern)

// errRate is why a text is no rate.
var errRate = errors.New("not a rate: write 100/s, 500/m, 10000/h or 50000/d")

// parse returns no limit for an empty text.
func (r Rate) parse() (limit delivery.Rate, err error) {
	if r == "" {
		return limit, nil
	}
	if !rateRegexp.MatchString(string(r)) {
		return limit, errRate
	}
	end := len(r) - len("/s")
	limit.Events, _ = strconv.Atoi(string(r[:end])) // it has few digits
	limit.Per = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": day}[string(r[end+1:])]
	return limit, limit.Validate()
}

// decodeRate reads a rate. A bare number was once the limit of a webhook for each host.
func (d *decoder) decodeRate(n *node, target *Rate, path string) {
	if n.kind == kindScalar && (n.tag == "!!int" || n.tag == "!!float") {
		d.list.add(n.at, path, "%s: %s has no unit: write 100/s, 500/m, 10000/h or 50000/d. The limit of a webhook for each host is host_rate_limit", path, show(n))
		return
	}
	if text, ok := d.text(n, path); ok {
		*target = Rate(text)
	}
}

// Limit returns the rate limit of a lane, which must be valid; zero for none.
func (l *Lane) Limit() delivery.Rate {
	limit, _ := l.RateLimit.parse()
	if !limit.IsZero() {
		limit.Burst = l.RateBurst
	}
	return limit
}

// Key returns the function that gives each key its own limit, nil if there is none.
func (l *Lane) Key() delivery.RateKey {
	if l.key == nil {
		return nil
	}
	return l.key.Key
}

// checkLimits checks the settings of limits against each other.
func (l *Lane) checkLimits() error {
	var errs []error
	if _, err := l.RateLimit.parse(); err != nil {
		errs = append(errs, field.Errorf("rate_limit", "%q: %w", string(l.RateLimit), err))
	}
	if l.RateLimit == "" && l.RateBurst > 0 {
		errs = append(errs, field.Errorf("rate_burst", "has no effect without rate_limit"))
	}
	if l.RateLimit == "" && l.RateKey != "" {
		errs = append(errs, field.Errorf("rate_key", "has no effect without rate_limit"))
	}
	if l.RateKey != "" && l.Order == OrderTotal {
		errs = append(errs, field.Errorf("rate_key", "order: total lets nothing go past an event that waits: limit all events together, or use order: aggregate"))
	}
	if l.ExpiresAfter > 0 && l.ExpiresAfter < time.Millisecond {
		errs = append(errs, field.Errorf("expires_after", "%s is less than 1ms: write 0 for never", formatDuration(l.ExpiresAfter)))
	}
	return errors.Join(errs...)
}

// checkExact refuses what a destination that keeps its own position cannot have.
func (d *Destination) checkExact() error {
	setting := d.needsOrder()
	if setting == "" {
		return nil
	}
	var errs []error
	if d.RateKey != "" {
		errs = append(errs, field.Errorf("rate_key", "does not go with %s: limit all events together", setting))
	}
	return errors.Join(errs...)
}

// compileKey compiles the key of a destination's rate limit.
func (d *fileDecoder) compileKey(lane *Lane, n *node, path string) {
	at := n.get("rate_key")
	if lane.RateKey == "" || at == nil || d.list.explains(join(path, "rate_key")) {
		return
	}
	language, err := d.expressions()
	if err == nil {
		lane.key, err = language.CompileKey(lane.RateKey)
	}
	if mistake, ok := errors.AsType[*when.CompileError](err); ok && at.hidden { // the text may hold a secret
		err = fmt.Errorf("the expanded value is no key that notifyd understands (line %d, column %d)", mistake.Line, mistake.Column)
	}
	if err != nil {
		d.validate(field.Errorf("rate_key", "%w", err), n, path)
	}
}
