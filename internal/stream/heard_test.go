package stream

import (
	"testing"
	"time"
)

// TestHeardDeliveries: a replay of dead letters notifies many times a second. Each time the units look
// for due rows, and neither the bell nor the shares of the units are touched.
func TestHeardDeliveries(t *testing.T) {
	t.Parallel()
	sought := 0
	e := &Engine{vigil: newVigil(time.Second, nil), keeper: newKeeper(KeeperOptions{}, nil, nil), units: map[string]*running{
		"a": {poke: func(seek bool) {
			if seek {
				sought++
			}
		}},
	}}
	e.vigil.mode = asleep
	if !e.Heard(wordDeliveries) || sought != 1 {
		t.Errorf("units were asked to look for due rows %d times", sought)
	}
	if len(e.vigil.rise) > 0 || len(e.keeper.looks) > 0 {
		t.Errorf("the relay was woken up %d times, and looks at the shares %d times", len(e.vigil.rise), len(e.keeper.looks))
	}
}
