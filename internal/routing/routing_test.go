package routing

import (
	"errors"
	"testing"

	"github.com/notifyd/notifyd/delivery"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for pattern, ok := range map[string]bool{
		"*": true, "order": true, "order.created": true, "order.*": true, "a.b.*": true, "ünïcode.*": true,
		"": false, ".*": false, "order*": false, "*.created": false, "order.*.x": false, "**": false, "order.**": false,
		"a b": false, "a\tb": false, "a\u00a0b": false, "a\vb": false, "a\x00": false, "a\n": false, " a": false, "order.* ": false,
	} {
		if err := Check(pattern); (err == nil) != ok || err != nil && !errors.Is(err, delivery.ErrPattern) {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}
