package config

import (
	"errors"
	"fmt"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/when"
)

// decodeRate reads a rate. A bare number was once the limit of a webhook for each host.
func (d *decoder) decodeRate(n *node, target *delivery.Rate, path string) {
	if n.kind == kindScalar && (n.tag == "!!int" || n.tag == "!!float") {
		d.list.add(n.at, path, "%s: %s has no unit: write 100/s, 500/m, 10000/h or 50000/d. "+
			"The limit of a webhook for each host is host_rate_limit", path, show(n))
		return
	}

	text, ok := d.text(n, path)
	if !ok {
		return
	}

	if err := target.UnmarshalText([]byte(text)); err != nil {
		d.list.add(n.at, path, "%s: %s: %s", path, show(n), oneLine(err.Error()))
	}
}

// Key returns the function that computes the key of a limit, or nil if one limit applies to all events.
func (l *Lane) Key() delivery.RateKey {
	if l.key == nil {
		return nil
	}
	return l.key.Key
}

// checkKey checks rate_key against the other settings.
func (l *Lane) checkKey() error {
	switch {
	case l.RateKey == "":
		return nil
	case l.RateLimit.IsZero():
		return field.Errorf("rate_key", "has no effect without rate_limit")
	case l.Order == delivery.OrderTotal:
		return field.Errorf("rate_key", "order: total lets nothing go past an event that waits: "+
			"limit all events together, or use order: aggregate")
	}
	return nil
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
